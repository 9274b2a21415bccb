"""The keys of one prefix, unit by unit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class KeyChain:
    """One key for each full unit of a request, which stands for everything up to the unit's end.

    It only grows. A prefix index therefore refers to the chain of the request that brought a prefix first,
    instead of copying its keys one by one.
    """

    __slots__ = ("keys",)

    def __init__(self, keys: Iterable[bytes] = ()) -> None:
        self.keys = list(keys)
        """For reading: whoever changes or takes out a key makes other requests hit what is not theirs."""

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, unit: int) -> bytes:
        return self.keys[unit]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.keys)

    def __repr__(self) -> str:
        return f"KeyChain({self.keys!r})"

    def append(self, key: bytes) -> None:
        """The key of the next unit."""
        self.keys.append(key)

    def extend(self, keys: Iterable[bytes]) -> None:
        """The keys of the next units."""
        self.keys.extend(keys)
