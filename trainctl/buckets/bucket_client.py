"""Operations of a bucket, below its prefix; errors are SourceError."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeVar
from urllib.parse import quote

from trainctl.base.checkpoints.s3_client import is_address
from trainctl.base.pagination import pages
from trainctl.base.retry import RetryFn, no_retry
from trainctl.base.throughput import ThroughputMonitor
from trainctl.buckets.credentials import (
    AwsKeys,
    AzureKey,
    BucketCredential,
    ServiceAccount,
    parse_credential,
    sign_sas_query,
)
from trainctl.buckets.errors import PathStyleRefused, WrongRegion, translate_errors
from trainctl.buckets.location import BucketLocation
from trainctl.buckets.metadata import MetadataClient, ObjectInfo
from trainctl.buckets.obstore_client import (
    SILENCE_SECONDS,
    is_expired,
    object_url,
    open_client,
)
from trainctl.errors import SourceError, SourceInterrupted, SourceMismatch, SourceUnavailable
from trainctl.plugin_api.sources import SourceCredential

if TYPE_CHECKING:
    from obstore import GetResult

    from trainctl.buckets.obstore_client import ObstoreClient

T = TypeVar("T")
SIGNING = (AwsKeys, ServiceAccount, AzureKey)
"""Credentials that can sign URLs."""
BUFFER_BYTES = 2**20
_MIN_YIELD_BYTES = 2**18
_LIMIT_STEP = 2**24
"""Uploads of about the same size share a client and its connections."""
_UNQUOTED = "/~"
_IS_UNDECIDED = re.compile("<Code>(ConditionalRequestConflict|OperationAborted)</Code>")
"""S3 answers 409 while it decides between concurrent requests."""


class Bucket:
    """A bucket; thread-safe. ``renew`` returns the next credential."""

    def __init__(
        self,
        location: BucketLocation,
        access: BucketCredential | None = None,
        origin: str = "the caller",
        *,
        renew: Callable[[], BucketCredential] | None = None,
        environ: Mapping[str, str] = os.environ,
        read_timeout: float = SILENCE_SECONDS,
    ) -> None:
        self.location = location
        self._access = access
        self._origin = origin if access is not None else None
        self._renew = renew
        self._environ = environ
        self._read_timeout = read_timeout
        self._reset()

    def _reset(self) -> None:
        """Open clients with the present location, credential and environment."""
        self._metadata = MetadataClient(
            self.location, self._access, self._environ, self._read_timeout
        )
        self._clients: dict[tuple[bool, int], ObstoreClient] = {}
        self._client(long=False, sent=0)

    def at(self, prefix: str) -> Bucket:
        """Return the bucket at another prefix, as earlier requests have corrected it."""
        return Bucket(
            replace(self.location, prefix=prefix), self._access, self._origin or "",
            renew=self._renew, environ=self._environ, read_timeout=self._read_timeout,
        )  # fmt: skip

    def list(
        self, prefix: str = "", after: str = "", each: RetryFn = no_retry
    ) -> Iterator[ObjectInfo]:
        """Yield objects below ``prefix`` with keys greater than ``after``, in the server's order.

        ``each`` makes every request.
        """

        def page(cursor: str | None) -> tuple[Sequence[ObjectInfo], str | None]:
            return self._request(prefix, lambda _: self._metadata.list_page(prefix, after, cursor))

        endless = SourceError(
            f"{self._named(prefix)}: the server's list has no end (repeated pages)"
        )
        for infos in pages(lambda cursor: each(lambda: page(cursor)), endless):
            yield from infos

    def head(self, key: str) -> ObjectInfo | None:
        """Return an object's metadata; None if it doesn't exist."""
        return self._request(key, lambda _: self._metadata.head(key))

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes | None:
        """Return bytes of a small object from ``offset``; None if it doesn't exist."""
        if length == 0:
            return b"" if self.head(key) else None
        options: dict[str, Any] = {}
        if offset or length is not None:
            options["range"] = {"offset": offset} if length is None else (offset, offset + length)

        def request(store: ObstoreClient) -> bytes | None:
            with suppress(FileNotFoundError):
                result, skip = _open_at(store, key, options, offset)
                data = b"".join(self._iter_body(result))
                return data[skip : None if length is None else skip + length]
            return None

        try:
            return self._request(key, request, long=True)
        except SourceError as error:
            if not options or error.retryable:
                raise
            info = self.head(key)
            if info is None or info.size > offset:
                raise
            return b""  # servers refuse a range after the end

    def fetch(self, key: str, into: BinaryIO) -> bool:
        """Replace a file's content with an object's; return False if missing."""

        def request(store: ObstoreClient) -> bool:
            into.seek(0)
            into.truncate()
            with suppress(FileNotFoundError):
                into.writelines(self._iter_body(store.get(key)))
                return True
            return False

        return self._request(key, request, long=True)

    @contextmanager
    def open(
        self,
        key: str,
        offset: int = 0,
        length: int | None = None,
        *,
        size: int,
        etag: str | None = None,
    ) -> Iterator[Iterator[bytes]]:
        """Open bytes from ``offset`` of an object of ``size``, up to 1 MiB at a time.

        SourceMismatch if size or ETag differ; SourceInterrupted if the body is cut short.
        """
        end = size if length is None else min(size, offset + length)
        options: dict[str, Any] = {"if_match": etag} if etag else {}
        if (offset or end < size) and offset < end:
            options["range"] = (offset, end)
        try:
            result, skip = self._request(
                key, lambda store: _open_at(store, key, options, offset), long=True
            )
        except SourceMismatch:
            if (now := self.head(key)) is not None:
                _check_unchanged(self._named(key), now.size, now.etag, size, etag)
            raise
        meta = result.meta
        _check_unchanged(self._named(key), meta["size"], meta["e_tag"], size, etag)
        yield self._iter_range(key, result, skip, max(0, end - offset))

    def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        """Create or replace an object atomically, in one request."""
        self._request(key, lambda store: store.put(key, data, use_multipart=False), sent=len(data))

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create an object; return False if it exists, by the server's word.

        SourceUnavailable if the server is still deciding between concurrent requests.
        """
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        def request(store: ObstoreClient) -> bool:
            try:
                store.put(key, data, mode="create", use_multipart=False)
            except (AlreadyExistsError, PreconditionError) as error:
                if _IS_UNDECIDED.search(str(error)):
                    raise SourceUnavailable(
                        f"{self._named(key)}: another client is creating the same object"
                    ) from None
                return False
            return True

        return self._request(key, request, sent=len(data))

    def directories(self, path: str = "") -> Sequence[str]:
        """Return the names of the directories in ``path``, sorted."""

        def request(store: ObstoreClient) -> Sequence[str]:
            listed = store.list_with_delimiter(path or None)["common_prefixes"]
            return sorted(name.rstrip("/").rpartition("/")[2] for name in listed)

        return self._request(path, request)

    def delete(self, *keys: str) -> None:
        """Delete objects, by bulk requests if supported; ignore missing ones."""

        def request(store: ObstoreClient) -> None:
            try:
                store.delete(list(keys))
            except FileNotFoundError:  # from servers that delete one by one
                if len(keys) > 1:
                    for key in keys:
                        self.delete(key)

        self._request(keys[0], request)

    def sign(self, key: str, seconds: int, method: Literal["GET", "HEAD"] = "GET") -> str | None:
        """Return a presigned URL; None if this credential can't sign."""
        if not self.can_sign:
            return None
        if isinstance(self._access, AzureKey):
            blob = "/".join(filter(None, (self.location.prefix, key)))
            query = sign_sas_query(self._access, self.location, blob, "r", seconds, time.time())
            return f"{self.address(key)}?{query}"
        import obstore

        validity = timedelta(seconds=seconds)
        if isinstance(self._access, ServiceAccount):
            signer, name = self._google_signer, quote(key, safe=_UNQUOTED)
            return self._request(key, lambda _: obstore.sign(signer, method, name, validity))
        return self._request(key, lambda store: obstore.sign(store, method, key, validity))

    @cached_property
    def _google_signer(self) -> ObstoreClient:
        """Client that signs offline; obstore doesn't quote names in Google's URLs."""
        prefix = quote(self.location.prefix, safe=_UNQUOTED)
        location = replace(self.location, endpoint_source=None, prefix=prefix)
        return open_client(location, self._access, environ=self._environ)

    def address(self, key: str) -> str:
        """Return the unsigned URL of an object."""
        return object_url(self.location, self._access, self._environ, key)

    @property
    def can_sign(self) -> bool:
        """Whether ``sign`` returns URLs."""
        return isinstance(self._access, SIGNING)

    def _request(
        self, key: str, act: Callable[[ObstoreClient], T], *, long: bool = False, sent: int = 0
    ) -> T:
        """Call ``act``, again after a wrong region or address style or an expired credential.

        ``long``: without a limit on the duration. ``sent``: bytes to upload.
        """
        if self._renew is not None and is_expired(self._access):
            self._access = self._renew()
            self._reset()
        try:
            with self._error_context(key):
                return act(self._client(long, sent))
        except SourceError as error:
            if not self._refresh_clients(error):
                raise
        with self._error_context(key):
            return act(self._client(long, sent))

    def _client(self, long: bool, sent: int) -> ObstoreClient:
        steps = -(-sent // _LIMIT_STEP) if sent > BUFFER_BYTES else 0
        kind = (long or steps > 0, steps * _LIMIT_STEP)
        clients = self._clients  # other threads may replace it
        if kind not in clients:
            settings = self._access, self._environ, self._read_timeout
            clients[kind] = open_client(self.location, *settings, long=kind[0], sent=kind[1])
        return clients[kind]

    def _refresh_clients(self, error: SourceError) -> bool:
        """Fix region, style or credential after an error; return whether a retry may succeed."""
        if isinstance(error, PathStyleRefused) and not is_address(self.location.host):
            self.location = replace(self.location, virtual=True)
        elif isinstance(error, WrongRegion) and error.region:
            self._environ = {**self._environ, "AWS_REGION": error.region}
            if isinstance(self._access, AwsKeys):
                self._access = replace(self._access, region=error.region)
        elif error.code == "expired-credential" and self._renew is not None:
            self._access = self._renew()
        else:
            return False
        self._reset()
        return True

    def _iter_body(self, result: GetResult) -> Iterator[bytes]:
        """Yield a body in buffers of useful size; StalledError if it is too slow."""
        throughput, buffer = ThroughputMonitor(self._read_timeout), bytearray()
        stream = iter(result.stream(min_chunk_size=1))
        while True:
            began = time.monotonic()
            received = next(stream, None)
            if received is None:
                break
            throughput.record(len(received), time.monotonic() - began)
            buffer += received
            if len(buffer) >= _MIN_YIELD_BYTES:
                yield bytes(buffer)
                buffer.clear()
        yield bytes(buffer)

    def _iter_range(self, key: str, result: GetResult, skip: int, left: int) -> Iterator[bytes]:
        with self._error_context(key):
            for received in self._iter_body(result):
                view = memoryview(received)[skip:]
                skip -= len(received) - len(view)
                view = view[:left]
                left -= len(view)
                for at in range(0, len(view), BUFFER_BYTES):
                    yield bytes(view[at : at + BUFFER_BYTES])
                if not left:
                    return
        if left:
            raise SourceInterrupted(
                f"{self._named(key)}: connection closed with {left} bytes missing"
            )

    def _error_context(self, key: str) -> Any:
        return translate_errors(self._named(key), self.location.host, self._origin)

    def _named(self, key: str) -> str:
        return f"{self.location.url}: {_display_key(key)}" if key else self.location.url


def _open_at(
    store: ObstoreClient, key: str, options: dict[str, Any], offset: int
) -> tuple[GetResult, int]:
    """Return the response and the bytes to skip, if the server ignores ranges."""
    try:
        return store.get(key, options=options), 0  # type: ignore[arg-type]
    except Exception as error:
        if "non-partial response" not in str(error):
            raise
    del options["range"]
    return store.get(key, options=options), offset  # type: ignore[arg-type]


def _check_unchanged(
    subject: str, size_now: int, etag_now: str | None, size: int, etag: str | None
) -> None:
    """Raise SourceMismatch if an object was replaced, despite ``If-Match``."""
    if size_now != size:
        change = f"{size} bytes before, {size_now} now"
    elif etag and etag_now and etag_now.strip('"') != etag.strip('"'):
        change = f"ETag {etag} before, {etag_now} now"
    else:
        return
    raise SourceMismatch(
        f"{subject} has changed since it was resolved ({change})", "Plan and apply again."
    )


def _display_key(key: str) -> str:
    return key if key.isprintable() else ascii(key)[1:-1]


def open_bucket(
    location: BucketLocation,
    credential: SourceCredential | None,
    environ: Mapping[str, str] = os.environ,
    read_timeout: float = SILENCE_SECONDS,
) -> Bucket:
    """Open a bucket; without a credential requests are not signed.

    SourceDenied if the credential is malformed.
    """
    if credential is None or not credential.value:
        return Bucket(location, environ=environ, read_timeout=read_timeout)
    renew = credential.renew

    def renewed() -> BucketCredential:
        nonlocal renew
        fresh = renew() if renew else credential
        renew = fresh.renew or renew
        return parse_credential(location.scheme, fresh.value, fresh.origin)

    return Bucket(
        location,
        parse_credential(location.scheme, credential.value, credential.origin),
        credential.origin,
        renew=renewed if renew else None,
        environ=environ,
        read_timeout=read_timeout,
    )
