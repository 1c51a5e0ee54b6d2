"""The node program's bytecode for nodes that run this very Python, kept so that only the first command compiles it."""

from __future__ import annotations

import contextlib
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

import trainctl
from trainctl.base.bytecode import is_sealed, sealed
from trainctl.base.files import make_directory, write_atomic
from trainctl.remote.archive import Archive

_PLACE = Path(trainctl.__file__).parents[1]


def compiled(archive: Archive, cache: Path) -> bytes:
    """From the directory ``cache``, or made now and kept there if that is possible."""
    path = cache / f"{sys.implementation.cache_tag}.pyz"
    with contextlib.suppress(OSError):
        data = path.read_bytes()
        if is_sealed(data, archive.sha256):
            return data
    data = sealed(archive.data, archive.sha256, _installed)
    with contextlib.suppress(OSError):
        make_directory(path.parent)
        write_atomic(path, data)
    return data


def _installed(name: str, source: bytes) -> CodeType | None:
    """The code of one of our own modules, which Python compiled at its installation or first import; None unless it is of this very source."""
    path = _PLACE / name
    loader = SourceFileLoader(name, str(path))
    try:
        code = loader.get_code(name)
        return code if path.read_bytes() == source else None
    except (OSError, ImportError):
        return None
