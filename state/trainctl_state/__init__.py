"""State logs: in a directory, and in memory. One layout over one object-store interface; see DESIGN.md beside this file."""

from __future__ import annotations

from pathlib import PurePosixPath
from urllib.parse import unquote

from trainctl.errors import UsageError
from trainctl.spi.state import StateLog
from trainctl_state.directory import DirectoryStore
from trainctl_state.log import ObjectLog
from trainctl_state.memory import shared_store

__all__ = ["DirectoryStore", "ObjectLog", "open_directory", "open_memory"]


def open_directory(url: str) -> StateLog:
    """The log in the directory that ``file:///absolute/path`` names; made by the first append, not before."""
    path = unquote(url.removeprefix("file:").removeprefix("//").removeprefix("localhost"))
    if not path.startswith("/") or "\0" in path or ".." in PurePosixPath(path).parts:
        raise UsageError(
            f"{url!r} does not name a directory for the state",
            "Write file:// and an absolute path, for example file:///srv/team/state.",
            code="invalid-location",
        )
    return ObjectLog(DirectoryStore(path), url)


def open_memory(url: str) -> StateLog:
    """The log of that name in this process, ``memory:NAME``; gone when the process ends."""
    return ObjectLog(shared_store(url.partition(":")[2].strip("/")), url)
