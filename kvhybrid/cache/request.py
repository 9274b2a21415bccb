"""A request: its tokens, how many of them are computed, and the keys of its prefix."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

from mypy_extensions import mypyc_attr

from kvhybrid.cache.extra_keys import ExtraKeys, LoRA, MediaItem
from kvhybrid.cache.hashing import PrefixHasher
from kvhybrid.managers.kernel import as_token_ids
from kvhybrid.managers.prefix.index import PrefixPath
from kvhybrid.managers.prefix.key_chain import KeyChain

if TYPE_CHECKING:
    from kvhybrid.models.base import EncoderInput


class RequestStatus(Enum):
    """The state of a request in the scheduler."""

    WAITING = "waiting"
    LOADING = "loading"
    """Its first tokens are being loaded from outside."""
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


def checked_token_ids(request_id: str, token_ids: Sequence[int]) -> list[int]:
    """``token_ids``, integers of any type, as a new list of plain ints.

    Raises ValueError that names the request and the first one that is not an integer, is a bool, or needs more
    than 64 bits.
    """
    try:
        return as_token_ids(token_ids)
    except (TypeError, ValueError) as error:
        raise ValueError(f"request {request_id!r}: {error}") from None


@mypyc_attr(allow_interpreted_subclasses=True)
class Request:
    """One sequence on its way through the engine.

    ``num_computed_tokens`` counts tokens whose cache entries exist; ``num_in_flight_tokens`` of them are
    scheduled and not settled yet. ``block_hashes``, a `KeyChain`, grows with the tokens.

    Raises ValueError for a prompt without tokens, or with a token id that is not a 64-bit integer.
    """

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        *,
        max_new_tokens: int = 16,
        cache_salt: str | None = None,
        lora: LoRA | None = None,
        media: Sequence[MediaItem] = (),
        num_encoder_tokens: int = 0,
        encoder_input: EncoderInput | None = None,
        skip_reading_prefix_cache: bool = False,
        hasher: PrefixHasher | None = None,
    ) -> None:
        if not len(prompt_token_ids):
            raise ValueError(f"request {request_id!r}: the prompt has no tokens")
        self.request_id = request_id
        self.token_ids = checked_token_ids(request_id, prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.max_new_tokens = max_new_tokens
        self.extra_keys = ExtraKeys(lora, tuple(media), cache_salt or None)
        self.num_encoder_tokens = num_encoder_tokens
        self.encoder_input = encoder_input
        """The encoder's input, kept until the request is finished: after a preemption it is encoded again."""
        self.skip_reading_prefix_cache = skip_reading_prefix_cache

        self.status = RequestStatus.WAITING
        self.num_computed_tokens = 0
        self.num_in_flight_tokens = 0
        self.num_preemptions = 0
        self.shared_prefix_boundary = 0
        """The junction of the latest look-up, in tokens: how far another group proved the prefix shared."""

        self.resumed_at = 0
        """Tokens of the hit that it was admitted with."""
        self._hasher = hasher
        self.hash_unit = hasher.unit if hasher else None
        """Tokens per key; None if the request has no keys."""
        self.block_hashes = KeyChain()
        self.path: PrefixPath | None = None
        """The prefix numbers of its keys in the cache that it was sent to last."""
        self._extend_hashes()

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    def append_output_token_ids(self, token_ids: Sequence[int]) -> None:
        """Add sampled tokens and the keys of the units that they fill.

        Raises ValueError for a token id that is not a 64-bit integer; none is added then.
        """
        self.token_ids.extend(checked_token_ids(self.request_id, token_ids))
        self._extend_hashes()

    def _extend_hashes(self) -> None:
        if self._hasher is not None:
            self._hasher.extend(self.block_hashes, self.token_ids, self.extra_keys)
