"""Token counts that a caller of the cache manager may give."""

from __future__ import annotations

from kvhybrid.cache.request import Request


def check_count(name: str, found: int, most: int | None) -> None:
    """ValueError unless ``found`` lies between 0 and ``most``, or is at least 0 if ``most`` is None."""
    if found < 0 or (most is not None and found > most):
        accepted = "at least 0" if most is None else f"0 to {max(most, 0)}"
        raise ValueError(f"{name} = {found}; accepted: {accepted}")


def refuse_counts(
    request: Request, computed: int, longest: int, counts: tuple[int, int, int, int, int], reserved_blocks: int
) -> None:
    """ValueError for the first count of an allocation that cannot be.

    Args:
        computed: Tokens of the request that have entries.
        longest: Tokens of the longest request.
        counts: New, hit, external, look-ahead and encoder tokens.
    """
    new, hit, external, lookahead, encoder = counts
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
