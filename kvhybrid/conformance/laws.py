"""Checks the two laws of a live set: it is below its position, and a dead position stays dead."""

from __future__ import annotations

from collections.abc import Sequence

from kvhybrid.conformance.subject import size_of, spec_text
from kvhybrid.conformance.violation import Violation
from kvhybrid.specs import KVCacheSpec

CHECK = "live set"
FEWEST, MOST = 128, 4096
"""Maximum number of positions to try."""


def check_live_set(spec: KVCacheSpec) -> int:
    """Try every position up to a few times the spec's size. Returns the number of positions.

    Raises:
        Violation: A law is broken.
    """
    count = min(max(FEWEST, 4 * size_of(spec)), MOST)
    before: tuple[range, ...] = ()
    for p in range(count):
        parts = spec.live(p)
        _check_form(spec, p, parts)
        if spec.live(p) != parts:
            raise Violation(CHECK, f"{spec_text(spec)}: live({p}) differs when it is called again")
        if spec.prefix and not _is_prefix(parts, p):
            raise Violation(
                CHECK, f"{spec_text(spec)}: declares prefix = True, but live({p}) = {parts} is not all of [0, {p})"
            )
        risen = first_outside(parts, before, below=p - 1)
        if risen is not None:
            raise Violation(
                CHECK, f"{spec_text(spec)}: position {risen} is dead at {p - 1} and alive again at {p}"
            )
        before = parts
    return count


def first_outside(parts: Sequence[range], covering: Sequence[range], below: int) -> int | None:
    """The first position in ``parts`` that is below ``below`` and in none of ``covering``; both are ascending."""
    for part in parts:
        j = part.start
        while j < min(part.stop, below):
            cover = next((c for c in covering if c.start <= j < c.stop), None)
            if cover is None:
                return j
            j = cover.stop
    return None


def _check_form(spec: KVCacheSpec, p: int, parts: object) -> None:
    answer = f"{spec_text(spec)}: live({p}) = {parts}"
    if not isinstance(parts, tuple) or not all(isinstance(part, range) and part.step == 1 for part in parts):
        raise Violation(CHECK, f"{answer}; accepted: a tuple of ranges with step 1")
    end = 0
    for part in parts:
        if not len(part):
            continue
        if part.start < 0 or part.stop > p:
            outside = part.start if part.start < 0 else part.stop - 1
            raise Violation(CHECK, f"{answer} holds {outside}, which does not lie in [0, {p})")
        if part.start < end:
            raise Violation(CHECK, f"{answer}: its ranges overlap or do not ascend")
        end = part.stop


def _is_prefix(parts: Sequence[range], p: int) -> bool:
    return first_outside((range(p),), parts, below=p) is None
