"""Hashing: the keys of one long prompt, or of all prompts of a trace."""

from __future__ import annotations

from collections.abc import Iterator
from time import process_time

from runs.speed.side import ManagerSide, Run, repeated, settle_heap
from runs.speed.trace import read_trace
from runs.speed.works import BLOCK, Size


def hash_prompt(side: ManagerSide, size: Size) -> Iterator[Run]:
    """One prompt of ``size.prompt_blocks`` blocks."""
    tokens = [(7 * i) % 128_000 for i in range(size.prompt_blocks * BLOCK)]
    return _hashed(side, [tokens] * size.repeats)


def hash_trace(side: ManagerSide, size: Size) -> Iterator[Run]:
    """Every prompt of the trace, from its first token on."""
    return _hashed(side, [prompt.tokens() for prompt in read_trace(size.trace, size.requests)])


def _hashed(side: ManagerSide, prompts: list[list[int]]) -> Iterator[Run]:
    hashed = side.hasher()

    def run() -> Run:
        requests = [side.token_request(f"r{i}", tokens) for i, tokens in enumerate(prompts)]
        settle_heap()
        began = process_time()
        for request in requests:
            hashed(request)
        seconds = process_time() - began
        counts = [len(request.block_hashes) for request in requests]
        return Run({"hash": seconds}, {"hash": sum(counts)}, counts)

    return repeated(run)
