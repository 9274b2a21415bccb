"""Renames token ids, so that a recording shows which prefixes are equal but not the prompts."""

from __future__ import annotations

from collections.abc import Sequence

from kvhybrid.cache.request import Request


class TokenNames:
    """Renames each token to a number that identifies the whole prefix up to it.

    Equal prefixes get equal numbers and different prefixes different ones, so prefix keys are equal in a replay
    exactly if they were equal in the recording. A prompt without a known prefix becomes one run of numbers. Media
    content counts as part of the tokens that it covers.
    """

    def __init__(self) -> None:
        self._children: dict[tuple[int, object], int] = {}

    def extend(self, last: int, request: Request, start: int) -> list[int]:
        """The names of ``request``'s tokens from ``start``; ``last`` is the preceding name, 0 for none."""
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
        """By position, the media items that cover it and the offset into each."""
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
