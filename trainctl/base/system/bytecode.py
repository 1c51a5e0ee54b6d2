"""Node programs as they are kept on a node: compiled once for one Python, and removed when nothing calls them."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import marshal
import re
import sys
import time
import zipfile
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import Callable, Dict, List, Optional

from trainctl.base.filesystem.files import modified_at

_IDLE_SECONDS = 86_400.0
_PROGRAM_NAME = re.compile(r"([0-9a-f]{64})[.-]")


def _not_compiled(name: str, source: bytes) -> Optional[CodeType]:
    """Nobody has compiled it before."""
    return None


def pack_bytecode(
    program: bytes,
    digest: str,
    known: Callable[[str, bytes], Optional[CodeType]] = _not_compiled,
) -> bytes:
    """The zip ``program``, whose sha256 is ``digest``, as bytecode of this Python behind its seal.

    64 hex digits, the sha256 of the digest, this Python's cache tag, its magic number and what follows; then a zip, which may have something before
    it, of unchecked hash-based .pyc files (PEP 552). ``known`` gives the code of a member, by its name and source, that was compiled before.
    """
    header = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8)
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(program)) as sources, zipfile.ZipFile(stream, "w") as made:
        for name in sources.namelist():
            source = sources.read(name)
            code = known(name, source) or compile(source, name, "exec", dont_inherit=True)
            made.writestr(zipfile.ZipInfo(name + "c"), header + marshal.dumps(code))
    body = stream.getvalue()
    return _bytecode_header(digest, body) + body


def is_valid_bytecode(data: bytes, digest: str) -> bool:
    """Whether it is whole bytecode of this Python, of the program with that digest."""
    return data[:64] == _bytecode_header(digest, data[64:])


def _bytecode_header(digest: str, body: bytes) -> bytes:
    made_for = f"{digest}{sys.implementation.cache_tag}".encode() + importlib.util.MAGIC_NUMBER
    return hashlib.sha256(made_for + body).hexdigest().encode()


def remove_unused(folder: Path, mine: str) -> None:
    """Remove programs other than ``mine`` that were not called within a day: each call touches its program."""
    others: Dict[str, List[Path]] = defaultdict(list)
    for path in folder.iterdir():
        found = _PROGRAM_NAME.match(path.name)
        if found and found[1] != mine:
            others[found[1]].append(path)
    for paths in others.values():
        if max(map(modified_at, paths)) < time.time() - _IDLE_SECONDS:
            for path in paths:
                with suppress(OSError):
                    path.unlink()
