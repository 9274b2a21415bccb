"""One call for slots: its token counts, the blocks that it must leave free, and why it may be refused."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple


class Refusal(Enum):
    """Why a request got no slots. The values are the names in `CacheStats.refusals_by_reason`."""

    NO_BLOCKS = "no_blocks"
    """Too few blocks are free for this step."""
    WHOLE_REQUEST = "whole_request"
    """The step would fit, but not the whole request, as the caller wanted."""
    NOT_WRITTEN_YET = "not_written_yet"
    """The hit is in blocks that only the current step's forward pass writes."""


class Allocation:
    """Token counts of one call for slots."""

    __slots__ = (
        "encoder_tokens",
        "hit_tokens",
        "keyable_tokens",
        "loads",
        "slots",
        "tokens_after",
        "tokens_before",
    )

    def __init__(
        self,
        tokens_before: int,
        tokens_after: int,
        slots: int,
        keyable_tokens: int,
        hit_tokens: int,
        loads: bool,
        encoder_tokens: int,
    ) -> None:
        self.tokens_before: Final = tokens_before
        """Tokens that have entries before the step: computed, adopted and loaded from outside."""
        self.tokens_after: Final = tokens_after
        """Tokens that have entries after the step."""
        self.slots: Final = slots
        """Tokens that need a slot: ``tokens_after`` and the look-ahead, at most the longest request."""
        self.keyable_tokens: Final = keyable_tokens
        """Tokens of the request whose blocks may get keys: neither drafts nor what is still being loaded."""
        self.hit_tokens: Final = hit_tokens
        """Tokens of the adopted hit."""
        self.loads: Final = loads
        """Whether some of ``tokens_before`` are loaded from outside into slots that this call allocates."""
        self.encoder_tokens: Final = encoder_tokens
        """Encoder tokens that need a slot, 0 after the admission."""

    def __repr__(self) -> str:
        return (
            f"Allocation(tokens_before={self.tokens_before}, tokens_after={self.tokens_after}, "
            f"slots={self.slots}, keyable_tokens={self.keyable_tokens}, hit_tokens={self.hit_tokens}, "
            f"loads={self.loads}, encoder_tokens={self.encoder_tokens})"
        )


class Headroom(NamedTuple):
    """Blocks of the shared pool that an allocation must leave free."""

    watermark: int
    """For running requests, if there are any when this one is admitted."""
    reserved: int
    """For other requests, given by the caller; limits only the step, not the whole request."""
    full_tokens: int
    """Tokens of the whole request if all of it must fit, 0 if only the step must."""


NO_HEADROOM: Final = Headroom(0, 0, 0)
