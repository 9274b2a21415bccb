"""What is measured: models as groups of layers, and the names of the works. Only the standard library, since the
workers of the peers import this file in environments of their own."""

from __future__ import annotations

from dataclasses import dataclass

BLOCK = 16
"""Tokens per block, of every group of every work."""
MAX_MODEL_LEN = 1 << 20


@dataclass(frozen=True)
class Group:
    """Layers that share a block table."""

    kind: str
    """``full``, ``window``, ``chunk`` or ``state``."""
    reach: int = 0
    """Tokens of the window or of the chunk."""


FULL = Group("full")
STATE = Group("state")

MODELS: dict[str, tuple[Group, ...]] = {
    "llama": (FULL,),
    "gemma3": (FULL, *(Group("window", 1024),) * 6),
    "jamba": (FULL, *(STATE,) * 7),
    "llama4": (FULL, *(Group("chunk", 8192),) * 3),
}
"""Llama; Gemma 3 27B: 10 full and 52 window layers; Jamba: 4 attention and 28 Mamba layers; Llama 4 Scout: 12 full
and 36 chunked layers."""


@dataclass(frozen=True)
class Size:
    """How much of a work is done."""

    trace: str = ""
    """A file in Mooncake's format, for the works that replay one."""
    requests: int = 500
    blocks: int = 60_000
    decode_steps: int = 16
    live: int = 32
    """Requests that hold their blocks at the same time."""
    prompt_blocks: int = 8192
    batch: int = 256
    repeats: int = 5
    """How often a short call is made in one run."""
    parts: int = 7
    """Parts of the trace that goes through the scheduler; each is one run."""
    budget: int = 8192
    """Tokens in a step of the scheduler."""
    pool_blocks: int = 1_000_000
    """Blocks of the empty pool whose memory is measured."""
