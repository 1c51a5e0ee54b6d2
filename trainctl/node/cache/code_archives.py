"""Source code archives: tar files stored by the digest of the code tree."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict

from trainctl.base.filesystem.files import make_directory, sync_directory, temporary_name
from trainctl.base.protocol.host import CodeRequest, CodeResponse, HasCodeRequest
from trainctl.errors import NodeError, UnknownOnNode
from trainctl.node.cache.listings import CacheReferences
from trainctl.node.system.layout import Layout, check_name

Emit = Callable[[Dict[str, Any]], None]
_COPY_BYTES = 2**20
_END = bytes(2 * tarfile.BLOCKSIZE)


def upload_code(request: CodeRequest, emit: Emit, payload: BinaryIO) -> CodeResponse:
    """Store the tar of a code tree; TrainctlError if it is incomplete."""
    path = Layout(request["root"]).archive(request["digest"])
    make_directory(path.parent)
    temporary = path.with_name(temporary_name(path.name))
    try:
        with temporary.open("xb") as stream:
            temporary.chmod(0o600)
            shutil.copyfileobj(payload, stream, _COPY_BYTES)
            stream.flush()
            os.fsync(stream.fileno())
        # Senders may be killed: the tar must end with two zero blocks.
        with temporary.open("rb") as stream:
            stream.seek(max(0, temporary.stat().st_size - len(_END)))
            is_complete = stream.read() == _END
        try:
            with tarfile.open(temporary, "r:") as archive:
                archive.getmembers()
        except tarfile.TarError:
            is_complete = False
        if not is_complete:
            raise NodeError("incomplete or invalid code archive")
        temporary.replace(path)
    finally:
        if temporary.exists():
            temporary.unlink()
    sync_directory(path.parent)
    return {"present": True, "sha256": _sha256(path)}


def has_code(request: HasCodeRequest, emit: Emit) -> CodeResponse:
    """Check for a code tree's tar and return its digest.

    Packing with other line endings gives the same tree another digest. If ``lineage`` is set, the tar is
    protected from garbage collection until the lineage has started its run.
    """
    layout = Layout(request["root"])
    if request.get("lineage"):
        CacheReferences(layout).announce(check_name(request["lineage"], "lineage"))
    path = layout.archive(request["digest"])
    try:
        os.utime(path)
    except FileNotFoundError:
        return {"present": False, "sha256": None}
    return {"present": True, "sha256": _sha256(path)}


def read_code(request: CodeRequest, write: Callable[[bytes], None]) -> None:
    """Write a code tree's tar to ``write``."""
    with open_archive(Layout(request["root"]), request["digest"]) as stream:
        for data in iter(lambda: stream.read(_COPY_BYTES), b""):
            write(data)


def open_archive(layout: Layout, digest: Any) -> BinaryIO:
    """Open a code tree's tar; TrainctlError if it is missing."""
    try:
        return layout.archive(digest).open("rb")
    except FileNotFoundError:
        raise UnknownOnNode(f"code {digest} not found on the node") from None


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        for data in iter(lambda: stream.read(_COPY_BYTES), b""):
            digest.update(data)
    return digest.hexdigest()
