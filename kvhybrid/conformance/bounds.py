"""Checks the admission bound against the most blocks that any step touches."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from kvhybrid.conformance.subject import size_of, spec_text
from kvhybrid.conformance.violation import Violation
from kvhybrid.specs import KVCacheSpec

CHECK = "bound"
CASES = 16
"""Pairs of in-flight tokens and maximum length to try, per spec."""


@dataclass(frozen=True)
class Tightness:
    """How tight the bound is."""

    cases: int = 0
    exact: int = 0
    loosest: str = ""
    excess: int = 0

    def __add__(self, other: Tightness) -> Tightness:
        looser = max(self, other, key=lambda item: item.excess)
        return Tightness(self.cases + other.cases, self.exact + other.exact, looser.loosest, looser.excess)


def check_bound(spec: KVCacheSpec, rng: Random) -> Tightness:
    """Compare ``admission_blocks`` with brute force on random lengths.

    Raises:
        Violation: The bound is below what a step touches.
    """
    total = Tightness()
    longest = min(max(6 * spec.block_size, 2 * size_of(spec)), 48 if spec.state else 1024)
    for _ in range(CASES):
        length = rng.randint(1, longest)
        in_flight = rng.choice(
            (1, rng.randint(1, length), rng.randint(1, spec.block_size + 1), length, 2 * length)
        )
        bound, most = spec.admission_blocks(in_flight, length), most_touched(spec, in_flight, length)
        answer = f"{spec_text(spec)}: admission_blocks({in_flight}, {length}) = {bound}"
        if bound < most:
            raise Violation(CHECK, f"{answer}, but a step touches {most} blocks")
        total += Tightness(1, int(bound == most), f"{answer}, {most} would do", bound - most)
    check_cycle(spec, longest)
    return total


def check_cycle(spec: KVCacheSpec, length: int) -> None:
    """Compare ``release_cycle``, if the spec has one, with brute force up to ``length`` tokens.

    Raises:
        Violation: A step that starts one token later touches fewer blocks, away from the cycle's phase.
    """
    cycle = spec.release_cycle(spec.block_size)
    if cycle is None or spec.prefix:
        return
    period, phase = cycle
    for in_flight in (1, spec.block_size, spec.block_size + 1, length // 2 + 1):
        for n in range(1, length - in_flight):
            now, later = (spec.step_blocks(p, p + in_flight, spec.block_size) for p in (n, n + 1))
            if later < now and n % period != phase:
                raise Violation(
                    CHECK,
                    f"{spec_text(spec)}: release_cycle = ({period}, {phase}), but steps of {in_flight} tokens "
                    f"touch {now} blocks from {n} and {later} from {n + 1}",
                )


def most_touched(spec: KVCacheSpec, in_flight: int, length: int) -> int:
    """The most blocks that a step of at most ``in_flight`` tokens within ``length`` reads or writes."""
    size = spec.block_size
    if spec.source == "encoder":
        return -(-length // size)
    kept = [_blocks(spec, p) for p in range(length + 1)]
    most = 0
    for n in range(length):
        last = min(n + in_flight, length)
        if spec.state:
            most = max(most, *(len(kept[n] | kept[m]) for m in range(n + 1, last + 1)))
        else:
            most = max(most, len(kept[n].union(range(n // size, -(-last // size)))))
    return most


def _blocks(spec: KVCacheSpec, p: int) -> set[int]:
    size = spec.block_size
    return {
        j for part in spec.live(p) if len(part) for j in range(part.start // size, (part.stop - 1) // size + 1)
    }
