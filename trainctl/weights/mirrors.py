"""The operator's mirror: a store of content, and where it is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.model.delivery import SERVES_ALL, MirrorSite, ServingCapability
from trainctl.plugin_api.provider import Node
from trainctl.plugin_api.sources import (
    ByteRange,
    Fill,
    HeadSource,
    RangeSource,
    SourceCredential,
    WeightSource,
)
from trainctl.store.backends.directory import DirectoryObjects
from trainctl.store.store import MirrorStore


@dataclass(frozen=True)
class HostMirrorLocation:
    """On which host, of which provider, and in which directory (None: below its data) a mirror is."""

    provider: str
    node: Node
    path: str | None = None

    @property
    def directory(self) -> str:
        """The directory, in either case."""
        return self.path or f"{self.node.data}/mirror"

    @property
    def url(self) -> str:
        """As a manifest would name it."""
        return f"node://{self.node.cluster}{self.directory}"

    def is_on(self, node: Node) -> bool:
        """Whether that host and a node are one machine, as far as their settings tell."""
        mine = self.node
        return (mine.address, mine.details.get("port")) == (node.address, node.details.get("port"))


class Mirror(Protocol):
    """A store in a directory of this machine, in one of a host, or in a bucket. A host's properties may raise NodeError."""

    @property
    def store(self) -> MirrorStore:
        """What is stored. Operations on a host's may also raise NodeError."""
        ...

    @property
    def on_a_host(self) -> bool:
        """Whether it is in a directory of a cluster's host."""
        ...

    @property
    def in_a_bucket(self) -> bool:
        """Whether it is in a bucket."""
        ...

    @property
    def place(self) -> HostMirrorLocation | None:
        """Its host and directory, if it is on a host."""
        ...

    @property
    def path(self) -> str | None:
        """The directory, on the machine where it is; None in a bucket."""
        ...

    @property
    def url(self) -> str:
        """As a manifest names it."""
        ...

    @property
    def endpoint(self) -> str:
        """The server of a bucket, if the manifest names one, without its last ``/``; else empty."""
        ...

    @property
    def serving(self) -> ServingCapability:
        """How its host hands weights to nodes."""
        ...

    def connect(self) -> None:
        """Begin to connect. Errors are raised by later operations."""
        ...


@dataclass(frozen=True)
class DirectMirror:
    """A mirror that this process reads and writes itself: a directory of this machine, or a bucket."""

    store: MirrorStore
    endpoint: str = ""

    on_a_host = False
    place = None
    serving = SERVES_ALL

    @property
    def in_a_bucket(self) -> bool:
        """See Mirror."""
        return self.path is None

    @property
    def path(self) -> str | None:
        """See Mirror."""
        objects = self.store.objects
        return str(objects.root) if isinstance(objects, DirectoryObjects) else None

    @property
    def url(self) -> str:
        """See Mirror."""
        return self.store.objects.url

    def connect(self) -> None:
        """See Mirror."""


_: type[Mirror] = DirectMirror


def directory_of(mirror: Mirror) -> Path | None:
    """The directory of a mirror on this machine."""
    return None if is_remote(mirror) or mirror.path is None else Path(mirror.path)


def site_of(mirror: Mirror) -> MirrorSite:
    """Where a mirror is, as a state remembers it. NodeError if that is unknown."""
    return MirrorSite(mirror.url, mirror.endpoint)


def is_remote(mirror: Mirror) -> bool:
    """Whether a mirror is not on this machine."""
    return mirror.on_a_host or mirror.in_a_bucket


class SourceUpstream:
    """An Upstream: a resolved source, and the credential that opens it.

    ``bytes_read`` counts what this process reads of it, including what it reads again.
    """

    def __init__(
        self, weights: WeightSource, resolved: ResolvedSource, credential: SourceCredential | None
    ) -> None:
        self._weights = weights
        self._resolved = resolved
        self._credential = credential
        self._lock = threading.Lock()
        self.bytes_read = 0

    @property
    def source(self) -> str:
        """See Upstream."""
        return self._resolved.source

    @contextmanager
    def open(self, file: SourceFile, offset: int) -> Iterator[Iterator[bytes]]:
        """See Upstream."""
        with self._weights.open(self._resolved, file, offset, self._credential) as pieces:
            yield map(self._counted, pieces)

    @contextmanager
    def read_range(self, file: SourceFile, offset: int, length: int) -> Iterator[Fill | None]:
        """See Upstream."""
        if not isinstance(self._weights, RangeSource):
            yield None
            return
        span = ByteRange(offset, length)
        with self._weights.read_range(self._resolved, file, span, self._credential) as fill:
            yield fill and self._counting(fill)

    def checksum(self, file: SourceFile) -> str:
        """See Upstream."""
        if isinstance(self._weights, HeadSource):
            return self._weights.stat(self._resolved, file, self._credential)
        return file.checksum

    def needs_relay(self, file: SourceFile) -> bool:
        """Whether a host can't read the file by a link, as far as that is known without a request."""
        return self._weights.needs_relay(file, self._credential)

    def presigned_url(self, file: SourceFile) -> str | None:
        """A URL by which a host may read the file for a while; None if there is none."""
        return self._weights.presigned_url(self._resolved, file, self._credential)

    def _counting(self, fill: Fill) -> Fill:
        def counted(view: memoryview) -> None:
            fill(view)
            self._count(len(view))

        return counted

    def _counted(self, piece: bytes) -> bytes:
        self._count(len(piece))
        return piece

    def _count(self, size: int) -> None:
        with self._lock:
            self.bytes_read += size
