"""What a provider may use of the project: its directory, records next to the state, secrets, trust."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from trainctl.base.lazy_dataclass import dataclass
from trainctl.base.objects import ObjectStat


class ProviderRecords(Protocol):
    """JSON documents of a provider next to the state, encrypted as it is; keys begin with ``nodes/``."""

    def get(self, key: str) -> bytes | None:
        """Return a document; None if it doesn't exist."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Create or replace a document atomically and durably."""
        ...

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create a document; of several creators one gets True."""
        ...

    def list(self, prefix: str) -> Iterable[ObjectStat]:
        """List the documents below ``prefix/``."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Delete documents; ignore missing ones."""
        ...


@dataclass(frozen=True, slots=True)
class ProjectAccess:
    """A project, as its providers see it."""

    directory: Path
    """Directory of the manifest."""
    records: Callable[[], ProviderRecords]
    """Open the records; StateError if the state is at a place that has none."""
    secret: Callable[[str], str]
    """Return the value of a declared secret, which is then hidden in all output."""
    require_module: Callable[[str], None]
    """Raise PermissionDenied unless the user's trust file allows to run a module from this source."""


@runtime_checkable
class UsesProject(Protocol):
    """A provider that gets the project before any other call."""

    def set_project(self, project: ProjectAccess) -> None:
        """Set the project."""
        ...
