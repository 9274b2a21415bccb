"""Runs all checks in order and yields a finding for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TypeAlias, TypeVar

from kvhybrid.conformance.bounds import CHECK as BOUND
from kvhybrid.conformance.bounds import Tightness, check_bound
from kvhybrid.conformance.invariants import CHECK as INVARIANTS
from kvhybrid.conformance.laws import CHECK as LIVE_SET
from kvhybrid.conformance.laws import check_live_set
from kvhybrid.conformance.oracle import CHECK as HITS
from kvhybrid.conformance.pages import NAME, PAGE, VALUE, check_name, check_page, check_value
from kvhybrid.conformance.records import CHECK as RECORDS
from kvhybrid.conformance.shrink import Failing, shrink
from kvhybrid.conformance.stage import Tally
from kvhybrid.conformance.subject import Subject, spec_text
from kvhybrid.conformance.traffic import Traffic, draw_config
from kvhybrid.conformance.twin import EXCEPTIONS, MANAGER, Twins
from kvhybrid.conformance.violation import Violation, guarded
from kvhybrid.managers.base import SingleTypeKVCacheManager
from kvhybrid.managers.registry import manager_of
from kvhybrid.scenarios.form import ScenarioError
from kvhybrid.specs import KVCacheSpec, registry

Result = TypeVar("Result")
Check: TypeAlias = Callable[[KVCacheSpec], Result]
LONGEST = 90
"""Actions per scenario."""
PLAYED = (MANAGER, HITS, INVARIANTS, RECORDS, EXCEPTIONS)
"""The checks that every step of the traffic is subject to."""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    check: str
    text: str
    passed: bool | None
    """None if the check was not completed."""
    failing: Failing | None = None


def examine(subject: Subject, seed: int, count: int) -> Iterator[Finding]:
    """Check ``subject``: first its specs alone, then its manager in ``count`` random scenarios."""
    static = [_live_set(subject), _page(subject), _value(subject), _name(subject), _bound(subject, seed)]
    yield from static
    broken = [finding.check for finding in static if not finding.passed]
    if broken:
        reason = f"skipped, since it depends on: {', '.join(broken)}"
        yield from (Finding(check, reason, None) for check in PLAYED)
    else:
        yield from _traffic(subject, seed, count)


# ---- the specs alone


def _each(check: str, subject: Subject, call: Check[Result]) -> tuple[list[Result], Finding | None]:
    """Run ``call`` for every spec; returns the results, and a finding if a spec breaks the contract."""
    results: list[Result] = []
    for spec in subject.specs:
        try:
            results.append(guarded(check, spec_text(spec), partial(call, spec)))
        except Violation as violation:
            return results, Finding(check, violation.text, False)
    return results, None


def _live_set(subject: Subject) -> Finding:
    positions, broken = _each(LIVE_SET, subject, check_live_set)
    text = f"below p, ascending, and dead stays dead: {_specs(subject)}, {sum(positions):,} positions"
    return broken or Finding(LIVE_SET, text, True)


def _page(subject: Subject) -> Finding:
    _, broken = _each(PAGE, subject, check_page)
    return broken or Finding(PAGE, "its parts add up, follow the block size, and can be padded", True)


def _value(subject: Subject) -> Finding:
    _, broken = _each(VALUE, subject, check_value)
    return broken or Finding(VALUE, "frozen, hashable, equal exactly when every field is", True)


def _name(subject: Subject) -> Finding:
    names, broken = _each(NAME, subject, check_name)
    found = ", ".join(repr(name) for name in dict.fromkeys(names))
    return broken or Finding(NAME, f"registered as {found}", True)


def _bound(subject: Subject, seed: int) -> Finding:
    rng = Random(f"{seed} bound")
    cases, broken = _each(BOUND, subject, lambda spec: check_bound(spec, rng))
    total = sum(cases, Tightness())
    text = f"never below brute force: {total.cases} cases, {total.exact} of them exact"
    if total.excess:
        text += f"; above it by up to {total.excess}, which only costs room: {total.loosest}"
    return broken or Finding(BOUND, text, True)


def _specs(subject: Subject) -> str:
    return f"{len(subject.specs)} specs" if len(subject.specs) > 1 else "1 spec"


# ---- the specs in a cache


def _traffic(subject: Subject, seed: int, count: int) -> Iterator[Finding]:
    kinds = frozenset(registry.name_of(type(spec)) for spec in subject.specs)
    total = Tally()
    for number in range(count):
        failing = _play_one(subject, kinds, Random(f"{seed} {number}"), total)
        if failing is not None:
            smallest = shrink(failing, kinds)
            found = smallest.violation
            for check in PLAYED:
                if check == found.check:
                    yield Finding(check, found.text, False, smallest)
                else:
                    yield Finding(check, f"ended by the failure in scenario {number + 1} of {count}", None)
            return
    yield Finding(MANAGER, f"{_twins(subject)}: {count} scenarios, {total.calls:,} calls", True)
    yield Finding(HITS, f"equal brute force: {total.lookups:,} look-ups, {total.hits:,} of them with a hit", True)
    yield Finding(INVARIANTS, f"hold after every call, {total.refusals:,} refusals among them", True)
    yield Finding(RECORDS, "causes add up, events give the cached keys, evictions are timed", True)
    yield Finding(EXCEPTIONS, "none", True)


def _twins(subject: Subject) -> str:
    managers = {manager_of(type(spec)) for spec in subject.specs}
    if managers == {SingleTypeKVCacheManager}:
        return "the generic manager serves"
    return "answers and state equal the generic manager's"


def _play_one(subject: Subject, kinds: frozenset[str], rng: Random, total: Tally) -> Failing | None:
    spec = rng.choice(subject.specs)
    twins: Twins | None = None
    while twins is None:
        config = draw_config(spec, registry.name_of(type(spec)), rng)
        try:
            twins = Twins(config, kinds)
        except ScenarioError:
            continue
        except Violation as violation:
            return Failing(config, [], violation)
    try:
        Traffic(twins, rng).run(rng.randint(10, LONGEST))
    except Violation as violation:
        return Failing(config, twins.steps, violation)
    total.add(twins.tally)
    return None
