"""Operations on the objects below a prefix of a bucket: without retries, or as an ``ObjectStore`` with them."""

from __future__ import annotations

import copy
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeVar
from urllib.parse import quote

from trainctl.base.checkpoints.s3 import is_address
from trainctl.base.http import HttpClient
from trainctl.base.lazy_dataclass import replace
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.pagination import pages
from trainctl.base.retry import RetryPolicy
from trainctl.base.throughput import ThroughputMonitor
from trainctl.buckets.credentials import (
    AwsKeys,
    AzureKey,
    ServiceAccount,
    parse_credential,
    sign_sas_query,
)
from trainctl.buckets.location import BucketLocation, parse_bucket_location
from trainctl.buckets.metadata import MetadataClient, ObjectInfo
from trainctl.buckets.obstore_client import (
    SILENCE_SECONDS,
    BucketSettings,
    PathStyleRefused,
    WrongRegion,
    is_expired,
    open_client,
    read_certificates,
    translate_errors,
)
from trainctl.errors import (
    SourceError,
    SourceInterrupted,
    SourceMismatch,
    SourceUnavailable,
    StateError,
    StorageError,
    TrainctlError,
)
from trainctl.plugin_api.sources import SourceCredential

if TYPE_CHECKING:
    from obstore import GetResult

    from trainctl.buckets.obstore_client import ObstoreClient

T = TypeVar("T")
SIGNING = (AwsKeys, ServiceAccount, AzureKey)
"""Credentials that can sign URLs."""
STATE_SILENCE_SECONDS = 2.5
"""Longest wait for a byte of a state; a small request may take twice that."""
STATE_RETRY = RetryPolicy(20, base=0.1, longest=1.0, patience=5.0, within=5.0)
"""Ends early enough that writing and two reads, each retried, end before a lease of 30 s."""
BUFFER_BYTES = 2**20
_MIN_YIELD_BYTES = 2**18  # smaller buffers cost more to pass on than to copy
_LIMIT_STEP = 2**24
"""Uploads of about the same size share a client and its connections."""
_DELETED_AT_ONCE = 1000
"""The limit of S3's bulk requests."""
_UNQUOTED = "/~"
_IS_UNDECIDED = compile_lazily("<Code>(ConditionalRequestConflict|OperationAborted)</Code>")
"""S3 answers 409 while it decides between concurrent requests."""


class Bucket:
    """The objects below a location; thread-safe. Errors are SourceError, and nothing is retried.

    Without a credential requests are not signed. SourceDenied if the credential is malformed. ``http``: shares
    connections for lists and metadata.
    """

    _reads_back = False

    def __init__(
        self,
        location: BucketLocation,
        credential: SourceCredential | None = None,
        environ: Mapping[str, str] = os.environ,
        read_timeout: float = SILENCE_SECONDS,
        http: HttpClient | None = None,
    ) -> None:
        read_certificates(environ)  # obstore's clients are opened later
        self._http = http or HttpClient(read_timeout=read_timeout)
        self._settings = BucketSettings(location, None, environ, read_timeout)
        self._origin: str | None = None
        self._renew: Callable[[], SourceCredential] | None = None
        self._log_in(credential)

    @property
    def location(self) -> BucketLocation:
        """The location, as earlier requests have corrected it."""
        return self._settings.location

    def _log_in(self, credential: SourceCredential | None) -> None:
        access = self._settings.access
        if credential is not None and credential.value:
            scheme, self._origin = self.location.scheme, credential.origin
            access = parse_credential(scheme, credential.value, credential.origin)
            self._renew = credential.renew or self._renew
        self._reset(access=access)

    def _reset(self, **changes: Any) -> None:
        """Change settings, and open clients with them."""
        self._settings = replace(self._settings, **changes)
        self._metadata = MetadataClient(self._settings, self._http)
        self._google_signer: ObstoreClient | None = None
        self._clients: dict[tuple[bool, int], ObstoreClient] = {}

    def at(self, prefix: str) -> Bucket:
        """Return the bucket at another prefix."""
        other = copy.copy(self)
        other._reset(location=replace(self.location, prefix=prefix))
        return other

    def list(self, prefix: str = "", after: str = "") -> Iterator[ObjectInfo]:
        """Yield objects below ``prefix`` with keys greater than ``after``, in the server's order.

        Pages are requested on demand. Objects that only mark directories are left out.
        """

        def page(cursor: str | None) -> tuple[Sequence[ObjectInfo], str | None]:
            return self._request(prefix, lambda: self._metadata.list_page(prefix, after, cursor))

        endless = SourceError(
            f"{self._named(prefix)}: the server's list has no end (repeated pages)"
        )
        for infos in pages(page, endless):
            yield from (info for info in infos if not info.is_directory)

    def stat(self, key: str) -> ObjectInfo | None:
        """Return an object's metadata; None if it doesn't exist."""
        return self._request(key, lambda: self._metadata.head(key))

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes | None:
        """Return bytes of a small object from ``offset``; None if it doesn't exist."""
        if length == 0:
            return b"" if self.stat(key) else None
        options: dict[str, Any] = {}
        if offset or length is not None:
            options["range"] = {"offset": offset} if length is None else (offset, offset + length)

        def request() -> bytes | None:
            with suppress(FileNotFoundError):
                result, skip = self._open_at(key, options, offset)
                data = b"".join(self._iter_body(result))
                return data[skip : None if length is None else skip + length]
            return None

        def read() -> bytes | None:
            try:
                return self._once(key, request)
            except SourceError as error:
                if not options or error.retryable:
                    raise
                info = self._once(key, lambda: self._metadata.head(key))
                if info is None or info.size > offset:
                    raise
                return b""  # servers refuse a range after the end

        return self._guard(read)

    def fetch(self, key: str, into: BinaryIO) -> bool:
        """Replace a file's content with an object's; return False if missing."""

        def request() -> bool:
            into.seek(0)
            into.truncate()
            with suppress(FileNotFoundError):
                into.writelines(self._iter_body(self._client(long=True).get(key)))
                return True
            return False

        return self._request(key, request)

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
            result, skip = self._request(key, lambda: self._open_at(key, options, offset))
        except SourceMismatch:
            if (now := self.stat(key)) is not None:
                _check_unchanged(self._named(key), now.size, now.etag, size, etag)
            raise
        meta = result.meta
        _check_unchanged(self._named(key), meta["size"], meta["e_tag"], size, etag)
        yield self._iter_range(key, result, skip, max(0, end - offset))

    def put(self, key: str, data: bytes | bytearray | memoryview, *, durable: bool = True) -> None:
        """Create or replace an object atomically, in one request; objects are always durable."""

        def request() -> None:
            self._client(sent=len(data)).put(key, data, use_multipart=False)

        self._request(key, request)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create an object; return False if it exists, by the server's word.

        SourceUnavailable if the server is still deciding between concurrent requests.
        """
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        attempts = 0

        def request() -> bool:
            nonlocal attempts
            attempts += 1
            try:
                store = self._client(sent=len(data))
                store.put(key, data, mode="create", use_multipart=False)
            except (AlreadyExistsError, PreconditionError) as error:
                if _IS_UNDECIDED.search(str(error)):
                    raise SourceUnavailable(
                        f"{self._named(key)}: another client is creating the same object"
                    ) from None
                return False
            return True

        is_new = self._request(key, request)
        if not self._reads_back:
            return is_new
        # some servers replace objects, and an earlier attempt's response may have been lost
        return (is_new or attempts > 1) and self.get(key) == data

    def sync(self, keys: Sequence[str]) -> None:
        """Do nothing, as objects are durable."""

    def directories(self, path: str = "") -> Sequence[str]:
        """Return the names of the directories in ``path``, sorted."""

        def request() -> Sequence[str]:
            listed = self._client().list_with_delimiter(path or None)["common_prefixes"]
            return sorted(name.rstrip("/").rpartition("/")[2] for name in listed)

        return self._request(path, request)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, by bulk requests if supported; ignore missing ones."""

        def request() -> None:
            try:
                self._client().delete([*batch])
            except FileNotFoundError:  # from servers that delete one by one
                if len(batch) > 1:
                    for key in batch:
                        self.delete([key])

        for at in range(0, len(keys), _DELETED_AT_ONCE):
            batch = keys[at : at + _DELETED_AT_ONCE]
            self._request(batch[0], request)

    def sign(self, key: str, seconds: int, method: Literal["GET", "HEAD"] = "GET") -> str | None:
        """Return a presigned URL, without a request; None if this credential can't sign."""

        def request() -> str | None:
            access, url = self._settings.access, self.address(key)
            if isinstance(access, AwsKeys):
                return f"{url}?{self._metadata.presigned_query(access, method, url, seconds)}"
            if isinstance(access, AzureKey):
                blob = "/".join(filter(None, (self.location.prefix, key)))
                query = sign_sas_query(access, self.location, blob, "r", seconds, time.time())
                return f"{url}?{query}"
            # obstore signs no project to bill
            if not isinstance(access, ServiceAccount) or self.location.requester_pays:
                return None
            import obstore

            # obstore doesn't quote names in Google's URLs; an emulator's client can't sign
            name, prefix = (quote(text, safe=_UNQUOTED) for text in (key, self.location.prefix))
            if self._google_signer is None:
                location = replace(self.location, endpoint_source=None, prefix=prefix)
                self._google_signer = open_client(replace(self._settings, location=location))
            return obstore.sign(self._google_signer, method, name, timedelta(seconds=seconds))

        return self._request(key, request)

    def address(self, key: str) -> str:
        """Return the unsigned URL of an object."""
        return self._settings.url(key)

    def _guard(self, act: Callable[[], T]) -> T:
        """Call a function that makes requests."""
        return act()

    def _request(self, key: str, act: Callable[[], T]) -> T:
        return self._guard(lambda: self._once(key, act))

    def _once(self, key: str, act: Callable[[], T]) -> T:
        """Call ``act``, again after a wrong region or address style or an expired credential."""
        if self._renew is not None and is_expired(self._settings.access):
            self._log_in(self._renew())
        try:
            with self._error_context(key):
                return act()
        except SourceError as error:
            if isinstance(error, PathStyleRefused) and not is_address(self.location.host):
                self._reset(location=replace(self.location, virtual=True))
            elif isinstance(error, WrongRegion) and error.region:
                access = self._settings.access
                if isinstance(access, AwsKeys):
                    access = replace(access, region=error.region)
                environ = {**self._settings.environ, "AWS_REGION": error.region}
                self._reset(access=access, environ=environ)
            elif error.code == "expired-credential" and self._renew is not None:
                self._log_in(self._renew())
            else:
                raise
        with self._error_context(key):
            return act()

    def _client(self, *, long: bool = False, sent: int = 0) -> ObstoreClient:
        """Return a client, opened at its first use.

        ``long``: without a limit on the duration. ``sent``: bytes to upload.
        """
        steps = -(-sent // _LIMIT_STEP) if sent > BUFFER_BYTES else 0
        kind = (long or steps > 0, steps * _LIMIT_STEP)
        clients = self._clients  # other threads may replace it
        if kind not in clients:
            clients[kind] = open_client(self._settings, long=kind[0], sent=kind[1])
        return clients[kind]

    def _open_at(self, key: str, options: dict[str, Any], offset: int) -> tuple[GetResult, int]:
        """Return the response and the bytes to skip, if the server ignores ranges."""
        store = self._client(long=True)
        try:
            return store.get(key, options=options), 0  # type: ignore[arg-type]
        except Exception as error:
            if "non-partial response" not in str(error):
                raise
        del options["range"]
        return store.get(key, options=options), offset  # type: ignore[arg-type]

    def _iter_body(self, result: GetResult) -> Iterator[bytes]:
        """Yield a body in buffers of useful size; StalledError if it is too slow."""
        throughput, buffer = ThroughputMonitor(self._settings.read_timeout), bytearray()
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
        shown = key if key.isprintable() else ascii(key)[1:-1]
        return f"{self.location.url}: {shown}" if key else self.location.url


class BucketObjects(Bucket):
    """The ``ObjectStore`` of a mirror or a state: opened on first use, with retries.

    Errors are StorageError or StateError, or what ``refusal`` makes of them. It lists only keys that are ``is_own``.
    ``credential`` is called once. ``encryption``: S3's algorithm and KMS key for new objects.
    """

    def __init__(
        self,
        url: str,
        endpoint: str | None,
        credential: Callable[[], SourceCredential | None],
        retry: RetryPolicy,
        *,
        purpose: Literal["mirror", "state"] = "mirror",
        environ: Mapping[str, str] = os.environ,
        encryption: tuple[str | None, str | None] = (None, None),
        is_own: Callable[[str], bool] = lambda key: True,
        refusal: Callable[[SourceError], TrainctlError] = lambda error: error,
    ) -> None:
        def connect() -> None:
            place = parse_bucket_location(url, endpoint, environ)
            place = replace(place, encryption=encryption[0], kms_key=encryption[1])
            silence = STATE_SILENCE_SECONDS if purpose == "state" else SILENCE_SECONDS
            super(BucketObjects, self).__init__(place, credential(), environ, silence)

        self.url = url
        self._connect: Callable[[], None] | None = connect
        self._retry = retry
        self._purpose = purpose
        # a lease of a mirror is read again later; a state proves its server instead
        self._reads_back = purpose == "mirror"
        self._is_own = is_own
        self._refusal = refusal
        self._lock = threading.Lock()

    def list(self, prefix: str = "", after: str = "") -> Iterator[ObjectInfo]:
        return (info for info in super().list(prefix, after) if self._is_own(info.key))

    def presigned(self, keys: Sequence[str], seconds: int) -> Sequence[str]:
        """Return presigned URLs of objects; StorageError if the credential can't sign."""
        urls = [url for key in keys if (url := self.sign(key, seconds)) is not None]
        if len(urls) < len(keys):
            raise StorageError(
                f"mirror {self.url}: the credential cannot sign URLs for nodes",
                "Use an access key, a service account key or a storage account key.",
                code="mirror-cannot-presign",
            )
        return urls

    def _named(self, key: str) -> str:
        # hide the object's key, which users of a mirror don't know
        return f"{self._purpose} {self.url}"

    def _guard(self, act: Callable[[], T]) -> T:
        def attempt() -> T:
            with self._lock:
                if self._connect is not None:
                    self._connect()
                    self._connect = None
            return act()

        try:
            result = self._retry.run(attempt, threading.Event())
        except SourceError as error:
            refused = self._refusal(error)
            if refused is not error:
                raise refused from None
            failure = StateError if self._purpose == "state" else StorageError
            name, summary = self._named(""), error.summary
            summary = summary if summary.startswith(name) else f"{name}: {summary}"
            raise failure(summary, error.detail, code=error.code) from None
        self._retry = self._retry.patient
        return result


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
