"""Stores of checkpoints: objects by key, in a directory or below a prefix of a bucket. See DESIGN.md, "Checkpoints"."""

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
    """Objects under names that jobs choose; readers see all of an object or none of it.

    Errors are Failure: ``store`` for what may pass, ``denied`` for what a person must fix, ``name`` for a key that can't be
    stored, ``missing``; and OSError from a disk.
    """

    def put(self, key: str, data: bytes) -> None:
        """Create or replace a small object."""
        ...

    def put_file(self, key: str, stream: BinaryIO, size: int, rate_limiter: RateLimiter) -> None:
        """Create or replace an object with the next ``size`` bytes of a stream, which is read once, in order."""
        ...

    def get(self, key: str) -> Optional[bytes]:
        """A small object; None if there is none."""
        ...

    def read(self, key: str, offset: int, write: Callable[[bytes], None]) -> None:
        """Pass an object's bytes to ``write``, from an offset on."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectStat]:
        """The objects whose keys begin with the prefix."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object; no error if there is none."""
        ...

    def abandon(self, prefix: str) -> None:
        """Remove what unfinished uploads under the prefix have left; none of them may be under way."""
        ...

    def close(self) -> None:
        """Close connections; the store may be used again."""
        ...

    def url(self, key: str, seconds: int) -> str:
        """URL of an object; that of a bucket works for anybody, for so many seconds."""
        ...


def open_checkpoint_store(place: Mapping[str, Any], secrets: Mapping[str, str]) -> CheckpointStore:
    """The store that ``{url, endpoint_url, secret}`` names; ``secret`` is a key of ``secrets``, None for anonymous.

    The path of a ``file:`` URL may be percent-encoded; a bucket's prefix is taken as it is.
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
    # It imports http and ssl, which few calls need.
    s3 = import_module("trainctl.base.checkpoints.s3_store")
    return cast(CheckpointStore, s3.S3CheckpointStore(bucket, prefix.strip("/"), place, credential))


def _credential(text: str, name: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
        found["aws_access_key_id"], found["aws_secret_access_key"]
        # A region becomes part of a server's name.
        valid = re.fullmatch("[A-Za-z0-9_-]*", found.get("aws_region") or "") is not None
    except (ValueError, KeyError, TypeError):
        valid = False
    if not valid:
        raise Failure(
            "denied",
            f"secret {name} is not a credential of a bucket",
            "Use JSON: aws_access_key_id, aws_secret_access_key, and if needed aws_region and aws_session_token.",
        )
    return cast(Mapping[str, Any], found)


@contextlib.contextmanager
def store_errors(place: Mapping[str, Any]) -> Iterator[None]:
    """Turn errors of the store at ``place`` into a Failure ``checkpoints`` that names it; without a store they pass."""
    url = place.get("url")
    try:
        yield
    except (Failure, OSError) as error:
        if url is None or (isinstance(error, Failure) and error.kind not in ("store", "denied")):
            raise
        why = error if isinstance(error, Failure) else from_os_error(error, str(url))
        raise Failure("checkpoints", f"checkpoint store {url}: {why.summary}", why.detail) from None
