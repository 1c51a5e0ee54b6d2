"""A weight source: what turns a URI into files, by metadata only, and hands out their bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Callable, NamedTuple, Protocol, runtime_checkable

from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.base.retry import RetryFn


@dataclass(frozen=True)
class SourceCredential:
    """What opens a source. ``value`` is a secret and is registered for redaction; ``origin`` says where it came from.

    Of a bucket it is text as ``trainctl.objects.credentials`` reads it, and empty where requests are not to be signed.
    ``endpoint`` is the server that the manifest names for it; ``renew`` gives the next credential when this one has ended.
    Of an empty one ``withheld_reason`` says where a credential is that isn't sent to that server, as only the manifest names it.
    """

    value: str
    origin: str
    endpoint: str | None = None
    renew: Callable[[], SourceCredential] | None = field(default=None, compare=False, repr=False)
    withheld_reason: str | None = None


class WeightSource(Protocol):
    """One scheme. Errors are SourceError's kinds, and name the file where there is one. No method retries by itself."""

    def resolve(
        self, uri: str, revision: str | None, credential: SourceCredential | None
    ) -> ResolvedSource:
        """Every file at the revision (None: what the URI says), before patterns. Metadata only."""
        ...

    def custom_endpoint(self, uri: str, credential: SourceCredential | None) -> str | None:
        """The server, if it isn't the platform's own: its sources are recorded apart. Makes no request."""
        ...

    def presigned_url(
        self, resolved: ResolvedSource, file: SourceFile, credential: SourceCredential | None
    ) -> str | None:
        """A URL by which anybody may read the file for a while, and that holds no credential; None where there is none.

        One that no request was made for may redirect. It is asked again when it has expired.
        """
        ...

    def needs_relay(self, file: SourceFile, credential: SourceCredential | None) -> bool:
        """Whether there will be no link, as far as it is known without a request."""
        ...

    def open(
        self,
        resolved: ResolvedSource,
        file: SourceFile,
        offset: int,
        credential: SourceCredential | None,
    ) -> AbstractContextManager[Iterator[bytes]]:
        """The file's bytes from the offset on, in pieces of at most 1 MiB. Ends early only by raising."""
        ...


@runtime_checkable
class PagedSource(WeightSource, Protocol):
    """A source that lists files page by page, so that a failed page is retried alone."""

    def resolve_with(
        self, uri: str, revision: str | None, credential: SourceCredential | None, each: RetryFn
    ) -> ResolvedSource:
        """See ``resolve``; every request is made by ``each``."""
        ...


@runtime_checkable
class HeadSource(WeightSource, Protocol):
    """A source that can check whether a file's ``checksum`` is one."""

    def stat(
        self, resolved: ResolvedSource, file: SourceFile, credential: SourceCredential | None
    ) -> str:
        """The file's ``checksum`` after asking its server about this file; empty if its ETag is not a digest."""
        ...


Fill = Callable[[memoryview], None]
"""Puts the next bytes of a part where they are wanted; raises where they don't come."""


class ByteRange(NamedTuple):
    """So many bytes from an offset on, none of them beyond the end."""

    offset: int
    length: int


@runtime_checkable
class RangeSource(WeightSource, Protocol):
    """A source of which several connections can read one file, each a part of it: what makes large files fast."""

    def read_range(
        self,
        resolved: ResolvedSource,
        file: SourceFile,
        span: ByteRange,
        credential: SourceCredential | None,
    ) -> AbstractContextManager[Fill | None]:
        """Those bytes of the file; None where upstream sends whole files only."""
        ...
