"""Upper bounds of a replay's hit rate, for its settings and its trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.replay.bounds import LEVELS
from kvhybrid.replay.bounds.belady import units_hit
from kvhybrid.replay.bounds.optimum import optimal_tokens
from kvhybrid.replay.bounds.references import References
from kvhybrid.replay.bounds.relaxation import capacity_in_units
from kvhybrid.replay.trace import TraceRequest
from kvhybrid.sessions.replay_settings import ReplaySettings


def hit_rate_bounds(
    settings: ReplaySettings, requests: Sequence[TraceRequest], cache: KVCacheManager
) -> Mapping[str, float]:
    """The bounds up to ``settings.bounds`` that apply: by name, a hit rate from 0 to 1.

    All of them hold if requests run one at a time, in the order of the trace. For other arrival processes, there
    are none: a request may then hit blocks of another one that is not finished, in an order that the trace does
    not tell.
    """
    level = LEVELS.index(settings.bounds)
    if not level or not settings.executor.one_at_a_time or not cache.enable_caching:
        return {}
    unit, part = cache.coordinator.alignment, settings.trace.part_tokens
    config = cache.config
    references = References.of_requests(requests, unit, part)
    tokens = {"unlimited": references.hit_tokens(units_hit(references, None))}
    if level >= LEVELS.index("min"):
        capacity = capacity_in_units(config, unit)
        tokens["min"] = references.hit_tokens(units_hit(references, capacity))
    if level >= LEVELS.index("optimum"):
        tokens["optimum"] = optimal_tokens(config, requests, unit, part)
    asked = int(references.tokens.sum())
    return {name: found / asked for name, found in tokens.items()}
