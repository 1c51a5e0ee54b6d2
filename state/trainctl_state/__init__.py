"""State logs: in a directory, and in memory. One layout over one object-store interface; see DESIGN.md beside this file."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from trainctl.base.objects import is_key
from trainctl.errors import UsageError
from trainctl.spi.state import StateLog
from trainctl.store.directory import DirectoryObjects
from trainctl.store.memory import MemoryObjects
from trainctl_state.disk import explained
from trainctl_state.log import ObjectLog

__all__ = ["ObjectLog", "directory_objects", "open_directory", "open_memory"]

_in_memory: dict[str, MemoryObjects] = {}


def open_directory(url: str) -> StateLog:
    """The log in the directory that ``file:///absolute/path`` names; made by the first append, not before."""
    path = unquote(url.removeprefix("file:").removeprefix("//").removeprefix("localhost"))
    if not path.startswith("/") or "\0" in path or ".." in PurePosixPath(path).parts:
        raise UsageError(
            f"{url!r} does not name a directory for the state",
            "Write file:// and an absolute path, for example file:///srv/team/state.",
            code="invalid-location",
        )
    return ObjectLog(directory_objects(Path(path)), url)


def directory_objects(root: Path) -> DirectoryObjects:
    """The objects of a state in a directory, which the first write makes."""
    return DirectoryObjects(root, is_key, explained)


def open_memory(url: str) -> StateLog:
    """The log of that name in this process, ``memory:NAME``; gone when the process ends."""
    name = url.partition(":")[2].strip("/")
    return ObjectLog(_in_memory.setdefault(name, MemoryObjects()), url)
