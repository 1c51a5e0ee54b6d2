"""Content of ``file:`` sources inside the manifest's directory, remembered by path and times."""

from __future__ import annotations

import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from trainctl.base.filesystem.files import read_json, write_volatile
from trainctl.base.filesystem.safe_path import display_path
from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.errors import SourceError
from trainctl.model.source_uri import parse_source

_THREADS = 4
_SETTLED_NS = 2 * 10**9
"""A file modified more recently may change again without another time: it isn't remembered."""


def by_content(resolved: ResolvedSource, directory: Path, memory: Path | None) -> ResolvedSource:
    """Identify files by sha256 if the source is inside ``directory``; return others unchanged.

    ``memory`` is a directory that may be deleted at any time. Raises SourceError.
    """
    root = Path(parse_source(resolved.source).location)
    if not root.resolve().is_relative_to(directory.resolve()):
        return resolved
    name = hashlib.sha256(os.fsencode(root)).hexdigest()[:32]
    known: dict[str, str] = {}
    if memory is not None:
        with suppress(OSError):
            known = read_json(memory / f"{name}.json") or {}
    before = dict(known)

    def identify(file: SourceFile) -> SourceFile:
        path = root / file.path if root.is_dir() else root
        try:
            status = path.stat()
            stamp = f"{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}:{status.st_ino} "
            stored = known.get(file.path, "")
            if stored.startswith(stamp):
                return SourceFile(file.path, file.size, f"sha256:{stored.removeprefix(stamp)}")
            with path.open("rb") as stream:
                sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            what = display_path(str(path))
            raise SourceError(f"{resolved.source}: {what}: {error.strerror or error}") from None
        if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > _SETTLED_NS:
            known[file.path] = stamp + sha256
        return SourceFile(file.path, file.size, f"sha256:{sha256}")

    with ThreadPoolExecutor(_THREADS) as pool:
        files = tuple(pool.map(identify, resolved.files))
    if memory is not None and known != before:
        with suppress(OSError):
            write_volatile(memory / f"{name}.json", known)
    return replace(resolved, files=files)
