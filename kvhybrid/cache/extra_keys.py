"""Inputs other than tokens that determine the content of a request's cache, and so are part of its keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class LoRA:
    """An adapter. Its name and path enter the key of every block."""

    name: str
    path: str


@dataclass(frozen=True)
class MediaItem:
    """An image or sound whose placeholder tokens are ``[start, start + length)`` of the prompt."""

    content_hash: str
    start: int
    length: int


class ExtraKeys:
    """The adapter, the media and the salt of one request."""

    def __init__(self, lora: LoRA | None, media: tuple[MediaItem, ...], salt: str | None) -> None:
        self.lora: Final = lora
        self.media: Final = media
        self.salt: Final = salt

    def of_unit(self, index: int, unit: int) -> bytes:
        """What enters the key of unit ``index``, of ``unit`` tokens each; empty if nothing does.

        That is the adapter, the media whose placeholder tokens the unit covers, and, in the first unit, the salt,
        which every later key depends on through its parent.
        """
        parts: list[tuple[str, ...]] = []
        if self.lora is not None:
            parts.append(("lora", self.lora.name, self.lora.path))
        start, end = index * unit, (index + 1) * unit
        parts.extend(
            ("media", item.content_hash, str(item.start - start), str(item.length))
            for item in self.media
            if item.start < end and start < item.start + item.length
        )
        if index == 0 and self.salt is not None:
            parts.append(("salt", self.salt))
        return repr(parts).encode() if parts else b""
