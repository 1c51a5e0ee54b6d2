"""Content of ``file:`` sources inside the manifest's directory, remembered by path and times."""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from trainctl.base.filesystem.safe_path import display_path
from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.errors import SourceError
from trainctl.model.source_uri import parse_source

_THREADS = 4
_SETTLED_NS = 2 * 10**9
"""A file modified more recently may change again without another time: it isn't remembered."""
_TABLE = "CREATE TABLE IF NOT EXISTS files (path TEXT PRIMARY KEY, stamp TEXT, sha256 TEXT)"


def by_content(resolved: ResolvedSource, directory: Path, memory: Path | None) -> ResolvedSource:
    """Identify files by sha256 if the source is inside ``directory``; return others unchanged.

    ``memory`` is a SQLite file that may be deleted at any time. Raises SourceError.
    """
    root = Path(parse_source(resolved.source).location)
    if not root.resolve().is_relative_to(directory.resolve()):
        return resolved
    with _remembered(memory, root) as known, ThreadPoolExecutor(_THREADS) as pool:
        files = pool.map(lambda file: _identify(resolved.source, root, file, known), resolved.files)
        return replace(resolved, files=tuple(files))


def _identify(
    source: str, root: Path, file: SourceFile, known: dict[str, tuple[str, str]]
) -> SourceFile:
    path = root / file.path if root.is_dir() else root
    try:
        status = path.stat()
        stamp = f"{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}:{status.st_ino}"
        stored, sha256 = known.get(str(path), ("", ""))
        if stored != stamp:
            with path.open("rb") as stream:
                sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
            if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > _SETTLED_NS:
                known[str(path)] = (stamp, sha256)
    except OSError as error:
        raise SourceError(
            f"{source}: {display_path(str(path))}: {error.strerror or error}"
        ) from None
    return SourceFile(file.path, file.size, f"sha256:{sha256}")


@contextmanager
def _remembered(memory: Path | None, root: Path) -> Iterator[dict[str, tuple[str, str]]]:
    """Yield stamps and digests below a path, and store new ones; without a usable file, none."""
    known: dict[str, tuple[str, str]] = {}
    if memory is not None:
        with suppress(sqlite3.Error, OSError):
            memory.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with closing(sqlite3.connect(memory)) as database:
                database.execute(_TABLE)
                below = (str(root), f"{root}/", f"{root}0")  # "0" follows "/"
                rows = database.execute(
                    "SELECT * FROM files WHERE path = ? OR (path > ? AND path < ?)", below
                )
                known = {path: (stamp, sha256) for path, stamp, sha256 in rows}
    before = dict(known)
    yield known
    new = [(path, *known[path]) for path in known if known[path] != before.get(path)]
    if memory is not None and new:
        with suppress(sqlite3.Error), closing(sqlite3.connect(memory)) as database, database:
            database.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?)", new)
