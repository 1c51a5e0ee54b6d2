"""Node programs cached on a node: compiled for one Python, removed when unused."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import marshal
import sys
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import Callable, Dict, List, Optional

from trainctl.base.lazy_pattern import compile_lazily

_IDLE_SECONDS = 86_400.0
_PROGRAM_NAME = compile_lazily(r"([0-9a-f]{64})[.-]")


def pack_bytecode(
    program: bytes,
    digest: str,
    known: Callable[[str, bytes], Optional[CodeType]] = lambda name, source: None,
) -> bytes:
    """Compile the zip ``program``, whose sha256 is ``digest``, for this Python.

    Format: the hex sha256 of (digest, cache tag, magic number, rest), then a marshalled dict of marshalled code by
    member. ``known`` returns code of a member, by name and source, that was compiled before.
    """
    import zipfile

    members = {}
    with zipfile.ZipFile(io.BytesIO(program)) as sources:
        for name in sources.namelist():
            source = sources.read(name)
            code = known(name, source) or compile(source, name, "exec", dont_inherit=True)
            members[name] = marshal.dumps(code)
    body = marshal.dumps(members)
    return _bytecode_header(digest, body) + body


def is_valid_bytecode(data: bytes, digest: str) -> bool:
    """Return whether this is that program's bytecode for this Python."""
    return data[:64] == _bytecode_header(digest, data[64:])


def _bytecode_header(digest: str, body: bytes) -> bytes:
    version = f"{digest}{sys.implementation.cache_tag}".encode() + importlib.util.MAGIC_NUMBER
    return hashlib.sha256(version + body).hexdigest().encode()


def remove_unused(folder: Path, mine: str) -> None:
    """Remove programs other than ``mine`` that were not called (touched) within a day."""
    from trainctl.base.filesystem.files import modified_at

    others: Dict[str, List[Path]] = defaultdict(list)
    for path in folder.iterdir():
        match = _PROGRAM_NAME.match(path.name)
        if match and match[1] != mine:
            others[match[1]].append(path)
    for paths in others.values():
        if max(map(modified_at, paths)) < time.time() - _IDLE_SECONDS:
            for path in paths:
                with suppress(OSError):
                    path.unlink()
