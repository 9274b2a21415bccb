"""Random traffic: random caches, and a small scheduler that plays random steps on them."""

from __future__ import annotations

from collections.abc import Callable
from math import lcm
from random import Random
from typing import Any

from kvhybrid.cache.request import Request, RequestStatus
from kvhybrid.conformance.invariants import check_empty
from kvhybrid.conformance.stage import Stage
from kvhybrid.conformance.subject import size_of, spec_as_group
from kvhybrid.conformance.twin import Config
from kvhybrid.scenarios.form import ScenarioStep
from kvhybrid.scenarios.token_names import runs_of
from kvhybrid.specs import KVCacheSpec

WEIGHTS = {
    "submit": 5,
    "admit": 8,
    "run": 9,
    "new_step": 3,
    "copies": 1,
    "in_flight": 1,
    "finish": 2,
    "preempt": 1,
    "load": 1,
    "evict": 1,
    "reset": 1,
}
"""Relative frequency of each action."""
MOST_REQUESTS = 5
"""At a time."""
MOST_BLOCKS = 96
"""Of the longest request."""


# ---- the cache


def draw_config(spec: KVCacheSpec, name: str, rng: Random) -> Config:
    """A small cache with ``spec``, alone or with groups of built-in specs. The configuration may be invalid."""
    group = spec_as_group(spec, name)
    groups = [group, *([group] if rng.random() < 0.2 else [])]
    groups += _neighbours(spec, rng)
    rng.shuffle(groups)
    longest = max(10 * spec.block_size, min(2 * size_of(spec), MOST_BLOCKS * spec.block_size))
    caching = rng.random() < 0.9 and (spec.cacheable or spec.source == "encoder")
    config: Config = {
        "num_blocks": longest // spec.block_size * rng.choice((1, 1, 2, 4, 8)) + rng.randint(0, 8),
        "groups": groups,
        "max_model_len": longest,
    }
    if rng.random() < 0.3:
        config["max_in_flight_tokens"] = rng.randint(1, longest)
    if rng.random() < 0.2:
        config["watermark"] = 0.1
    if not caching:
        return {**config, "enable_caching": False}
    units = [unit for unit in range(1, spec.block_size) if spec.block_size % unit == 0]
    if spec.sub_block and units and rng.random() < 0.4:
        config["groups"] = [group, *_neighbours_inside(spec, rng)]
        config["hash_block_size"] = rng.choice(units)
    if rng.random() < 0.4:
        common = lcm(*(int(group["block_size"]) for group in config["groups"]))
        config["retention_interval"] = rng.choice((0, common, 2 * common))
    if rng.random() < 0.25:
        drafts = [g for g in range(len(config["groups"])) if rng.random() < 0.6]
        config["eagle"] = drafts or [0]
    return config


def _neighbours(spec: KVCacheSpec, rng: Random) -> list[dict[str, Any]]:
    """Groups of built-in specs whose block sizes never let a hit end inside a block of ``spec``."""
    size = spec.block_size
    needs_one = not spec.cacheable and spec.source == "encoder"
    states = rng.random() < 0.4 or spec.state
    other = size if states else rng.choice((size, 2 * size, max(1, size // 2)))
    extent = rng.randint(1, 4 * size)
    choices: list[dict[str, Any]] = [
        {"spec": "full", "block_size": other},
        {"spec": "sliding_window", "block_size": other, "window": extent},
        {"spec": "chunked_local", "block_size": other, "chunk": extent},
        {"spec": "sink_window", "block_size": other, "sinks": rng.randint(1, size), "window": extent},
    ]
    if states:
        alike = spec.state or spec.sub_block or rng.random() < 0.5
        choices.append({"spec": "mamba", "block_size": size if alike else 2 * size})
    return rng.sample(choices, max(rng.choice((0, 0, 1, 1, 2)), int(needs_one)))


def _neighbours_inside(spec: KVCacheSpec, rng: Random) -> list[dict[str, Any]]:
    """Groups of built-in specs that let a hit end inside a block of ``spec``."""
    state = {"spec": "mamba", "block_size": spec.block_size * rng.randint(1, 2)}
    return [state, *rng.choice(([], [{"spec": "full", "block_size": spec.block_size * rng.randint(1, 2)}]))]


# ---- the requests


class Traffic:
    """Requests that share prefixes: admitted, run in chunks, decoded, preempted and ended, with random
    evictions."""

    def __init__(self, stage: Stage, rng: Random) -> None:
        self.rng = rng
        self.stage = stage
        self._longest = stage.manager.max_model_len
        self._prompts: list[list[int]] = []
        self._actions: dict[str, Callable[[], object]] = {
            "submit": self._submit,
            "admit": self._admit,
            "run": self._run,
            "new_step": lambda: self._play("new_step"),
            "copies": lambda: self._play("take_copies"),
            "in_flight": self._in_flight,
            "finish": self._finish,
            "preempt": self._preempt,
            "load": self._load_done,
            "evict": self._evict,
            "reset": lambda: self._play("reset"),
        }

    def run(self, actions: int) -> None:
        """Take ``actions`` random actions, then `wind_up`."""
        for _ in range(actions):
            self.act(self.draw())
        self.wind_up()

    def draw(self) -> str:
        """The name of a random action."""
        return self.rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]

    def act(self, action: str, rng: Random | None = None) -> None:
        """Take one action, with its details from ``rng`` if given. Does nothing if the action is not possible
        now."""
        self.rng = rng or self.rng
        self._actions[action]()

    def wind_up(self) -> None:
        """End every request and remove every key, then check that nothing remains."""
        for name in [name for name, request in self.stage.requests.items() if self._is_alive(request)]:
            self._play("free", request=name)
        self._play("new_step")
        self._play("take_copies")
        self._play("reset")
        check_empty(self.stage.manager)

    def _play(self, do: str, **keys: Any) -> ScenarioStep | None:
        """Play a step if it is valid. Returns it with its answer."""
        step = self.stage.fitted({"do": do, **keys})
        return self.stage.play(step) if step is not None else None

    @staticmethod
    def _is_alive(request: Request) -> bool:
        return request.status is not RequestStatus.FINISHED

    def _any(self, *statuses: RequestStatus) -> Request | None:
        found = [request for request in self.stage.requests.values() if request.status in statuses]
        return self.rng.choice(found) if found else None

    def _submit(self) -> None:
        rng, requests = self.rng, self.stage.requests
        if sum(map(self._is_alive, requests.values())) >= MOST_REQUESTS:
            return
        tokens = self._prompt()
        self._prompts.append(tokens)
        step: ScenarioStep = {"request": f"r{len(requests)}", "tokens": runs_of(tokens)}
        if rng.random() < 0.05:
            step["salt"] = "salt"
        if rng.random() < 0.05:
            step["lora"] = ["adapter", "path"]
        if rng.random() < 0.03:
            step["skip_read"] = True
        if any(group.spec.source == "encoder" for group in self.stage.manager.config.groups):
            step["encoder_tokens"] = rng.randint(0, 12)
        self._play("submit", **step)

    def _prompt(self) -> list[int]:
        """Consecutive tokens from 0 or a new number, or the start of an earlier prompt, often with a new end."""
        rng, longest = self.rng, self._longest
        length = rng.randint(1, longest)
        if self._prompts and rng.random() < 0.6:
            parent = rng.choice([*self._prompts, *(r.token_ids for r in self.stage.requests.values())])
            shared = rng.choice((len(parent), rng.randint(1, len(parent))))
            own = 1000 * len(self._prompts)
            return [*parent[:shared], *range(own, own + rng.choice((0, rng.randint(1, 6), length)))][:longest]
        start = rng.choice((0, 0, 500, 1000 * len(self._prompts)))
        return list(range(start, start + length))

    def _admit(self) -> None:
        request, rng = self._any(RequestStatus.WAITING, RequestStatus.PREEMPTED), self.rng
        if request is None:
            return
        name, hit = request.request_id, 0
        if not request.num_computed_tokens:
            found = self._play("lookup", request=name)
            hit = found["hit_tokens"] if found else 0
        step: ScenarioStep = {
            "request": name,
            "new_tokens": rng.choice((rng.randint(1, 12), rng.randint(1, self._longest))),
        }
        unit = self.stage.manager.config.scheduler_block_size
        room = (request.num_tokens - 1 - hit) // unit
        if room > 0 and not hit % unit and not request.num_computed_tokens and rng.random() < 0.15:
            step["external_tokens"] = unit * rng.randint(1, room)
            if rng.random() < 0.5:
                step["delay_cache"] = True
        if rng.random() < 0.3:
            step["full_sequence_must_fit"] = True
        if rng.random() < 0.1:
            step["reserved_blocks"] = rng.randint(1, 4)
        if rng.random() < 0.3:
            step["has_running"] = False
        self._play("allocate", **step)

    def _run(self) -> None:
        request, rng = self._any(RequestStatus.RUNNING), self.rng
        if request is None:
            return
        name, step = request.request_id, ScenarioStep()
        if request.num_computed_tokens >= request.num_tokens:
            self._sample(request)
        decoding = request.num_computed_tokens >= request.num_tokens - 1
        step["new_tokens"] = (
            rng.choice((1, 1, rng.randint(1, 4))) if decoding else rng.randint(1, 4 + self._longest // 4)
        )
        if rng.random() < 0.15 and not self.stage.has_states:
            step["lookahead"] = rng.randint(1, 3)
        self._play("allocate", request=name, **step)

    def _sample(self, request: Request) -> None:
        """Some drafts are accepted and a token is sampled; the other drafts are withdrawn."""
        drafts = request.num_computed_tokens - request.num_tokens
        accepted = self.rng.randint(0, drafts)
        start = request.token_ids[-1] + 1 if self.rng.random() < 0.7 else self.rng.randint(300, 310)
        if self._play("append", request=request.request_id, tokens=[[start, accepted + 1]]) is not None:
            if drafts > accepted:
                self._play("reject", request=request.request_id, tokens=drafts - accepted)
        else:
            self._play("free", request=request.request_id)

    def _in_flight(self) -> None:
        request = self._any(RequestStatus.RUNNING)
        if request is not None:
            self._play("in_flight", request=request.request_id, tokens=self.rng.randint(0, 4))

    def _finish(self) -> None:
        request = self._any(*(status for status in RequestStatus if status is not RequestStatus.FINISHED))
        if request is not None:
            self._play("free", request=request.request_id)

    def _preempt(self) -> None:
        request = self._any(RequestStatus.RUNNING)
        if request is not None:
            self._play("preempt", request=request.request_id)

    def _load_done(self) -> None:
        request = self._any(RequestStatus.LOADING)
        if request is not None:
            self._play("load_done", request=request.request_id)

    def _evict(self) -> None:
        blocks = range(self.stage.manager.config.num_blocks)
        self._play("evict", blocks=sorted(self.rng.sample(blocks, min(self.rng.randint(1, 3), len(blocks)))))
