"""Prefix keys: a chain of SHA-256 over a request's tokens."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final

from kvhybrid.managers.kernel import extend_keys
from kvhybrid.managers.kernel.plain import preimage

if TYPE_CHECKING:
    from kvhybrid.cache.request import Request

ROOT: Final = sha256(b"kvhybrid prefix").digest()
"""The parent of every first unit."""


class PrefixHasher:
    """Gives every full unit of ``unit`` tokens a key that identifies the whole prefix up to its end.

    A key is the SHA-256 of the unit's token ids, its parent's key and its extra keys (`preimage` defines the
    encoding): the LoRA adapter in every unit, the media whose placeholder tokens it covers, and the salt in the
    first, from where the chain carries it on. Equal keys mean equal prefixes under equal conditions.
    """

    def __init__(self, unit: int) -> None:
        self.unit = unit

    def extend(self, request: Request) -> None:
        """Append the keys of the units that ``request``'s tokens have filled since the last call."""
        chain, tokens, unit = request.block_hashes, request.token_ids, self.unit
        if len(tokens) < (len(chain) + 1) * unit:
            return
        if request.lora is None and not request.media:
            if not chain and request.cache_salt is not None:
                chain.append(self._key(request, 0))
            extend_keys(chain.keys, tokens, unit, ROOT)
            return
        for index in range(len(chain), len(tokens) // unit):
            chain.append(self._key(request, index))

    def _key(self, request: Request, index: int) -> bytes:
        """The key of unit ``index``, the first that has none yet, with its extra keys."""
        keys, unit = request.block_hashes, self.unit
        tokens = request.token_ids[index * unit : (index + 1) * unit]
        return sha256(preimage(tokens, keys[-1] if keys else ROOT, extra_keys(request, index, unit))).digest()


def extra_keys(request: Request, index: int, unit: int) -> bytes:
    """What besides its tokens decides the content of unit ``index``, of ``unit`` tokens each."""
    parts: list[tuple[str, ...]] = []
    if request.lora is not None:
        parts.append(("lora", request.lora.name, request.lora.path))
    start, end = index * unit, (index + 1) * unit
    parts.extend(
        ("media", item.content_hash, str(item.start - start), str(item.length))
        for item in request.media
        if item.start < end and start < item.start + item.length
    )
    if index == 0 and request.cache_salt is not None:
        parts.append(("salt", request.cache_salt))
    return repr(parts).encode() if parts else b""
