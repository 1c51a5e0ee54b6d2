"""The node program's bytecode for nodes that run this very Python, kept so that only the first command compiles it."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from trainctl.node.bytecode import is_sealed, sealed
from trainctl.remote.archive import Archive


def compiled(archive: Archive, cache: Path) -> bytes:
    """From the directory ``cache``, or made now and kept there if that is possible."""
    path = cache / f"{sys.implementation.cache_tag}.pyz"
    with contextlib.suppress(OSError):
        data = path.read_bytes()
        if is_sealed(data, archive.sha256):
            return data
    data = sealed(archive.data, archive.sha256)
    with contextlib.suppress(OSError):
        _keep(path, data)
    return data


def _keep(path: Path, data: bytes) -> None:
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(6).hex()}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
