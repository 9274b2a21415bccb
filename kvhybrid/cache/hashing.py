"""Prefix keys: a chain of SHA-256 over a request's tokens."""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from kvhybrid.cache.extra_keys import ExtraKeys
from kvhybrid.managers.kernel import extend_keys
from kvhybrid.managers.kernel.plain import preimage
from kvhybrid.managers.prefix.key_chain import KeyChain

ROOT: Final = sha256(b"kvhybrid prefix").digest()
"""The parent of every first unit."""


class PrefixHasher:
    """Gives every full unit of ``unit`` tokens a key that identifies the whole prefix up to its end.

    A key is the SHA-256 of the unit's token ids, its parent's key and its extra keys (`ExtraKeys`), encoded by
    `preimage`. Equal keys mean equal prefixes under equal conditions.
    """

    def __init__(self, unit: int) -> None:
        self.unit = unit

    def extend(self, chain: KeyChain, tokens: list[int], extra: ExtraKeys) -> None:
        """Append to ``chain`` the keys of the units that ``tokens``, those of one request, fill beyond it."""
        unit = self.unit
        if len(tokens) < (len(chain) + 1) * unit:
            return
        if extra.lora is None and not extra.media:
            if not chain and extra.salt is not None:
                chain.append(self._key(chain, tokens, extra))
            extend_keys(chain.keys, tokens, unit, ROOT)
            return
        while len(tokens) >= (len(chain) + 1) * unit:
            chain.append(self._key(chain, tokens, extra))

    def _key(self, chain: KeyChain, tokens: list[int], extra: ExtraKeys) -> bytes:
        """The key of the first unit that has none yet."""
        unit, index = self.unit, len(chain)
        ids, parent = tokens[index * unit : (index + 1) * unit], chain[-1] if chain else ROOT
        return sha256(preimage(ids, parent, extra.of_unit(index, unit))).digest()
