"""The keys of one prefix, unit by unit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import overload


class KeyChain:
    """One key for each full unit of a request, which stands for everything up to the unit's end.

    It only grows. A prefix index therefore refers to the chain of the request that brought a prefix first,
    instead of copying its keys one by one. Equal to a chain or a list of the same keys.
    """

    __slots__ = ("keys",)

    def __init__(self, keys: Iterable[bytes] = ()) -> None:
        self.keys = list(keys)
        """To be read, or appended to: whoever changes or takes out a key makes other requests hit what is not
        theirs."""

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
        """The key of the next unit."""
        self.keys.append(key)
