"""The store that a run's settings name: a directory, or a prefix of a bucket."""

from __future__ import annotations

import contextlib
import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any, Iterator, Mapping, cast
from urllib.parse import unquote

from trainctl.base.checkpoints.directory import DirectoryStore
from trainctl.base.checkpoints.store import Store
from trainctl.base.failure import Failure, from_os_error


def open_store(place: Mapping[str, Any], secrets: Mapping[str, str]) -> Store:
    """The store that ``{url, endpoint_url, secret}`` names; ``secret`` is a key of ``secrets``, None for anonymous.

    A directory may be written as it is or in quotes; a bucket's prefix is what is written.
    """
    url = str(place["url"])
    scheme, _, rest = url.partition("://")
    if scheme == "file" and rest.startswith("/"):
        return DirectoryStore(Path(unquote(rest)))
    bucket, _, prefix = rest.partition("/")
    if scheme != "s3" or not bucket:
        raise Failure("request", f"checkpoints can't be kept at {url!r}", "Name file:/// or s3://.")
    name = place.get("secret")
    if name is not None and name not in secrets:
        raise Failure("denied", f"the credential for {url} ({name}) is not here")
    credential = _credential(secrets[name], str(name)) if name is not None else {}
    # With it come http and ssl, which few calls need.
    s3 = import_module("trainctl.base.checkpoints.s3")
    return cast(Store, s3.S3Store(bucket, prefix.strip("/"), place, credential))


def _credential(text: str, name: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
        found["aws_access_key_id"], found["aws_secret_access_key"]
        # A region becomes part of a server's name.
        is_one = re.fullmatch("[A-Za-z0-9_-]*", found.get("aws_region") or "")
    except (ValueError, KeyError, TypeError):
        is_one = None
    if is_one is None:
        raise Failure(
            "denied",
            f"secret {name} is no credential of a bucket",
            "It holds JSON: aws_access_key_id, aws_secret_access_key, and where needed aws_region and aws_session_token.",
        )
    return cast(Mapping[str, Any], found)


@contextlib.contextmanager
def blamed(place: Mapping[str, Any]) -> Iterator[None]:
    """Failure ``checkpoints``, which names the store, for whatever a store of its own at ``place`` refuses or can't do meanwhile."""
    url = place.get("url")
    try:
        yield
    except (Failure, OSError) as error:
        if url is None or (isinstance(error, Failure) and error.kind not in ("store", "denied")):
            raise
        why = error if isinstance(error, Failure) else from_os_error(error, str(url))
        raise Failure("checkpoints", f"checkpoint store {url}: {why.summary}", why.detail) from None
