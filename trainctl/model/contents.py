"""What changes inside of resources. For display only; not covered by digests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from trainctl.base.lazy_dataclass import dataclass, field
from trainctl.model.address import Address

_MOST_KEPT = 50


@dataclass(frozen=True, slots=True)
class ContentChange:
    """A changed file, key or tensor; ``before`` or ``after`` is None if it is absent there.

    Of files sizes in bytes, of code removed and added lines. ``count``: equal changes, the name has ``*`` for numbers.
    """

    name: str
    before: str | int | None = None
    after: str | int | None = None
    count: int = 1

    @property
    def how(self) -> str:
        """``added``, ``removed`` or ``changed``."""
        return "added" if self.before is None else "removed" if self.after is None else "changed"


@dataclass(frozen=True, slots=True)
class ContentGroup:
    """Changes of one kind or file: the first of them, and the number of each sort."""

    title: str
    changes: tuple[ContentChange, ...]
    counts: Mapping[str, int]

    @classmethod
    def of(
        cls,
        title: str,
        changes: Iterable[ContentChange],
        sort: Callable[[ContentChange], str] = lambda change: change.how,
    ) -> ContentGroup:
        """Count all changes, and keep the first."""
        changes, counts = list(changes), dict[str, int]()
        for change in changes:
            counts[sort(change)] = counts.get(sort(change), 0) + change.count
        return cls(title, tuple(changes[:_MOST_KEPT]), counts)


@dataclass(frozen=True, slots=True)
class ContentDiff:
    """Change of the weights, code, image or checkpoints (``kind``) of a resource; ``notes`` are failures.

    ``alerts``: changes that need attention, such as new code in weights, with names from upstream.
    """

    address: Address
    kind: str
    before: str
    after: str
    groups: tuple[ContentGroup, ...] = ()
    alerts: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
