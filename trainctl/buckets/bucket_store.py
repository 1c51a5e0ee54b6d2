"""Object store below a prefix of a bucket, with retries."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import BinaryIO, TypeVar

from trainctl.base.objects import ObjectStat
from trainctl.base.retry import RetryPolicy
from trainctl.buckets.bucket_client import Bucket, open_bucket
from trainctl.buckets.location import parse_bucket_location
from trainctl.buckets.metadata import ObjectInfo
from trainctl.errors import SourceError, StateError, StorageError, TrainctlError
from trainctl.plugin_api.sources import SourceCredential

_DELETED_AT_ONCE = 1000
STATE_SILENCE_SECONDS = 2.5
"""Longest wait for a byte of a state; a small request may take twice that."""
STATE_RETRY = RetryPolicy(attempts=20, base=0.1, longest=1.0, patience=5.0, within=5.0)
"""Ends early enough that writing and two reads, each retried, end before a lease of 30 s."""
T = TypeVar("T")


def open_bucket_store(
    url: str,
    endpoint: str | None,
    credential: Callable[[], SourceCredential | None],
    retry: RetryPolicy,
    *,
    environ: Mapping[str, str] = os.environ,
    is_own: Callable[[str], bool] = lambda key: True,
    refusal: Callable[[SourceError], TrainctlError] = lambda error: error,
) -> BucketObjects:
    """Return the object store at a bucket's URL, opened on first use.

    ``refusal`` may replace an error by a better one.
    """

    def connect() -> Bucket:
        return open_bucket(parse_bucket_location(url, endpoint, environ), credential(), environ)

    return BucketObjects(url, connect, retry, is_own=is_own, refusal=refusal)


def open_state_store(
    url: str,
    endpoint: str | None,
    credential: Callable[[], SourceCredential | None],
    *,
    environ: Mapping[str, str] = os.environ,
    encryption: tuple[str | None, str | None] = (None, None),
    refusal: Callable[[SourceError], TrainctlError] = lambda error: error,
    retry: RetryPolicy | None = None,
) -> StateObjects:
    """Return the object store of a state, opened on first use.

    ``encryption``: S3's algorithm of server-side encryption and the id of a KMS key, for new objects.
    """
    algorithm, key = encryption

    def connect() -> Bucket:
        location = parse_bucket_location(url, endpoint, environ)
        location = replace(location, encryption=algorithm, kms_key=key)
        return open_bucket(location, credential(), environ, STATE_SILENCE_SECONDS)

    return StateObjects(url, connect, retry or STATE_RETRY, refusal=refusal)


class BucketObjects:
    """An ObjectStore; it lists only keys that are ``is_own``."""

    _purpose = "mirror"
    _failure: type[TrainctlError] = StorageError

    def __init__(
        self,
        url: str,
        open_bucket: Callable[[], Bucket],
        retry: RetryPolicy,
        *,
        is_own: Callable[[str], bool] = lambda key: True,
        refusal: Callable[[SourceError], TrainctlError] = lambda error: error,
    ) -> None:
        self.url = url
        self._open = open_bucket
        self._retry = retry
        self._is_own = is_own
        self._refusal = refusal
        self._lock = threading.Lock()
        self._bucket: Bucket | None = None

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes | None:
        return self._do(key, lambda bucket: bucket.get(key, offset, length))

    def fetch(self, key: str, into: BinaryIO) -> bool:
        return self._do(key, lambda bucket: bucket.fetch(key, into))

    def put(self, key: str, data: bytes | bytearray | memoryview, *, durable: bool = True) -> None:
        """A bucket's objects are always durable."""
        self._do(key, lambda bucket: bucket.put(key, data))

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Reads the object back, as some servers replace objects.

        With such a server the last of several writers wins, so leases are read again later.
        """
        attempts = 0

        def put(bucket: Bucket) -> bool:
            nonlocal attempts
            attempts += 1
            return bucket.put_if_absent(key, data)

        is_new = self._do(key, put)
        return (is_new or attempts > 1) and self.get(key) == data

    def sync(self, keys: Sequence[str]) -> None:
        """A bucket's objects are durable."""

    def stat(self, key: str) -> ObjectStat | None:
        info = self._do(key, lambda bucket: bucket.head(key))
        return _object_stat(info) if info else None

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectStat]:
        """Requests pages on demand."""
        bucket = self._do(prefix, lambda bucket: bucket)
        for info in bucket.list(prefix, after, lambda act: self._do(prefix, lambda _: act())):
            if not info.is_directory and self._is_own(info.key):
                yield _object_stat(info)

    def delete(self, keys: Sequence[str]) -> None:
        for at in range(0, len(keys), _DELETED_AT_ONCE):
            batch = keys[at : at + _DELETED_AT_ONCE]
            self._do(batch[0], lambda bucket, batch=batch: bucket.delete(*batch))  # type: ignore[misc]

    def sign(self, keys: Sequence[str], seconds: int) -> Sequence[str]:
        """Return presigned URLs of objects, without a request."""
        urls = [self._do(key, lambda bucket, key=key: bucket.sign(key, seconds)) for key in keys]  # type: ignore[misc]
        signed = [url for url in urls if url is not None]
        if len(signed) < len(keys):
            raise StorageError(
                f"mirror {self.url}: the credential cannot sign URLs for nodes",
                "Use an access key, a service account key or a storage account key.",
                code="mirror-cannot-presign",
            )
        return signed

    def _do(self, key: str, act: Callable[[Bucket], T]) -> T:
        try:
            result = self._retry.run(lambda: self._attempt(key, act), threading.Event())
        except SourceError as error:
            refused = self._refusal(error)
            if refused is not error:
                raise refused from None
            raise self._failure(error.summary, error.detail, code=error.code) from None
        self._retry = self._retry.patient
        return result

    def _attempt(self, key: str, act: Callable[[Bucket], T]) -> T:
        try:
            return act(self._opened())
        except SourceError as error:
            # hide the object's key, which users of a mirror don't know
            summary = error.summary.split(f"{key}: ", 1)[-1]
            error.summary = f"{self._purpose} {self.url}: {summary}"
            raise

    def _opened(self) -> Bucket:
        with self._lock:
            if self._bucket is None:
                self._bucket = self._open()
            return self._bucket


class StateObjects(BucketObjects):
    """The objects of a state; errors are StateError."""

    _purpose = "state"
    _failure = StateError

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Relies on the server; False also if an earlier attempt created it."""
        return self._do(key, lambda bucket: bucket.put_if_absent(key, data))

    def directories(self, path: str) -> Sequence[str]:
        """Return the names of the directories in ``path``, sorted."""
        return self._do(path, lambda bucket: bucket.directories(path))


def _object_stat(info: ObjectInfo) -> ObjectStat:
    return ObjectStat(info.key, info.size, info.modified.timestamp())
