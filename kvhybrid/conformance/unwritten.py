"""Tracks states that have a key but are written only in the current step: no request may start from these yet."""

from __future__ import annotations

from collections.abc import Set

from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.conformance.pool_keys import keys_of
from kvhybrid.conformance.violation import Violation
from kvhybrid.scenarios.form import ScenarioStep
from kvhybrid.scenarios.player import Answer
from kvhybrid.specs import registry

CHECK = "invariants"


class UnwrittenStates:
    """Tracks the state groups of the specs under test in one cache manager."""

    def __init__(self, manager: KVCacheManager, kinds: Set[str]) -> None:
        self._pool = manager.block_pool
        self._groups = [
            g
            for g, group in enumerate(manager.config.groups)
            if group.spec.state and registry.name_of(type(group.spec)) in kinds
        ]
        self._keyed: set[tuple[int, int]] = set()
        self._blocks: set[int] = set()

    def see(self, step: ScenarioStep, answer: Answer, lookup: Answer) -> None:
        """Check a call; ``lookup`` is the answer of the look-up whose hit it adopts, or empty.

        Raises:
            Violation: The call starts a request from a state that is only written in the current step.
        """
        if not self._groups:
            return
        if "new_blocks" in answer and lookup.get("hit_tokens"):
            for g in self._groups:
                block = lookup["hit_blocks"][g][-1]
                if block in self._blocks:
                    raise Violation(
                        CHECK,
                        f"allocate {step['request']!r} adopts block {block} before its state is written",
                        {"refused": True},
                    )
        if step["do"] == "new_step":
            self._blocks.clear()
        keyed = self._keyed_now()
        if step["do"] == "allocate":
            self._blocks.update(block for block, _ in keyed - self._keyed)
        self._keyed = keyed

    def _keyed_now(self) -> set[tuple[int, int]]:
        held = keys_of(self._pool).held
        return {(block, numbers[0]) for block, (group, numbers) in held.items() if group in self._groups}
