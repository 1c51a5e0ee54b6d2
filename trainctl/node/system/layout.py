"""Names on a node, and the check that what becomes a file name is one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Mapping, Optional

from trainctl.base.failure import Failure
from trainctl.node.system.blob_files import BlobFiles

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=,@+-]{0,199}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Layout:
    """Where everything under one ROOT is stored, and its cache of weights, which may be elsewhere."""

    def __init__(self, root: Any, cache: Optional[Any] = None) -> None:
        self.root = check_absolute(root, "root")
        cache = self.root / "cache" if cache is None else check_absolute(cache, "cache")
        self.cache = cache
        self.files = BlobFiles(cache)
        self.blobs, self.partial = self.files.blobs, self.files.partial
        self.locks = cache / "locks"
        self.trees = cache / "trees"
        self.seals = cache / "seals"
        self.listings = cache / "listings"
        self.references = cache / "references"
        self.leases = cache / "leases"
        self.reservations = cache / "reservations"
        self.code = self.root / "code"
        self.runs = self.root / "runs"
        self.queue = self.root / "queue"
        self.applies = self.queue / "applies"
        self.environments = self.root / "environments"
        self.training = self.root / "training"

    def tree(self, listing: str) -> Path:
        """The hard links of a listing."""
        return self.trees / listing

    def completion_marker(self, listing: str) -> Path:
        """The proof that the listing's tree is whole."""
        return self.seals / f"{listing}.json"

    def listing(self, listing: str) -> Path:
        """The listing's document."""
        return self.listings / f"{listing}.json"

    def pending_marker(self, listing: str) -> Path:
        """The seal while somebody decides whether the tree goes."""
        return self.seals / f"{listing}.doomed"

    def run(self, key: Any) -> Path:
        """The directory of a run."""
        return self.runs / check_name(key, "key")

    def archive(self, digest: Any) -> Path:
        """The tar of a code tree."""
        return self.code / (check_name(str(digest).replace(":", "-"), "digest") + ".tar")


def layout_of(request: Mapping[str, Any]) -> Layout:
    """The places that a request names: ``root``, and in ``cache`` a ``dir`` where its weights are cached."""
    return Layout(request["root"], (request.get("cache") or {}).get("dir"))


def check_name(value: Any, what: str) -> str:
    """The value, if it can be a file name; else Failure names ``what``."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise Failure("request", f"{what} {value!r} can't be a file name")
    return value


def check_sha256(value: Any, what: str) -> str:
    """The value, if it is a hex sha256."""
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise Failure("request", f"{what} {value!r} is not a sha256 in hex")
    return value


def check_absolute(value: Any, what: str) -> Path:
    """The value as a path, if it is an absolute one without ``..``."""
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        raise Failure("request", f"{what} {value!r} is not an absolute path")
    path = Path(value)
    if ".." in path.parts:
        raise Failure("request", f"{what} {value!r} holds '..'")
    return path


def is_inside(path: Path, root: Path) -> bool:
    """Whether the path is the root or lies below it, by name alone."""
    return path == root or root in path.parents
