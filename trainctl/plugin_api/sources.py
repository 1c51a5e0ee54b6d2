"""Interface of weight sources, which list and read the files of a URI."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Callable, Protocol, runtime_checkable

from trainctl.base.lazy_dataclass import dataclass, field
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.base.retry import RetryFn


@dataclass(frozen=True)
class SourceCredential:
    """Credential of a source; ``value`` is secret and registered for redaction.

    For buckets, ``value`` has the format of ``trainctl.buckets.credentials``, empty for unsigned requests. ``endpoint``
    is the manifest's endpoint URL. ``renew`` returns the next credential after expiry. ``withheld_reason``: why an
    existing credential is not sent to an untrusted server. ``requester_pays``: it may be billed.
    """

    value: str
    origin: str
    endpoint: str | None = None
    renew: Callable[[], SourceCredential] | None = field(default=None, compare=False, repr=False)
    withheld_reason: str | None = None
    requester_pays: bool = False


class WeightSource(Protocol):
    """A source of one scheme.

    Many threads call it at once, and repeat any call: methods change nothing and never retry. Failures are kinds of
    SourceError: ``retryable`` says whether to repeat the call, ``retry_after`` when. No error shows a credential.
    """

    def resolve(
        self, uri: str, revision: str | None, credential: SourceCredential | None
    ) -> ResolvedSource:
        """List all files at the revision (None: that of the URI), before patterns, sorted by path.

        It reads metadata only. An unchanged source gives an equal result, changed content another validator. SourceNotFound
        and SourceDenied mean just that; servers may confuse the two.
        """
        ...

    def custom_endpoint(self, uri: str, credential: SourceCredential | None) -> str | None:
        """Return the endpoint if it isn't the platform's default, without a request."""
        ...

    def presigned_url(
        self, resolved: ResolvedSource, file: SourceFile, credential: SourceCredential | None
    ) -> str | None:
        """Return a temporary URL that needs no credential, None if unavailable."""
        ...

    def needs_relay(self, file: SourceFile, credential: SourceCredential | None) -> bool:
        """Whether there is no presigned URL, as far as known without a request."""
        ...

    def open(
        self,
        resolved: ResolvedSource,
        file: SourceFile,
        offset: int,
        credential: SourceCredential | None,
    ) -> AbstractContextManager[Iterator[bytes]]:
        """Read the file from an offset in non-empty pieces of at most 1 MiB; the block may be left before the end.

        SourceMismatch if the file isn't the resolved one any more, as far as the server tells; SourceInterrupted at an
        early end. Both may come while it is iterated.
        """
        ...


@runtime_checkable
class PagedSource(WeightSource, Protocol):
    """A source that lists files by pages, so that each page can be retried."""

    def resolve_with(
        self, uri: str, revision: str | None, credential: SourceCredential | None, each: RetryFn
    ) -> ResolvedSource:
        """Like ``resolve``, with ``each`` making every request, which may make it again."""
        ...


@runtime_checkable
class HeadSource(WeightSource, Protocol):
    """A source that can verify the ``checksum`` of a single file."""

    def stat(
        self, resolved: ResolvedSource, file: SourceFile, credential: SourceCredential | None
    ) -> str:
        """Request the file's ``checksum``; empty if its ETag is not a digest."""
        ...


Fill = Callable[[memoryview], None]
"""Read the next bytes of a range into a buffer; raise if it ends early."""


class ByteRange(NamedTuple):
    """A range of bytes within a file."""

    offset: int
    length: int


@runtime_checkable
class RangeSource(WeightSource, Protocol):
    """A source that supports reading ranges of a file in parallel."""

    def read_range(
        self,
        resolved: ResolvedSource,
        file: SourceFile,
        span: ByteRange,
        credential: SourceCredential | None,
    ) -> AbstractContextManager[Fill | None]:
        """Open a range of the file; None if upstream only sends complete files.

        One thread fills buffers until they have the whole range. Errors are those of ``open``.
        """
        ...
