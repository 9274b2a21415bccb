"""Why tokens were not hit: every token that a request asks for is a hit or has exactly one cause."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from operator import add, attrgetter


@dataclass(frozen=True)
class MissCauses:
    """Tokens of one group that were asked for and not hit, by cause."""

    other_group: int = 0
    """The group had them; another could not resume there."""
    last_token: int = 0
    """They were cached up to the prompt's end, whose last token must be computed."""
    draft_drop: int = 0
    """A draft model recomputes the last unit of a hit."""
    granularity: int = 0
    """Hits end on block boundaries that all groups share; these lie between two, or after the last."""
    not_retained: int = 0
    """Somebody computed them, and retention or the live set kept no block of them here."""
    evicted: int = 0
    """They were cached here once and lost their key."""
    never_seen: int = 0
    """Nobody computed them before, as far as memory goes."""
    no_room: int = 0
    """They were hit, but the request was admitted without: copying a shared block needs one more block."""
    opted_out: int = 0
    """The request or the group does not read the cache."""

    def __iter__(self) -> Iterator[int]:
        return iter(_counts(self))

    def __add__(self, other: MissCauses) -> MissCauses:
        return MissCauses(*map(add, _counts(self), _counts(other)))

    @property
    def total(self) -> int:
        return sum(self)

    def by_name(self) -> dict[str, int]:
        return asdict(self)


_counts: Callable[[MissCauses], tuple[int, ...]] = attrgetter(*(field.name for field in fields(MissCauses)))
