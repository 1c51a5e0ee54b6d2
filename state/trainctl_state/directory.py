"""Objects as files of a directory; sound on network file systems, as creation is decided by ``link``.

Paths are plain strings here: an append is made of a dozen calls on them, and an apply of thousands of appends.
"""

# ruff: noqa: PTH100, PTH102, PTH104, PTH108, PTH110, PTH112, PTH116, PTH120, PTH123

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from trainctl.errors import StateError
from trainctl.spi.objects import ObjectStore
from trainctl_state.disk import explain, sync_directory, write_synced
from trainctl_state.keys import check_key, is_key

TEMPORARY = ".tmp"
STALE_SECONDS = 3600.0
"""How much older than a new one a temporary file must be to be somebody's leftover."""


class DirectoryStore:
    """An object store in a directory, which the first write makes. Safe for any number of threads, processes and machines."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = os.path.abspath(root)
        self._known: set[str] = set()
        self._cleaned = False

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create the file by ``link``, synced with its directory; False if the name is taken."""
        path = self._path(key)
        with explain(path), self._temporary(path, data, durable=True) as temporary:
            try:
                os.link(temporary, path)
            except FileExistsError:
                # A network file system may have done it and lost the reply: two names say that it was us.
                if os.stat(temporary).st_nlink != 2:
                    return False
            sync_directory(os.path.dirname(path))
            return True

    def put(self, key: str, data: bytes, *, durable: bool = True) -> None:
        """Create or replace the file by ``rename``; synced unless it need not be durable."""
        path = self._path(key)
        with explain(path), self._temporary(path, data, durable=durable) as temporary:
            os.rename(temporary, path)
            if durable:
                sync_directory(os.path.dirname(path))

    def get(self, key: str) -> bytes | None:
        """The file's bytes, or None."""
        path = self._path(key)
        with explain(path):
            try:
                return _read(path)
            except (FileNotFoundError, IsADirectoryError):
                return None
            except NotADirectoryError:
                self._check_root()
                return None

    def list(self, prefix: str, after: str = "") -> Iterator[str]:
        """Keys with the prefix that sort after ``after``; files whose names aren't keys are not objects."""
        folder = prefix.rpartition("/")[0]
        start = self._path(folder) if folder else self._root
        with explain(start):
            keys = [k for k in self._walk(start, folder) if k.startswith(prefix) and k > after]
        return iter(sorted(keys))

    def delete(self, key: str) -> None:
        """Remove the file; no error if there is none."""
        path = self._path(key)
        with explain(path):
            try:
                os.unlink(path)
            except (FileNotFoundError, NotADirectoryError):
                return
            sync_directory(os.path.dirname(path))

    def _path(self, key: str) -> str:
        return f"{self._root}/{check_key(key)}"

    def _check_root(self) -> None:
        if os.path.exists(self._root) and not os.path.isdir(self._root):
            raise StateError(
                f"{self._root} is not a directory",
                "Move it away, or name another place with --state.",
            )

    def _walk(self, folder: str, key: str) -> Iterator[str]:
        try:
            entries = list(os.scandir(folder))
        except FileNotFoundError:
            return
        except NotADirectoryError:
            self._check_root()
            return
        for entry in entries:
            name = f"{key}/{entry.name}" if key else entry.name
            if not is_key(name):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from self._walk(entry.path, name)
            else:
                yield name

    @contextmanager
    def _temporary(self, path: str, data: bytes, *, durable: bool) -> Iterator[str]:
        """A file with the bytes, on the same file system as ``path``; gone afterwards, whatever happens."""
        self._make(os.path.dirname(path))
        folder = f"{self._root}/{TEMPORARY}"
        self._make(folder)
        temporary = f"{folder}/{uuid.uuid4().hex}"
        try:
            write_synced(temporary, data, sync=durable)
            self._clean(temporary)
            yield temporary
        finally:
            with suppress(OSError):
                os.unlink(temporary)

    def _make(self, folder: str) -> None:
        if folder in self._known:
            return
        if not os.path.isdir(folder):
            parent = os.path.dirname(folder)
            if parent != folder:
                self._make(parent)
            with suppress(FileExistsError):
                os.mkdir(folder, 0o700)
            with suppress(PermissionError):  # one may use a parent that one may not list
                sync_directory(parent)
        self._known.add(folder)

    def _clean(self, newest: str) -> None:
        """Remove what killed writers left, once; the file system's own clock says what is old."""
        if self._cleaned:
            return
        self._cleaned = True
        limit = os.stat(newest).st_mtime - STALE_SECONDS
        for entry in os.scandir(os.path.dirname(newest)):
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and status.st_mtime < limit:
                    os.unlink(entry.path)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


_: type[ObjectStore] = DirectoryStore
