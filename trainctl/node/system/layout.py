"""Names on a node, and the check that what becomes a file name is one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Mapping, Optional

from trainctl.base.failure import Failure

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=,@+-]{0,199}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Layout:
    """Where everything under one ROOT lies, and its cache of weights where that lies elsewhere.

    What is looked up for each of many files is text: making a Path costs more than the system call that it is for.
    """

    def __init__(self, root: Any, cache: Optional[Any] = None) -> None:
        self.root = absolute(root, "root")
        cache = self.root / "cache" if cache is None else absolute(cache, "cache")
        self.cache = cache
        self.blobs = cache / "blobs" / "sha256"
        self.partial = cache / "partial"
        self._blobs_name, self._partial_name = str(self.blobs), str(self.partial)
        self.locks = cache / "locks"
        self.trees = cache / "trees"
        self.seals = cache / "seals"
        self.references = cache / "references"
        self.leases = cache / "leases"
        self.reservations = cache / "reservations"
        self.code = self.root / "code"
        self.runs = self.root / "runs"
        self.queue = self.root / "queue"
        self.applies = self.queue / "applies"
        self.environments = self.root / "environments"
        self.training = self.root / "training"

    def blob(self, sha256: str) -> Path:
        """The blob of a content."""
        return Path(self.blob_name(sha256))

    def blob_name(self, sha256: str) -> str:
        """The same as text."""
        return f"{self._blobs_name}/{sha256[:2]}/{sha256}"

    def part(self, sha256: str) -> Path:
        """The blob while it is fetched."""
        return Path(self.part_name(sha256))

    def part_name(self, sha256: str) -> str:
        """The same as text."""
        return f"{self._partial_name}/{sha256}.part"

    def chunk_map(self, sha256: str) -> Path:
        """Which chunks of a blob that is fetched are verified: a byte for each."""
        return Path(self.map_name(sha256))

    def map_name(self, sha256: str) -> str:
        """The same as text."""
        return f"{self._partial_name}/{sha256}.map"

    def tree(self, listing: str) -> Path:
        """The hard links of a listing."""
        return self.trees / listing

    def seal(self, listing: str) -> Path:
        """The proof that the listing's tree is whole."""
        return self.seals / f"{listing}.json"

    def unsealed(self, listing: str) -> Path:
        """The seal while somebody decides whether the tree goes."""
        return self.seals / f"{listing}.doomed"

    def run(self, key: Any) -> Path:
        """The directory of a run."""
        return self.runs / name(key, "key")

    def archive(self, digest: Any) -> Path:
        """The tar of a code tree."""
        return self.code / (name(str(digest).replace(":", "-"), "digest") + ".tar")


def layout_of(request: Mapping[str, Any]) -> Layout:
    """The places that a request names: ``root``, and in ``cache`` a ``dir`` where its weights are cached."""
    return Layout(request["root"], (request.get("cache") or {}).get("dir"))


def name(value: Any, what: str) -> str:
    """The value, if it can be a file name; else Failure names ``what``."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise Failure("request", f"{what} {value!r} can't be a file name")
    return value


def sha256(value: Any, what: str) -> str:
    """The value, if it is a hex sha256."""
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise Failure("request", f"{what} {value!r} is not a sha256 in hex")
    return value


def absolute(value: Any, what: str) -> Path:
    """The value as a path, if it is an absolute one without ``..``."""
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        raise Failure("request", f"{what} {value!r} is not an absolute path")
    path = Path(value)
    if ".." in path.parts:
        raise Failure("request", f"{what} {value!r} holds '..'")
    return path


def inside(path: Path, root: Path) -> bool:
    """Whether the path is the root or lies below it, by name alone."""
    return path == root or root in path.parents
