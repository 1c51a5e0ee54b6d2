"""Paths on a node, and validation of names that become file names."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Mapping, Optional

from trainctl.base.lazy_pattern import compile_lazily
from trainctl.errors import NodeError
from trainctl.node.system.blob_files import BlobFiles

_NAME = compile_lazily(r"[A-Za-z0-9][A-Za-z0-9._=,@+-]{0,199}")
_SHA256 = compile_lazily(r"[0-9a-f]{64}")


class Layout:
    """Paths under one root directory, and of its cache, which may be elsewhere."""

    def __init__(self, root: Any, cache: Optional[Any] = None) -> None:
        self.root = check_absolute(root, "root")
        cache = self.root / "cache" if cache is None else check_absolute(cache, "cache")
        self.cache = cache
        self.files = BlobFiles(cache)
        self.blobs, self.partial = self.files.blobs, self.files.partial
        self.locks = cache / "locks"
        self.trees = cache / "trees"
        self.completion_markers = cache / "complete"
        self.listings = cache / "listings"
        self.references = cache / "references"
        self.holds = cache / "holds"
        self.reservations = cache / "reservations"
        self.code = self.root / "code"
        self.runs = self.root / "runs"
        self.queue = self.root / "queue"
        self.applies = self.queue / "applies"
        self.environments = self.root / "environments"
        self.training = self.root / "training"

    def tree(self, listing: str) -> Path:
        """Directory with the hard links of a listing."""
        return self.trees / listing

    def completion_marker(self, listing: str) -> Path:
        """File that exists if the listing's tree is complete."""
        return self.completion_markers / f"{listing}.json"

    def listing(self, listing: str) -> Path:
        """Document of the listing."""
        return self.listings / f"{listing}.json"

    def pending_marker(self, listing: str) -> Path:
        """The completion marker during an eviction."""
        return self.completion_markers / f"{listing}.pending"

    def run(self, key: Any) -> Path:
        """Directory of a run."""
        return self.runs / check_name(key, "key")

    def archive(self, digest: Any) -> Path:
        """Tar of a code tree."""
        return self.code / (check_name(str(digest).replace(":", "-"), "digest") + ".tar")


def layout_of(request: Mapping[str, Any]) -> Layout:
    """Paths for a request: below ``root``, with weights in ``cache.dir`` if set."""
    return Layout(request["root"], (request.get("cache") or {}).get("dir"))


def check_name(value: Any, label: str) -> str:
    """Return the value if it is a valid file name; else TrainctlError with the label."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise NodeError(f"{label} {value!r} is not a valid file name")
    return value


def check_sha256(value: Any, label: str) -> str:
    """Return the value if it is a SHA-256 digest in hex."""
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise NodeError(f"{label} {value!r} is not a hex SHA-256 digest")
    return value


def check_absolute(value: Any, label: str) -> Path:
    """Return the value as a path if it is absolute and contains no ``..``."""
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        raise NodeError(f"{label} {value!r} is not an absolute path")
    path = Path(value)
    if ".." in path.parts:
        raise NodeError(f"{label} {value!r} contains '..'")
    return path
