"""New names for token ids, so that a recording shows which prefixes are equal and nothing of the prompts."""

from __future__ import annotations

from collections.abc import Sequence

from kvhybrid.cache.request import Request


class TokenNames:
    """Gives a token a number that stands for the whole prefix up to it.

    Equal prefixes get equal numbers and different ones different numbers, so that every prefix key of a replay
    is shared exactly where the recorded one was. A prompt that nobody sent before is one run of numbers. Media
    content counts as part of the tokens that it covers.
    """

    def __init__(self) -> None:
        self._children: dict[tuple[int, object], int] = {}

    def extend(self, last: int, request: Request, start: int) -> list[int]:
        """The names of ``request``'s tokens from ``start`` on; ``last`` is the name before them, 0 for none."""
        children, names = self._children, []
        covered = self._covered(request) if request.extra_keys.media else {}
        for position in range(start, request.num_tokens):
            token: object = request.token_ids[position]
            if position in covered:
                token = (token, *covered[position])
            last = children.setdefault((last, token), len(children) + 1)
            names.append(last)
        return names

    @staticmethod
    def _covered(request: Request) -> dict[int, list[tuple[str, int]]]:
        """By position, the media there and how far into them it lies."""
        covered: dict[int, list[tuple[str, int]]] = {}
        for item in request.extra_keys.media:
            for offset in range(item.length):
                covered.setdefault(item.start + offset, []).append((item.content_hash, offset))
        return covered


def runs_of(names: Sequence[int]) -> list[list[int]]:
    """``[[first, count], …]``."""
    runs: list[list[int]] = []
    for name in names:
        if runs and name == sum(runs[-1]):
            runs[-1][1] += 1
        else:
            runs.append([name, 1])
    return runs
