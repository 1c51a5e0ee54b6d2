"""Unpack tar files of source code: nothing leaves the directory.

``tarfile.data_filter`` came with Python 3.11.4; hosts have 3.8, and Debian 12 has 3.11.2.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path
from typing import IO, List

from trainctl.base.filesystem.files import is_inside
from trainctl.errors import NodeError

_COPY_BYTES = 2**20


class UnsafeArchive(NodeError):
    """A tar file is corrupt, or would write outside of its directory."""


def unpack(stream: IO[bytes], target: Path) -> None:
    """Unpack into an empty directory; TrainctlError if a path or symlink leads outside."""
    links: List[tarfile.TarInfo] = []
    try:
        with tarfile.open(fileobj=stream, mode="r|*") as archive:
            for member in archive:
                path = _path(target, member)
                if member.issym():
                    links.append(member)
                elif member.isdir():
                    path.mkdir(0o755, parents=True, exist_ok=True)
                elif member.isreg():
                    _write(archive, member, path)
                else:
                    raise UnsafeArchive(f"{member.name!r} in the code is not a regular file")
    except tarfile.TarError as error:
        raise UnsafeArchive(f"cannot unpack the code: {error}") from None
    for member in links:
        _link(target, member)


def _path(target: Path, member: tarfile.TarInfo) -> Path:
    parts = member.name.split("/")
    if member.name.startswith("/") or ".." in parts or "\0" in member.name:
        raise UnsafeArchive(f"{member.name!r} is outside of the code directory")
    return target / member.name


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    path.parent.mkdir(0o755, parents=True, exist_ok=True)
    source = archive.extractfile(member)
    if source is None:
        raise UnsafeArchive(f"{member.name!r} in the code has no data")
    mode = 0o755 if member.mode & 0o100 else 0o644
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, mode), "wb") as stream:
        shutil.copyfileobj(source, stream, _COPY_BYTES)


def _link(target: Path, member: tarfile.TarInfo) -> None:
    path = _path(target, member)
    path.parent.mkdir(0o755, parents=True, exist_ok=True)
    root = Path(os.path.realpath(str(target)))
    resolved = Path(os.path.realpath(str(path.parent / member.linkname)))
    if member.linkname.startswith("/") or not is_inside(resolved, root):
        raise UnsafeArchive(f"symlink {member.name!r} leads outside of the code directory")
    path.symlink_to(member.linkname)
