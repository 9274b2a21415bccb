"""Token counts that a caller of the cache manager may give."""

from __future__ import annotations

from kvhybrid.cache.coordinators.allocation import Allocation
from kvhybrid.cache.coordinators.request_tables import RequestTables
from kvhybrid.cache.request import Request


def check_count(name: str, found: int, most: int | None) -> None:
    """ValueError unless ``found`` lies between 0 and ``most``, or is at least 0 if ``most`` is None."""
    if found < 0 or (most is not None and found > most):
        accepted = "at least 0" if most is None else f"0 to {max(most, 0)}"
        raise ValueError(f"{name} = {found}; accepted: {accepted}")


def allocation_of(
    request: Request,
    held: RequestTables | None,
    longest: int,
    new: int,
    hit: int,
    external: int,
    lookahead: int,
    encoder: int,
    delay_cache_blocks: bool,
    reserved_blocks: int,
) -> Allocation:
    """The allocation that a call for slots with these token counts asks for.

    Args:
        held: What the request holds; None for an admission.
        longest: Tokens of the longest request.

    Raises:
        ValueError: A count is out of range.
        TypeError: A count is not an integer.
    """
    start = request.num_computed_tokens
    before = start + hit + external
    after = before + new
    if (
        # Negative if one of them is; raises TypeError if one is not an integer.
        (start | hit | external | lookahead | encoder | reserved_blocks | request.num_in_flight_tokens) < 0
        or start > (held.step_end if held is not None else 0)
        or (new < 0 and after < request.num_tokens)
        or (after | 0) > longest
        or lookahead > longest
        or encoder > request.num_encoder_tokens
        or (hit and held is not None)
    ):
        _refuse(request, held, longest, (new, hit, external, lookahead, encoder), reserved_blocks)
    return Allocation(
        before,
        after,
        min(after + lookahead, longest),
        0 if delay_cache_blocks else min(after, request.num_tokens),
        hit,
        held is None and external > 0,
        encoder,
    )


def _refuse(
    request: Request,
    held: RequestTables | None,
    longest: int,
    counts: tuple[int, int, int, int, int],
    reserved_blocks: int,
) -> None:
    """ValueError for the first count that is out of range: new, hit, external, look-ahead and encoder tokens."""
    new, hit, external, lookahead, encoder = counts
    computed = held.step_end if held is not None else 0
    before = request.num_computed_tokens + hit + external
    limits: dict[str, tuple[int, int | None]] = {
        "num_computed_tokens": (request.num_computed_tokens, computed),
        "num_in_flight_tokens": (request.num_in_flight_tokens, None),
        "num_new_computed_tokens": (hit, 0 if computed else request.num_tokens - 1),
        "num_external_computed_tokens": (external, longest - before + external),
        "num_new_tokens": (new, longest - before),
        "num_lookahead_tokens": (lookahead, longest),
        "num_encoder_tokens": (encoder, request.num_encoder_tokens),
        "reserved_blocks": (reserved_blocks, None),
    }
    for name, (found, most) in limits.items():
        check_count(f"request {request.request_id!r}: {name}", found, most)
