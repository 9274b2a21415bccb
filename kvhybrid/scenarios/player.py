"""Plays a scenario's steps on a real cache manager and says what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kvhybrid.blocks import ComputedBlocks
from kvhybrid.cache_manager import KVCacheManager
from kvhybrid.managers.arrays import int_array
from kvhybrid.request import LoRA, Request, RequestStatus
from kvhybrid.scenarios.config import ScenarioError, build_manager

Answer = dict[str, Any]
STATE_KEYS = ("free_queue", "num_free", "cached", "refs", "usage", "tables")


def tokens_of(runs: Sequence[Sequence[int]]) -> list[int]:
    """``[[first, count], …]`` as token ids."""
    return [token for first, count in runs for token in range(first, first + count)]


class Player:
    """One cache manager, and the few counters per request that a scheduler keeps."""

    def __init__(self, manager: KVCacheManager) -> None:
        self.manager = manager
        self.requests: dict[str, Request] = {}
        self._looked_up: dict[str, ComputedBlocks] = {}
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
        """Carry out one step and return every key that its ``expect`` may hold."""
        play = self._steps.get(step.get("do", ""))
        if play is None:
            raise ScenarioError(f"do = {step.get('do')!r} is unknown; accepted: {', '.join(self._steps)}")
        return play(step)

    def _request(self, step: Mapping[str, Any]) -> Request:
        name = step.get("request")
        if name not in self.requests:
            raise ScenarioError(f"request {name!r} was not submitted")
        return self.requests[name]

    def _submit(self, step: Mapping[str, Any]) -> Answer:
        name = step["request"]
        lora = step.get("lora")
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
        found = self.manager.get_computed_blocks(request)
        request.shared_prefix_boundary = found.junction
        self._looked_up[request.request_id] = found
        return {
            "hit_tokens": found.num_tokens,
            "hit_blocks": list(found.blocks.get_block_ids()),
            "junction": found.junction,
        }

    def _allocate(self, step: Mapping[str, Any]) -> Answer:
        request = self._request(step)
        waiting = request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
        found = self._looked_up.pop(request.request_id, None) if waiting else None
        hit = found.num_tokens if found else 0
        new, external = step.get("new_tokens", 0), step.get("external_tokens", 0)
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
            num_encoder_tokens=request.num_encoder_tokens if waiting else 0,
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
        self._request(step).num_computed_tokens -= step["tokens"]
        return {}

    def _in_flight(self, step: Mapping[str, Any]) -> Answer:
        self._request(step).num_in_flight_tokens = step["tokens"]
        return {}

    def _load_done(self, step: Mapping[str, Any]) -> Answer:
        request = self._request(step)
        self.manager.cache_blocks(request, request.num_computed_tokens)
        if request.num_computed_tokens == request.num_tokens:
            request.num_computed_tokens -= 1
        request.status = RequestStatus.PREEMPTED if request.num_preemptions else RequestStatus.WAITING
        return {}

    def _free(self, step: Mapping[str, Any]) -> Answer:
        request = self._request(step)
        self.manager.free(request)
        self._looked_up.pop(request.request_id, None)
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
        self.manager.evict_blocks(step["blocks"])
        return {}

    def _reset(self, step: Mapping[str, Any]) -> Answer:
        return {"ok": self.manager.reset_prefix_cache()}

    def _new_step(self, step: Mapping[str, Any]) -> Answer:
        self.manager.new_step_starts()
        return {}

    def _take_copies(self, step: Mapping[str, Any]) -> Answer:
        copies = self.manager.take_copies()
        self.manager.release_copies()
        return {"copies": [list(pair) for pair in copies]}

    def _state(self, step: Mapping[str, Any]) -> Answer:
        pool = self.manager.block_pool
        index, unit = self.manager.coordinator.index, self.manager.config.hash_unit
        held = np.flatnonzero(pool.refs)
        tables = {name: [row.tolist() for row in self.manager.get_block_ids(name)] for name in self.requests}
        return {
            "free_queue": pool.free_queue(),
            "num_free": pool.num_free,
            "cached": {
                str(block): index.units(int(pool.number_of[block])) * unit
                for block in np.flatnonzero(pool.number_of).tolist()
            },
            "refs": {str(block): int(pool.refs[block]) for block in held.tolist()},
            "usage": round(pool.usage, 6),
            "tables": {name: rows for name, rows in tables.items() if any(rows)},
        }


def hit_search(scenario: Mapping[str, Any]) -> Answer:
    """The answer to a scenario of kind ``hit_search``: a look-up over blocks that are keyed by hand."""
    config = dict(scenario["config"])
    config["num_blocks"] = max(config.get("num_blocks", 0), 10 + 50 * len(config["groups"]))
    manager = build_manager(config)
    coordinator, unit = manager.coordinator, manager.config.hash_unit
    cached = [
        (c["group"], c["pattern"], c.get("unit", manager.config.block_sizes[c["group"]]))
        for c in scenario["cached"]
    ]
    length = max(len(pattern) * tokens for _, pattern, tokens in cached)
    request = Request("searched", range(max(length, 1)), hasher=manager.hasher)
    numbers = coordinator.numbers(request)
    for group, pattern, tokens in cached:
        at = [i for i, present in enumerate(pattern) if present == "1"]
        ids = int_array([10 + 50 * group + i for i in at])
        manager.block_pool.register(group, ids, numbers[[(i + 1) * tokens // unit - 1 for i in at]])
    hit = coordinator.find_longest_cache_hit(request, scenario["max_length"])
    return {
        "hit_tokens": hit.num_tokens,
        "hit_blocks": list(hit.get_block_ids()),
        "junction": hit.junction,
    }
