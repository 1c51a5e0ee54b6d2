"""The mirror: its location, its store, and reading sources for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from trainctl.base.lazy_dataclass import dataclass
from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.model.delivery import SERVES_ALL, MirrorSite, ServingCapability
from trainctl.plugin_api.provider import Node
from trainctl.store.objects import DirectoryObjects

if TYPE_CHECKING:
    from trainctl.plugin_api.sources import Fill, SourceCredential, WeightSource
    from trainctl.store.store import MirrorStore


@dataclass(frozen=True)
class HostMirrorLocation:
    """Host and directory of a mirror; ``path`` None: below the host's data directory."""

    provider: str
    node: Node
    path: str | None = None

    @property
    def directory(self) -> str:
        """Directory of the mirror on the host."""
        return self.path or f"{self.node.data}/mirror"

    @property
    def url(self) -> str:
        """URL as in a manifest."""
        return f"node://{self.node.cluster}{self.directory}"


class Mirror(Protocol):
    """A store in a local directory, a host's directory or a bucket."""

    @property
    def store(self) -> MirrorStore:
        """The store; operations on a host's may raise NodeError."""
        ...

    @property
    def on_a_host(self) -> bool:
        """Whether it is in a directory of a cluster's host."""
        ...

    @property
    def place(self) -> HostMirrorLocation | None:
        """Host and directory, if it is on a host."""
        ...

    @property
    def path(self) -> str | None:
        """Directory on its machine; None for a bucket."""
        ...

    @property
    def url(self) -> str:
        """URL as in a manifest."""
        ...

    @property
    def endpoint(self) -> str:
        """Endpoint of a bucket in the manifest, without a trailing ``/``, or ``""``."""
        ...

    @property
    def serving(self) -> ServingCapability:
        """How its host serves nodes."""
        ...

    def connect(self) -> None:
        """Start to connect; later operations raise the errors."""
        ...


@dataclass(frozen=True)
class DirectMirror:
    """A mirror that this process accesses itself: a local directory or a bucket."""

    store: MirrorStore
    endpoint: str = ""

    on_a_host = False
    place = None
    serving = SERVES_ALL

    @property
    def path(self) -> str | None:
        objects = self.store.objects
        return str(objects.root) if isinstance(objects, DirectoryObjects) else None

    @property
    def url(self) -> str:
        return self.store.objects.url

    def connect(self) -> None:
        """There is nothing to connect to."""


_: type[Mirror] = DirectMirror


def site_of(mirror: Mirror) -> MirrorSite:
    """Return the location of a mirror as recorded in the state; NodeError if unknown."""
    return MirrorSite(mirror.url, mirror.endpoint)


def is_remote(mirror: Mirror) -> bool:
    """Return whether a mirror is not on this machine."""
    return mirror.on_a_host or mirror.path is None


class SourceUpstream:
    """An Upstream: a resolved source with its credential.

    ``bytes_read`` counts the bytes that this process reads, including repeated ones.
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
        return self._resolved.source

    @contextmanager
    def open(self, file: SourceFile, offset: int) -> Iterator[Iterator[bytes]]:
        def counted(data: bytes) -> bytes:
            self._count(len(data))
            return data

        with self._weights.open(self._resolved, file, offset, self._credential) as stream:
            yield map(counted, stream)

    @contextmanager
    def read_range(self, file: SourceFile, offset: int, length: int) -> Iterator[Fill | None]:
        from trainctl.plugin_api.sources import ByteRange, RangeSource

        if not isinstance(self._weights, RangeSource):
            yield None
            return
        span = ByteRange(offset, length)
        with self._weights.read_range(self._resolved, file, span, self._credential) as fill:

            def counted(view: memoryview) -> None:
                if fill is not None:
                    fill(view)
                self._count(len(view))

            yield counted if fill else None

    def checksum(self, file: SourceFile) -> str:
        from trainctl.plugin_api.sources import HeadSource

        if isinstance(self._weights, HeadSource):
            return self._weights.stat(self._resolved, file, self._credential)
        return file.checksum

    def needs_relay(self, file: SourceFile) -> bool:
        """Return whether hosts can't read the file by URL."""
        return self._weights.needs_relay(file, self._credential)

    def presigned_url(self, file: SourceFile) -> str | None:
        """Return a URL by which a host may read the file; None without one."""
        return self._weights.presigned_url(self._resolved, file, self._credential)

    def _count(self, size: int) -> None:
        with self._lock:
            self.bytes_read += size
