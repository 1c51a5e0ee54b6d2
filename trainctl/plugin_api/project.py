"""What a provider may use of the project: its directory, records next to the state, secrets, trust."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from trainctl.base.lazy_dataclass import dataclass
from trainctl.base.objects import ObjectStat


class ProviderRecords(Protocol):
    """JSON documents of a provider next to the state, encrypted as it is; keys begin with ``nodes/``.

    Methods are those of ``ObjectStore``. Records can be pickled, for a process that outlives this one.
    """

    def get(self, key: str) -> bytes | None: ...
    def put(self, key: str, data: bytes) -> None: ...
    def put_if_absent(self, key: str, data: bytes) -> bool: ...
    def list(self, prefix: str) -> Iterable[ObjectStat]: ...
    def delete(self, keys: Sequence[str]) -> None: ...


@dataclass(frozen=True, slots=True)
class ProjectAccess:
    """A project, as a provider sees it that has ``set_project``, which is called before anything else."""

    directory: Path
    """Directory of the manifest."""
    records: Callable[[], ProviderRecords]
    """Open the records; StateError if the state is at a place that has none."""
    secret: Callable[[str], str]
    """Return the value of a declared secret, which is then hidden in all output."""
    require_module: Callable[[str], None]
    """Raise PermissionDenied unless the user's trust file allows to run a module from this source."""
