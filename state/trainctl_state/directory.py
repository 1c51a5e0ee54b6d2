"""Objects as files of a directory; sound on network file systems, as creation is decided by ``link``."""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trainctl.errors import StateError
from trainctl.spi.objects import ObjectStore
from trainctl_state.disk import explain, sync_directory, write_synced
from trainctl_state.keys import check_key, is_key

TEMPORARY = ".tmp"
STALE_SECONDS = 3600.0
"""How much older than a new one a temporary file must be to be somebody's leftover."""


class DirectoryStore:
    """An object store in a directory, which the first write makes. Safe for any number of threads, processes and machines."""

    def __init__(self, root: str | Path) -> None:
        self._root = Path(root)
        self._known: set[Path] = set()
        self._cleaned = False

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create the file by ``link``, synced with its directory; False if the name is taken."""
        path = self._path(key)
        with explain(path), self._temporary(path, data, durable=True) as temporary:
            try:
                os.link(temporary, path)
            except FileExistsError:
                # A network file system may have done it and lost the reply: two names say that it was us.
                if temporary.stat().st_nlink != 2:
                    return False
            sync_directory(path.parent)
            return True

    def put(self, key: str, data: bytes, *, durable: bool = True) -> None:
        """Create or replace the file by ``rename``; synced unless it need not be durable."""
        path = self._path(key)
        with explain(path), self._temporary(path, data, durable=durable) as temporary:
            temporary.rename(path)
            if durable:
                sync_directory(path.parent)

    def get(self, key: str) -> bytes | None:
        """The file's bytes, or None."""
        path = self._path(key)
        with explain(path):
            try:
                return path.read_bytes()
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
                path.unlink()
            except (FileNotFoundError, NotADirectoryError):
                return
            sync_directory(path.parent)

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    def _check_root(self) -> None:
        if self._root.exists() and not self._root.is_dir():
            raise StateError(
                f"{self._root} is not a directory",
                "Move it away, or name another place with --state.",
            )

    def _walk(self, folder: Path, key: str) -> Iterator[str]:
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
                yield from self._walk(folder / entry.name, name)
            else:
                yield name

    @contextmanager
    def _temporary(self, path: Path, data: bytes, *, durable: bool) -> Iterator[Path]:
        """A file with the bytes, on the same file system as ``path``; gone afterwards, whatever happens."""
        self._make(path.parent)
        folder = self._root / TEMPORARY
        self._make(folder)
        temporary = folder / uuid.uuid4().hex
        try:
            write_synced(temporary, data, sync=durable)
            self._clean(temporary)
            yield temporary
        finally:
            with suppress(OSError):
                temporary.unlink()

    def _make(self, folder: Path) -> None:
        if folder in self._known:
            return
        if not folder.is_dir():
            if folder.parent != folder:
                self._make(folder.parent)
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            with suppress(PermissionError):  # one may use a parent that one may not list
                sync_directory(folder.parent)
        self._known.add(folder)

    def _clean(self, newest: Path) -> None:
        """Remove what killed writers left, once; the file system's own clock says what is old."""
        if self._cleaned:
            return
        self._cleaned = True
        limit = newest.stat().st_mtime - STALE_SECONDS
        for entry in os.scandir(newest.parent):
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and status.st_mtime < limit:
                    Path(entry.path).unlink()


_: type[ObjectStore] = DirectoryStore
