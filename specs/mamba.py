"""Mamba and other recurrent layers: one state summarizes all earlier tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvhybrid.specs.base import PagePart, SuffixSpec


@dataclass(frozen=True, kw_only=True)
class MambaSpec(SuffixSpec):
    """``live(p) = [p - 1, p)``: the state after token ``p - 1``, which is stored in that token's block.

    Block ``j`` holds the state after one of its tokens. A state at the end of a block can be reused by other
    requests.
    """

    shapes: tuple[tuple[int, ...], ...] = ((1,),)
    """Shapes of the state's arrays, e.g. conv ``(channels, width - 1)`` and ssm ``(channels, state)``."""
    dtypes: tuple[str, ...] = ("float32",)
    names: tuple[str, ...] = ()
    """Names of the arrays; ``state0``, ``state1``, … by default."""

    kind: ClassVar[str] = "mamba"
    state: ClassVar[bool] = True
    retained: ClassVar[bool] = True
    sub_block: ClassVar[bool] = True
    sharded: ClassVar[bool] = False
    context_parallel: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.shapes) != len(self.dtypes) or (self.names and len(self.names) != len(self.shapes)):
            raise ValueError(
                f"{type(self).__name__}: {len(self.shapes)} shapes, {len(self.dtypes)} dtypes and "
                f"{len(self.names)} names; their numbers must be equal"
            )
        for shape in self.shapes:
            if not shape or not all(type(size) is int and size >= 1 for size in shape):
                raise ValueError(
                    f"{type(self).__name__}: a shape must consist of integers of at least 1, found {shape}"
                )

    def first(self, p: int) -> int:
        return max(0, p - 1)

    def page_parts(self) -> tuple[PagePart, ...]:
        names = self.names or tuple(f"state{i}" for i in range(len(self.shapes)))
        return tuple(PagePart(*part) for part in zip(names, self.shapes, self.dtypes, strict=True))

    def release_cycle(self, block_size: int) -> tuple[int, int] | None:
        return block_size, 0

    def admission_blocks(
        self, max_in_flight_tokens: int, max_model_len: int, block_size: int | None = None
    ) -> int:
        """2, for the states that a step reads and writes; 1 if every request fits in one block."""
        return min(2, -(-max_model_len // (block_size or self.block_size)))


@dataclass(frozen=True, kw_only=True)
class PrivateStateSpec(MambaSpec):
    """A recurrent state that no other request can resume from: there is no prefix caching for it.

    Planning gives it one block that covers the longest request, so a request holds exactly one state.
    """

    kind: ClassVar[str] = "private_state"
    state: ClassVar[bool] = False
    cacheable: ClassVar[bool] = False
    retained: ClassVar[bool] = False
    sub_block: ClassVar[bool] = False

    def admission_blocks(
        self, max_in_flight_tokens: int, max_model_len: int, block_size: int | None = None
    ) -> int:
        """``⌈L / B⌉``, not capped at 2; it is 1 once planning has set the block size."""
        return -(-max_model_len // (block_size or self.block_size))
