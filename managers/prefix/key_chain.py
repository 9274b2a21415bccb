"""The keys of one prefix, unit by unit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import overload


class KeyChain:
    """One key for each full unit of a request; it identifies the prefix up to the unit's end.

    A chain only grows. A prefix index therefore refers to the chain of the first request with a prefix, instead of
    copying its keys one by one. Equal to a chain or a list of the same keys.
    """

    __slots__ = ("keys",)

    def __init__(self, keys: Iterable[bytes] = ()) -> None:
        self.keys = list(keys)
        """To be read, or appended to. Changing or removing a key would make other requests hit foreign blocks."""

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, unit: int) -> bytes: ...

    @overload
    def __getitem__(self, unit: slice) -> list[bytes]: ...

    def __getitem__(self, unit: int | slice) -> bytes | list[bytes]:
        return self.keys[unit]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.keys)

    def __eq__(self, other: object) -> bool:
        return self.keys == (other.keys if isinstance(other, KeyChain) else other)

    def __hash__(self) -> int:
        raise TypeError("a chain of keys grows, so it has no hash")

    def __repr__(self) -> str:
        return f"KeyChain({self.keys!r})"

    def append(self, key: bytes) -> None:
        """Add the key of the next unit."""
        self.keys.append(key)
