"""A bucket as a mirror uses it: patient with a server that is busy, and with errors that speak of the mirror."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TypeVar

from trainctl.base.retry import Retry
from trainctl.errors import SourceError, StorageError, TrainctlError
from trainctl.objects.store import Bucket
from trainctl.objects.store import Found as Listed
from trainctl.weights.bucket.keys import is_ours
from trainctl.weights.bucket.objects import Found, Objects

_PAGE = 1000
T = TypeVar("T")


class Stored:
    """See Objects. The bucket is opened when it is first used; ``open`` may raise what says why it can't be.

    ``refused`` knows better of an error what is to be told of it.
    """

    def __init__(
        self,
        url: str,
        open_bucket: Callable[[], Bucket],
        retry: Retry,
        refused: Callable[[SourceError], TrainctlError] = lambda error: error,
    ) -> None:
        self._url = url
        self._open = open_bucket
        self._refused = refused
        self._retry = retry
        self._lock = threading.Lock()
        self._opened: Bucket | None = None

    @property
    def url(self) -> str:
        """See Objects."""
        return self._url

    def get(self, key: str) -> bytes | None:
        """See Objects."""
        return self._do(key, lambda bucket: bucket.get(key))

    def fetch(self, key: str, into: BinaryIO) -> bool:
        """See Objects."""
        return self._do(key, lambda bucket: bucket.fetch(key, into))

    def put(self, key: str, data: bytes | bytearray | Path) -> None:
        """See Objects."""
        self._do(key, lambda bucket: bucket.put(key, data))

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """See Objects."""
        return self._do(key, lambda bucket: bucket.put_if_absent(key, data))

    def head(self, key: str) -> Found | None:
        """See Objects."""
        found = self._do(key, lambda bucket: bucket.head(key))
        return Found(key, found.size, found.modified.timestamp()) if found else None

    def list(self, prefix: str) -> Iterator[Found]:
        """See Objects."""
        return (one for one in self._listed(prefix) if is_ours(one.key))

    def strange(self, prefix: str) -> Iterator[Found]:
        """See Objects."""
        return (one for one in self._listed(prefix) if one.size and not is_ours(one.key))

    def delete(self, keys: Sequence[str], before: Callable[[], None] = lambda: None) -> None:
        """See Objects."""

        def act(bucket: Bucket) -> None:
            before()
            bucket.delete_all(keys)

        if keys:
            self._do(keys[0], act)

    def sign(self, keys: Sequence[str], seconds: int) -> Sequence[str]:
        """See Objects."""
        links = self._do(keys[0], lambda bucket: [bucket.sign(key, seconds) for key in keys])
        found = [link for link in links if link is not None]
        if len(found) < len(links):
            raise StorageError(
                f"mirror {self.url}: its credential can't sign links for nodes",
                "Use an access key, a service account's key or a storage account's key.",
                code="mirror-unsigned",
            )
        return found

    def _listed(self, prefix: str) -> Iterator[Found]:
        """All that lies there. A page is asked for when its turn comes; after one that failed, what comes after the last key is."""
        after = ""
        listed: Iterator[Listed] | None = None

        def page(bucket: Bucket) -> list[Listed]:
            nonlocal listed
            going, listed = listed, None
            try:
                going = going or bucket.list(prefix, after)
                found = [*islice(going, _PAGE)]
            except SourceError as error:
                if error.code == "unsafe-file-name":
                    error.detail = "Remove or rename it, or give the mirror a prefix of its own."
                raise
            listed = going
            return found

        while found := self._do(prefix, page):
            for one in found:
                yield Found(one.key, one.size, one.modified.timestamp())
            after = found[-1].key

    def _do(self, key: str, act: Callable[[Bucket], T]) -> T:
        try:
            found = self._retry.run(lambda: self._once(key, act), threading.Event())
        except SourceError as error:
            told = self._refused(error)
            if told is not error:
                raise told from None
            raise StorageError(error.summary, error.detail, code=error.code) from None
        self._retry = self._retry.patient  # it does answer
        return found

    def _once(self, key: str, act: Callable[[Bucket], T]) -> T:
        try:
            return act(self._bucket())
        except SourceError as error:
            # Which of its objects it was says nothing to whoever has a mirror.
            error.summary = f"mirror {self.url}: {error.summary.split(f'{key}: ', 1)[-1]}"
            raise

    def _bucket(self) -> Bucket:
        with self._lock:
            if self._opened is None:
                self._opened = self._open()
            return self._opened


_: type[Objects] = Stored
