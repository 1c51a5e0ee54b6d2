"""Checkpoint stores: interface, opening, and the store in a directory; see trainctl/node/DESIGN.md, "Checkpoints"."""

from __future__ import annotations

import contextlib
import json
import os
import re
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Callable, Iterator, Mapping, Optional, Protocol, cast
from urllib.parse import quote, unquote

from trainctl.base.filesystem.files import (
    file_mode_for,
    is_temporary,
    list_names,
    make_directory,
    resolve_within,
    write_atomic,
)
from trainctl.base.filesystem.space import from_os_error
from trainctl.base.objects import ObjectStat
from trainctl.base.throughput import RateLimiter
from trainctl.errors import NodeError, StorageError, UnknownOnNode


class StoreUnavailable(StorageError):
    """The checkpoint store doesn't respond, or not now."""

    retryable = True
    default_code = "checkpoint-store"


class UnstorableFile(NodeError):
    """A file can't be stored, as it changed or its name is invalid; others can."""


class CheckpointStore(Protocol):
    """Objects under names that jobs choose, written atomically.

    Errors are StoreUnavailable, StorageError (needs a person), UnstorableFile (invalid key), UnknownOnNode; and OSError
    from a disk.
    """

    def put(self, key: str, data: bytes) -> None:
        """Create or replace a small object."""

    def put_file(self, key: str, stream: BinaryIO, size: int, rate_limiter: RateLimiter) -> None:
        """Create or replace an object with the next ``size`` bytes of a stream, read once."""

    def get(self, key: str) -> Optional[bytes]:
        """Return a small object; None if it is missing."""

    def read(self, key: str, offset: int, write: Callable[[bytes], None]) -> None:
        """Pass an object's bytes from ``offset`` to ``write``."""

    def list(self, prefix: str) -> Iterator[ObjectStat]:
        """Yield the objects whose keys begin with the prefix."""

    def delete(self, key: str) -> None:
        """Remove an object, if it exists."""

    def abandon(self, prefix: str) -> None:
        """Remove remains of unfinished uploads under the prefix; none may be active."""

    def close(self) -> None:
        """Close connections; the store stays usable."""

    def url(self, key: str, seconds: int) -> str:
        """Return a URL of an object; in a bucket a presigned one, valid for ``seconds``."""


def open_checkpoint_store(place: Mapping[str, Any], secrets: Mapping[str, str]) -> CheckpointStore:
    """Open the store ``{url, endpoint_url, secret}``; secret None: anonymous.

    The path of a ``file:`` URL may be percent-encoded, a bucket's prefix may not.
    """
    url = str(place["url"])
    scheme, _, rest = url.partition("://")
    if scheme == "file" and rest.startswith("/"):
        return DirectoryCheckpointStore(Path(unquote(rest)))
    bucket, _, prefix = rest.partition("/")
    if scheme != "s3" or not bucket:
        raise NodeError(f"unsupported checkpoint store {url!r}", "Use file:/// or s3://.")
    name = place.get("secret")
    if name is not None and name not in secrets:
        raise StorageError(
            f"the credential for {url} ({name}) is not available", code="checkpoint-store"
        )
    credential: Mapping[str, Any] = {}
    if name is not None:
        try:
            credential = json.loads(secrets[name])
            credential["aws_access_key_id"], credential["aws_secret_access_key"]
            # the region becomes part of a host name
            valid = re.fullmatch("[A-Za-z0-9_-]*", credential.get("aws_region") or "") is not None
        except (ValueError, KeyError, TypeError):
            valid = False
        if not valid:
            raise StorageError(
                f"secret {name} is not a credential of a bucket",
                "Use JSON: aws_access_key_id, aws_secret_access_key, and if needed aws_region and aws_session_token.",
                code="checkpoint-store",
            )
    # imported on demand: it needs http and ssl
    s3 = import_module("trainctl.base.checkpoints.s3")
    return cast(CheckpointStore, s3.S3CheckpointStore(bucket, prefix.strip("/"), place, credential))


@contextlib.contextmanager
def store_errors(place: Mapping[str, Any]) -> Iterator[None]:
    """Convert errors of the store to a StorageError that names it."""
    url = place.get("url")
    try:
        yield
    except (StorageError, OSError) as error:
        if url is None:
            raise
        cause = from_os_error(error, str(url)) if isinstance(error, OSError) else error
        summary = f"checkpoint store {url}: {cause.summary}"
        raise StorageError(summary, cause.detail, code="checkpoint-store") from None


_BLOCK = 2**18
_MAX_BYTES = 64 * 2**20
"""Limit of ``get``; manifests of a million files are smaller."""


class DirectoryCheckpointStore:
    """A ``CheckpointStore`` whose objects are files, written atomically; a group may share the directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, key: str, data: bytes) -> None:
        self.put_file(key, BytesIO(data), len(data), RateLimiter())

    def put_file(self, key: str, stream: BinaryIO, size: int, rate_limiter: RateLimiter) -> None:
        path = self._path(key)
        try:
            make_directory(path.parent, shared=True)
            mode = file_mode_for(path.parent)
            write_atomic(path, _blocks(stream, size, rate_limiter), mode=mode)
        except OSError as error:
            error.filename = error.filename or str(path)
            raise

    def get(self, key: str) -> Optional[bytes]:
        """Return a small object; None if it is missing or a directory."""
        try:
            with self.open(key) as stream:
                return stream.read(_MAX_BYTES)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def read(self, key: str, offset: int, write: Callable[[bytes], None]) -> None:
        try:
            with self.open(key) as stream:
                stream.seek(offset)
                for data in iter(lambda: stream.read(_BLOCK), b""):
                    write(data)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise UnknownOnNode(f"{key!r} no longer exists") from None

    def list(self, prefix: str) -> Iterator[ObjectStat]:
        """Yield the objects below a prefix, without symlinks."""
        top = self.root / prefix.rpartition("/")[0]
        for directory, inner, names in os.walk(str(top)):
            inner.sort()
            for name in sorted(names):
                path = Path(directory, name)
                key = path.relative_to(self.root).as_posix()
                with contextlib.suppress(FileNotFoundError):
                    status = path.lstat()
                    if key.startswith(prefix) and not path.is_symlink():
                        yield ObjectStat(key, status.st_size, status.st_mtime)

    def delete(self, key: str) -> None:
        """Remove an object and its then empty directories."""
        path = self._path(key)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.unlink()
        for above in path.parents:
            if above == self.root or list_names(above):
                return
            with contextlib.suppress(OSError):  # another process may have added a file
                above.rmdir()

    def abandon(self, prefix: str) -> None:
        """Remove temporary files of killed uploads."""
        for stored in list(self.list(prefix)):
            if is_temporary(stored.key.rpartition("/")[2]):
                self.delete(stored.key)

    def close(self) -> None:
        """Do nothing; no files are kept open."""

    def url(self, key: str, seconds: int) -> str:
        return "file://" + quote(os.fsencode(str(self._path(key))))

    def open(self, key: str) -> BinaryIO:
        """Open for reading; symlinks in checkpoints must not lead outside."""
        path = self._path(key)
        if path.is_symlink() and resolve_within(path, self.root) is None:
            raise FileNotFoundError(path)
        return path.open("rb")

    def _path(self, key: str) -> Path:
        if any(part in ("", ".", "..") for part in key.split("/")) or "\0" in key:
            raise UnstorableFile(f"{key!r} is not a valid object name")
        return self.root / key


def _blocks(stream: BinaryIO, size: int, rate_limiter: RateLimiter) -> Iterator[bytes]:
    while size > 0:
        data = stream.read(min(_BLOCK, size))
        if not data:
            raise UnstorableFile("the file was truncated while it was read")
        rate_limiter.acquire(len(data))
        yield data
        size -= len(data)
