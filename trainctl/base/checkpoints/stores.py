"""Checkpoint stores: interface and opening; see DESIGN.md, "Checkpoints"."""

from __future__ import annotations

import contextlib
import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Callable, Iterator, Mapping, Optional, Protocol, cast
from urllib.parse import unquote

from trainctl.base.checkpoints.directory_store import DirectoryCheckpointStore
from trainctl.base.failure import Failure, from_os_error
from trainctl.base.objects import ObjectStat
from trainctl.base.throughput import RateLimiter


class CheckpointStore(Protocol):
    """Objects under names that jobs choose, written atomically.

    Errors are Failure: ``store`` (transient), ``denied`` (needs a person), ``name`` (invalid key), ``missing``; and
    OSError from a disk.
    """

    def put(self, key: str, data: bytes) -> None:
        """Create or replace a small object."""
        ...

    def put_file(self, key: str, stream: BinaryIO, size: int, rate_limiter: RateLimiter) -> None:
        """Create or replace an object with the next ``size`` bytes of a stream, read once."""
        ...

    def get(self, key: str) -> Optional[bytes]:
        """Return a small object; None if it is missing."""
        ...

    def read(self, key: str, offset: int, write: Callable[[bytes], None]) -> None:
        """Pass an object's bytes from ``offset`` to ``write``."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectStat]:
        """Yield the objects whose keys begin with the prefix."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object, if it exists."""
        ...

    def abandon(self, prefix: str) -> None:
        """Remove remains of unfinished uploads under the prefix; none may be active."""
        ...

    def close(self) -> None:
        """Close connections; the store stays usable."""
        ...

    def url(self, key: str, seconds: int) -> str:
        """Return a URL of an object; in a bucket a presigned one, valid for ``seconds``."""
        ...


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
        raise Failure("request", f"unsupported checkpoint store {url!r}", "Use file:/// or s3://.")
    name = place.get("secret")
    if name is not None and name not in secrets:
        raise Failure("denied", f"the credential for {url} ({name}) is not available")
    credential = _credential(secrets[name], str(name)) if name is not None else {}
    # imported on demand: it needs http and ssl
    s3 = import_module("trainctl.base.checkpoints.s3_store")
    return cast(CheckpointStore, s3.S3CheckpointStore(bucket, prefix.strip("/"), place, credential))


def _credential(text: str, name: str) -> Mapping[str, Any]:
    try:
        credential = json.loads(text)
        credential["aws_access_key_id"], credential["aws_secret_access_key"]
        # the region becomes part of a host name
        valid = re.fullmatch("[A-Za-z0-9_-]*", credential.get("aws_region") or "") is not None
    except (ValueError, KeyError, TypeError):
        valid = False
    if not valid:
        raise Failure(
            "denied",
            f"secret {name} is not a credential of a bucket",
            "Use JSON: aws_access_key_id, aws_secret_access_key, and if needed aws_region and aws_session_token.",
        )
    return cast(Mapping[str, Any], credential)


@contextlib.contextmanager
def store_errors(place: Mapping[str, Any]) -> Iterator[None]:
    """Convert errors of the store to a Failure ``checkpoints`` that names it."""
    url = place.get("url")
    try:
        yield
    except (Failure, OSError) as error:
        if url is None or (isinstance(error, Failure) and error.kind not in ("store", "denied")):
            raise
        cause = error if isinstance(error, Failure) else from_os_error(error, str(url))
        raise Failure(
            "checkpoints", f"checkpoint store {url}: {cause.summary}", cause.detail
        ) from None
