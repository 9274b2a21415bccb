"""The interface of specs, which describe what a layer keeps by its live set and its page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, ClassVar, Literal

from kvhybrid.specs.dtypes import dtype_bytes


@dataclass(frozen=True)
class PagePart:
    """One array inside a layer's page, e.g. the keys of a block: its name, shape and dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * dtype_bytes(self.dtype)


@dataclass(frozen=True, kw_only=True)
class KVCacheSpec:
    """What one layer keeps of a sequence, in blocks of ``block_size`` tokens.

    A new kind of spec is a frozen dataclass with two methods: `live`, the earlier positions that a token still
    reads, and `page_parts`, the arrays of one block. All decisions of the cache manager follow from these and from
    the class variables below.

    ``live`` obeys two laws, which ``kvhybrid check-spec`` tests. A token reads only earlier positions. And a
    position that a token no longer reads is not read by any later token either.
    """

    block_size: int
    """Tokens per block."""
    padded_page_bytes: int | None = None
    """Bytes of a page if planning has padded it to the size of another group's pages."""

    kind: ClassVar[str] = ""
    """The name under which the spec is registered."""
    manager: ClassVar[str | type[Any] | None] = None
    """The manager of its blocks: a registered name, ``module:Class`` or a class. None: the manager registered
    under ``kind``, or else the generic one."""
    state: ClassVar[bool] = False
    """Whether the layer keeps one state, which every step overwrites, instead of an entry per token."""
    cacheable: ClassVar[bool] = True
    """Whether blocks can get a key and be hit by later requests."""
    source: ClassVar[Literal["decoder", "encoder"]] = "decoder"
    """Whose tokens the blocks hold. Blocks for encoder tokens are allocated once, when the request is admitted."""
    retained: ClassVar[bool] = False
    """Whether a retention policy may limit which blocks stay reusable."""
    prefix: ClassVar[bool] = False
    """Whether ``live(p)`` is all of ``[0, p)``: a miss then rules out every longer hit, so such groups are
    searched first."""
    sub_block: ClassVar[bool] = False
    """Whether a hit may end inside a block of this spec; the reader then gets a copy of that block."""
    sharded: ClassVar[bool] = True
    """Whether context parallelism splits the tokens of a block over ranks, so that a block covers more of them."""
    context_parallel: ClassVar[bool] = False
    """Whether context parallelism is supported, either sharded or with a full copy on every rank."""

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise ValueError(f"{type(self).__name__}: block_size must be at least 1, found {self.block_size}")
        if self.padded_page_bytes is not None and self.padded_page_bytes < self.unpadded_page_bytes:
            raise ValueError(
                f"{type(self).__name__}: padded_page_bytes {self.padded_page_bytes} is less than "
                f"the {self.unpadded_page_bytes} bytes of the page itself"
            )

    def live(self, p: int) -> tuple[range, ...]:
        """The positions that the token at position ``p`` reads: disjoint ascending ranges below ``p``."""
        raise NotImplementedError

    def page_parts(self) -> tuple[PagePart, ...]:
        """The arrays that make up one block of one layer, in their order in the page."""
        raise NotImplementedError

    @property
    def unpadded_page_bytes(self) -> int:
        return sum(part.num_bytes for part in self.page_parts())

    @property
    def page_bytes(self) -> int:
        """Bytes of one block of one layer."""
        return self.padded_page_bytes or self.unpadded_page_bytes

    def live_blocks(self, p: int, block_size: int | None = None) -> Iterator[range]:
        """The block indices that `live` touches at ``p``: disjoint ascending ranges."""
        size = block_size or self.block_size
        end = 0
        for part in self.live(p):
            if len(part):
                start = max(end, part.start // size)
                end = (part.stop - 1) // size + 1
                if start < end:
                    yield range(start, end)

    def step_blocks(self, n: int, m: int, block_size: int | None = None) -> int:
        """How many blocks a step from ``n`` to ``m`` tokens reads or writes."""
        size = block_size or self.block_size
        if self.state:
            read = {j for blocks in self.live_blocks(n, size) for j in blocks}
            return len(read.union(*self.live_blocks(m, size)))
        first = n // size
        below = sum(len(range(blocks.start, min(blocks.stop, first))) for blocks in self.live_blocks(n, size))
        return below + -(-m // size) - first

    def release_cycle(self, block_size: int) -> tuple[int, int] | None:
        """``(period, phase)`` if blocks become dead only between ``n`` and ``n + 1`` tokens with
        ``n % period == phase``, in a pattern that repeats every ``lcm(period, block_size)`` tokens; else None.

        Steps that start there hold the most blocks, so the whole-request check tries these. For a spec without a
        cycle, it uses `admission_blocks`, which may be more than the request ever holds.
        """
        return None

    def admission_blocks(
        self, max_in_flight_tokens: int, max_model_len: int, block_size: int | None = None
    ) -> int:
        """The most blocks that one request of ``max_model_len`` tokens ever holds at once.

        Planning and admission both use this bound; with different ones, a request that cannot finish could be
        admitted, or one that can be refused (vllm#39734). This default tries every step; built-in specs have
        formulas, which the tests compare with it.
        """
        return _most_blocks(self, max_in_flight_tokens, max_model_len, block_size or self.block_size)


PAIRS_TRIED_UP_TO = 1024
"""Up to this request length, in tokens, all steps of a state are tried."""


@lru_cache(maxsize=256)
def _most_blocks(spec: KVCacheSpec, in_flight: int, max_len: int, block_size: int) -> int:
    if spec.state:
        return _most_state_blocks(spec, max(in_flight, 1), max_len, block_size)
    return max(
        (
            spec.step_blocks(n, min(n + max(in_flight, 1), max_len), block_size)
            for n in range(max(max_len - in_flight, 0) + 1)
        ),
        default=0,
    )


def _most_state_blocks(spec: KVCacheSpec, in_flight: int, max_len: int, block_size: int) -> int:
    """Like `_most_blocks`, but over steps of every length: a step only writes the state at its end, so a short
    step may touch more blocks than a long one. For long requests, for which trying all pairs would take hours, it
    is the upper bound of twice the largest live set."""
    kept = [{j for blocks in spec.live_blocks(p, block_size) for j in blocks} for p in range(max_len + 1)]
    bound = min(2 * max(map(len, kept)), -(-max_len // block_size))
    if max_len > PAIRS_TRIED_UP_TO:
        return bound
    most = 0
    for n in range(max_len):
        for m in range(n + 1, min(n + in_flight, max_len) + 1):
            most = max(most, len(kept[n] | kept[m]))
            if most == bound:
                return most
    return most


class SuffixSpec(KVCacheSpec):
    """A spec whose live set is one range that ends at ``p``: ``[first(p), p)``, ``first`` never decreasing."""

    def first(self, p: int) -> int:
        """The lowest position that the token at ``p`` reads."""
        raise NotImplementedError

    def live(self, p: int) -> tuple[range, ...]:
        return (range(self.first(p), p),)

    def step_blocks(self, n: int, m: int, block_size: int | None = None) -> int:
        size = block_size or self.block_size
        if self.state:
            return super().step_blocks(n, m, size)
        return -(-m // size) - min(self.first(n), n) // size


@dataclass(frozen=True, kw_only=True)
class AttentionSpec(KVCacheSpec):
    """Keys and values of every token in the block."""

    num_kv_heads: int = 1
    head_size: int = 1
    head_size_v: int | None = None
    """Size of a value head, if it differs from that of a key head."""
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("num_kv_heads", 1), ("head_size", 1), ("head_size_v", 0)):
            found = getattr(self, name)
            if found is not None and found < least:
                raise ValueError(f"{type(self).__name__}: {name} must be at least {least}, found {found}")

    def page_parts(self) -> tuple[PagePart, ...]:
        """Keys ``k_BHD`` and values ``v_BHD`` (B tokens, H key/value heads, D head size)."""
        value_size = self.head_size if self.head_size_v is None else self.head_size_v
        shape = (self.block_size, self.num_kv_heads)
        return (
            PagePart("k", (*shape, self.head_size), self.dtype),
            PagePart("v", (*shape, value_size), self.dtype),
        )
