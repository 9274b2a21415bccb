"""A trace in Mooncake's format, as prompts with keys. Only the standard library."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from itertools import chain, islice

from runs.speed.works import BLOCK

PART = 512
"""Tokens of one id of the trace."""


@dataclass(frozen=True)
class Prompt:
    """One request of a trace."""

    request_id: str
    num_tokens: int
    num_output_tokens: int
    ids: tuple[int, ...]
    keys: tuple[bytes, ...]
    """One for each full block."""

    def tokens(self) -> list[int]:
        """Token ids that are equal where the trace's ids are."""
        parts = (range(i * PART, (i + 1) * PART) for i in self.ids)
        return list(islice(chain.from_iterable(parts), self.num_tokens))


@cache
def block_keys(name: str, count: int) -> tuple[bytes, ...]:
    """``count`` keys that no other name has."""
    return tuple(sha256(f"{name}:{block}".encode()).digest() for block in range(count))


def own_copies(keys: Sequence[bytes]) -> list[bytes]:
    """Equal keys that are other objects, as those of another request are: finding them takes a comparison."""
    return [bytes(bytearray(key)) for key in keys]


def read_trace(path: str, limit: int | None) -> list[Prompt]:
    """The first ``limit`` requests. An id of the trace identifies a whole prefix, so that its blocks' keys follow
    from the id alone."""
    prompts: list[Prompt] = []
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(islice(lines, limit)):
            entry = json.loads(line)
            ids, length = tuple(entry["hash_ids"]), entry["input_length"]
            keys = chain.from_iterable(block_keys(str(i), PART // BLOCK) for i in ids)
            full = tuple(islice(keys, length // BLOCK))
            prompts.append(Prompt(f"r{number}", length, entry["output_length"], ids, full))
    return prompts
