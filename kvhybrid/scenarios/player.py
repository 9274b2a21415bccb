"""Plays the steps of a scenario on a real cache manager."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvhybrid.cache.blocks import ComputedBlocks
from kvhybrid.cache.extra_keys import LoRA
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request, RequestStatus
from kvhybrid.scenarios.form import ScenarioError
from kvhybrid.scenarios.pool_state import pool_state

Answer = dict[str, Any]
STARTING = (RequestStatus.WAITING, RequestStatus.PREEMPTED)
"""States in which an allocation admits the request."""


def tokens_of(runs: Sequence[Sequence[int]]) -> list[int]:
    """``[[first, count], …]`` as token ids."""
    return [token for first, count in runs for token in range(first, first + count)]


class Player:
    """A cache manager and the counters per request that a scheduler would keep."""

    def __init__(self, manager: KVCacheManager) -> None:
        self.manager = manager
        self.requests: dict[str, Request] = {}
        self.looked_up: dict[str, ComputedBlocks] = {}
        self._steps: dict[str, Callable[[Mapping[str, Any]], Answer]] = {
            "submit": self._submit,
            "lookup": self._lookup,
            "allocate": self._allocate,
            "append": self._append,
            "reject": self._reject,
            "in_flight": self._in_flight,
            "load_done": self._load_done,
            "free": self._free,
            "preempt": self._preempt,
            "evict": self._evict,
            "reset": self._reset,
            "new_step": self._new_step,
            "take_copies": self._take_copies,
            "state": self._state,
        }

    def play(self, step: Mapping[str, Any]) -> Answer:
        """Execute one well-formed step, and return every key that its ``expect`` may have.

        Raises:
            ScenarioError: The step is inconsistent with earlier steps.
        """
        return self._steps[step["do"]](step)

    def _request(self, step: Mapping[str, Any]) -> Request:
        name = step["request"]
        request = self.requests.get(name)
        if request is None:
            raise ScenarioError(f"request = {name!r} was not submitted; accepted: {_some(self.requests)}")
        if request.status is RequestStatus.FINISHED:
            raise ScenarioError(f"request = {name!r} has ended; accepted: a request that has not")
        return request

    def _submit(self, step: Mapping[str, Any]) -> Answer:
        name, lora = step["request"], step.get("lora")
        if name in self.requests:
            raise ScenarioError(f"request = {name!r} was submitted before; accepted: a new name")
        self.requests[name] = Request(
            name,
            tokens_of(step["tokens"]),
            cache_salt=step.get("salt"),
            lora=LoRA(*lora) if lora else None,
            num_encoder_tokens=step.get("encoder_tokens", 0),
            skip_reading_prefix_cache=step.get("skip_read", False),
            hasher=self.manager.hasher,
        )
        return {}

    def _lookup(self, step: Mapping[str, Any]) -> Answer:
        request = self._request(step)
        if request.num_computed_tokens or request.status is RequestStatus.RUNNING:
            raise ScenarioError(
                f"request = {request.request_id!r} has {request.num_computed_tokens} computed tokens; "
                "accepted: a waiting request that has none"
            )
        found = self.manager.get_computed_blocks(request)
        request.shared_prefix_boundary = found.junction
        self.looked_up[request.request_id] = found
        return hit_answer(found)

    def _allocate(self, step: Mapping[str, Any]) -> Answer:
        request = self._request(step)
        starting = request.status in STARTING
        found = self.looked_up.pop(request.request_id, None) if starting else None
        hit = found.num_tokens if found else 0
        new, external = step["new_tokens"], step.get("external_tokens", 0)
        if not (new or external or hit):
            return {"error": "value"}
        blocks = self.manager.allocate_slots(
            request,
            new,
            hit,
            found.blocks if found else None,
            num_lookahead_tokens=step.get("lookahead", 0),
            num_external_computed_tokens=external,
            delay_cache_blocks=step.get("delay_cache", False),
            num_encoder_tokens=request.num_encoder_tokens if starting else 0,
            full_sequence_must_fit=step.get("full_sequence_must_fit", False),
            reserved_blocks=step.get("reserved_blocks", 0),
            has_scheduled_reqs=step.get("has_running", True),
        )
        if blocks is None:
            return {"refused": True}
        request.num_computed_tokens += hit + external + new
        request.status = RequestStatus.LOADING if step.get("delay_cache") else RequestStatus.RUNNING
        return {"new_blocks": list(blocks.get_block_ids())}

    def _append(self, step: Mapping[str, Any]) -> Answer:
        self._request(step).append_output_token_ids(tokens_of(step["tokens"]))
        return {}

    def _reject(self, step: Mapping[str, Any]) -> Answer:
        request = self._request(step)
        if step["tokens"] > request.num_computed_tokens:
            raise ScenarioError(
                f"tokens = {step['tokens']}; accepted: at most the {request.num_computed_tokens} computed tokens"
            )
        request.num_computed_tokens -= step["tokens"]
        return {}

    def _in_flight(self, step: Mapping[str, Any]) -> Answer:
        self._request(step).num_in_flight_tokens = step["tokens"]
        return {}

    def _load_done(self, step: Mapping[str, Any]) -> Answer:
        request = self._request(step)
        if request.status is not RequestStatus.LOADING:
            raise ScenarioError(
                f"request = {request.request_id!r} is {request.status.value}; accepted: one that loads"
            )
        self.manager.cache_blocks(request, request.num_computed_tokens)
        if request.num_computed_tokens == request.num_tokens:
            request.num_computed_tokens -= 1
        request.status = RequestStatus.PREEMPTED if request.num_preemptions else RequestStatus.WAITING
        return {}

    def _free(self, step: Mapping[str, Any]) -> Answer:
        request = self._request(step)
        self.manager.free(request)
        self.looked_up.pop(request.request_id, None)
        request.status = RequestStatus.FINISHED
        return {}

    def _preempt(self, step: Mapping[str, Any]) -> Answer:
        request = self._request(step)
        self.manager.free(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = request.num_in_flight_tokens = 0
        request.num_preemptions += 1
        return {}

    def _evict(self, step: Mapping[str, Any]) -> Answer:
        outside = [block for block in step["blocks"] if not 0 <= block < self.manager.config.num_blocks]
        if outside:
            raise ScenarioError(f"blocks = {outside[0]}; accepted: 0 to {self.manager.config.num_blocks - 1}")
        self.manager.evict_blocks(step["blocks"])
        return {}

    def _reset(self, step: Mapping[str, Any]) -> Answer:
        done = self.manager.reset_prefix_cache()
        if done:
            # The keys of these hits were removed, so the hits can no longer be adopted.
            self.looked_up.clear()
        return {"ok": done}

    def _new_step(self, step: Mapping[str, Any]) -> Answer:
        self.manager.new_step_starts()
        return {}

    def _take_copies(self, step: Mapping[str, Any]) -> Answer:
        copies = self.manager.take_copies()
        self.manager.release_copies()
        return {"copies": [list(pair) for pair in copies]}

    def _state(self, step: Mapping[str, Any]) -> Answer:
        return pool_state(self.manager, {name: name for name in self.requests})


def hit_answer(found: ComputedBlocks) -> Answer:
    """The answer of a look-up, in a scenario's format."""
    return {
        "hit_tokens": found.num_tokens,
        "hit_blocks": list(found.blocks.get_block_ids()),
        "junction": found.junction,
    }


def _some(names: Mapping[str, Any]) -> str:
    shown = ", ".join(list(names)[:5]) or "none so far"
    return f"{shown}, …" if len(names) > 5 else shown
