"""A request of a replay, whose number of tokens is known but not the tokens."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from kvhybrid.cache.request import Request
from kvhybrid.managers.prefix.key_chain import KeyChain
from kvhybrid.replay.prefix_keys import PrefixKeys
from kvhybrid.replay.trace import TraceRequest

UNKNOWN = (0,)
"""A placeholder prompt, which `Request` requires."""


class ReplayRequest(Request):
    """Counts its tokens instead of keeping them; `token_ids` and `output_token_ids` stay empty.

    Its keys come from the trace; without ``keys`` it has none.
    """

    num_tokens: int = 0  # an attribute, which is faster to read than the property that it replaces

    def __init__(self, request: TraceRequest, keys: PrefixKeys | None) -> None:
        super().__init__(request.request_id, UNKNOWN, max_new_tokens=request.num_output_tokens)
        self.token_ids.clear()
        self.num_prompt_tokens = self.num_tokens = request.num_prompt_tokens
        self._keys = keys
        self.hash_unit = keys.unit if keys is not None else None
        self._next_key_at = sys.maxsize
        self._known: list[bytes] = []
        if keys is not None:
            known = request.num_tokens if request.output_identified else request.num_prompt_tokens
            found = keys.of_tokens(request.prefix_ids, known)
            full = request.num_prompt_tokens // keys.unit
            self.block_hashes = KeyChain(found[:full])
            self._known = found[full:]
            self._number = keys.new_request()
            self._next_key_at = (len(self.block_hashes) + 1) * keys.unit

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    def append_output_token_ids(self, token_ids: Sequence[int]) -> None:
        """Count sampled tokens and add the keys of the units that they fill."""
        self.num_tokens += len(token_ids)
        while self.num_tokens >= self._next_key_at:
            assert self._keys is not None
            index = len(self.block_hashes)
            later = index - self.num_prompt_tokens // self._keys.unit
            known = later < len(self._known)
            self.block_hashes.append(self._known[later] if known else self._keys.of_output(self._number, index))
            self._next_key_at += self._keys.unit
