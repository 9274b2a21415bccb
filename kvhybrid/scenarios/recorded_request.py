"""The recorder's state of one request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvhybrid.cache.blocks import ComputedBlocks, KVCacheBlocks
from kvhybrid.cache.request import Request
from kvhybrid.scenarios.form import ScenarioStep
from kvhybrid.scenarios.player import STARTING
from kvhybrid.scenarios.token_names import TokenNames, runs_of

OPTIONS: Final[Mapping[str, tuple[str, object]]] = {
    "num_lookahead_tokens": ("lookahead", 0),
    "num_external_computed_tokens": ("external_tokens", 0),
    "full_sequence_must_fit": ("full_sequence_must_fit", False),
    "reserved_blocks": ("reserved_blocks", 0),
    "has_scheduled_reqs": ("has_running", True),
    "delay_cache_blocks": ("delay_cache", False),
}
"""Arguments of ``allocate_slots``: their names in a scenario, and their defaults, which are omitted."""


class InexpressibleError(Exception):
    """A call that no step of a scenario can express."""


@dataclass
class RecordedRequest:
    """A request as the player of the recording will see it. `catch_up` adds the steps for its changes since."""

    name: str
    request: Request
    num_tokens: int = 0
    last_token: int = 0
    computed: int = 0
    in_flight: int = 0
    junction: int = 0
    starting: bool = True
    loading: bool = False
    found: ComputedBlocks | None = None
    """The latest look-up, until an admission uses it."""
    freed: ScenarioStep | None = None
    """The step that freed its blocks: a ``free``, or a preemption if the request is seen again."""

    def submit(self, names: TokenNames) -> list[ScenarioStep]:
        request = self.request
        if request.num_computed_tokens:
            raise InexpressibleError(f"{self.name} came with {request.num_computed_tokens} computed tokens")
        known = names.extend(0, request, 0)
        prompt = known[: request.num_prompt_tokens]
        step: ScenarioStep = {"do": "submit", "request": self.name, "tokens": runs_of(prompt)}
        extra = request.extra_keys
        if extra.salt is not None:
            step["salt"] = extra.salt
        if extra.lora is not None:
            step["lora"] = [extra.lora.name, extra.lora.path]
        if request.num_encoder_tokens:
            step["encoder_tokens"] = request.num_encoder_tokens
        if request.skip_reading_prefix_cache:
            step["skip_read"] = True
        self.num_tokens, self.last_token = len(prompt), prompt[-1]
        return [step]

    def catch_up(self, names: TokenNames) -> list[ScenarioStep]:
        """Steps for the changes of the request since the last call."""
        request = self.request
        steps: list[ScenarioStep] = []
        if self.freed is not None:
            self.freed["do"] = "preempt"
            self.freed, self.starting, self.loading = None, True, False
            self.computed = self.in_flight = 0
        if request.num_tokens < self.num_tokens:
            raise InexpressibleError(f"{self.name} lost tokens")
        if request.num_tokens > self.num_tokens:
            added = names.extend(self.last_token, request, self.num_tokens)
            steps.append({"do": "append", "request": self.name, "tokens": runs_of(added)})
            self.num_tokens, self.last_token = request.num_tokens, added[-1]
        if request.num_computed_tokens > self.computed:
            raise InexpressibleError(
                f"{self.name} has {request.num_computed_tokens} computed tokens, its steps made {self.computed}"
            )
        if rejected := self.computed - request.num_computed_tokens:
            steps.append({"do": "reject", "request": self.name, "tokens": rejected})
            self.computed = request.num_computed_tokens
        if request.num_in_flight_tokens != self.in_flight:
            self.in_flight = request.num_in_flight_tokens
            steps.append({"do": "in_flight", "request": self.name, "tokens": self.in_flight})
        return steps

    def lookup(self) -> ScenarioStep:
        if self.computed or not (self.starting or self.loading):
            raise InexpressibleError(f"{self.name} was looked up while it had computed tokens")
        return {"do": "lookup", "request": self.name}

    def allocate(self, given: Mapping[str, Any], has_watermark: bool) -> ScenarioStep:
        """The step for a call of ``allocate_slots``; ``given`` has all arguments by name."""
        new, hit, encoder = (
            given[name] for name in ("num_new_tokens", "num_new_computed_tokens", "num_encoder_tokens")
        )
        options = {key: given[name] for name, (key, default) in OPTIONS.items() if given[name] != default}
        request = self.request
        found = self.found if self.starting else None
        expected = found.num_tokens if found else 0
        if hit != expected or (found and hit and given["new_computed_blocks"] is not found.blocks):
            raise InexpressibleError(f"{self.name} adopts {hit} tokens; its latest look-up found {expected}")
        if encoder != (request.num_encoder_tokens if self.starting else 0):
            raise InexpressibleError(f"{self.name} asks for slots of {encoder} encoder tokens")
        if request.shared_prefix_boundary != self.junction:
            raise InexpressibleError(f"{self.name} has a junction that its latest look-up did not find")
        step: ScenarioStep = {"do": "allocate", "request": self.name, "new_tokens": new, **options}
        if has_watermark and self.starting != (request.status in STARTING) and options.get("has_running", True):
            if not self.starting:
                raise InexpressibleError(f"{self.name} is admitted a second time")
            step["has_running"] = False
        if self.starting:
            self.found = None
        if not (new or hit or given["num_external_computed_tokens"]):
            step["expect"] = {"error": "value"}
        return step

    def allocated(self, step: ScenarioStep, hit: int, added: KVCacheBlocks | None) -> None:
        """Called with the answer ``added`` of ``allocate_slots``; if granted, ``hit`` tokens were adopted."""
        if added is None:
            step["expect"] = {"refused": True}
            return
        step["expect"] = {"new_blocks": list(added.get_block_ids())}
        self.computed += hit + int(step.get("external_tokens", 0)) + int(step["new_tokens"])
        self.starting, self.loading = False, bool(step.get("delay_cache", False))

    def load_done(self, num_tokens: int) -> ScenarioStep:
        if not self.loading or num_tokens != self.computed:
            raise InexpressibleError(f"{self.name} gets keys for {num_tokens} tokens outside of a load")
        self.computed -= int(self.computed == self.num_tokens)
        self.starting, self.loading = True, False
        return {"do": "load_done", "request": self.name}
