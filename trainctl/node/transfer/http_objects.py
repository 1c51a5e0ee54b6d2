"""Objects of a mirror over HTTP: from a server that has a token, or from a bucket by presigned URLs."""

from __future__ import annotations

from typing import Any, Iterator, Mapping, Optional

from trainctl.base.pace import Pace
from trainctl.node.transfer.blob_client import BlobClient
from trainctl.node.transfer.link_client import LinkClient
from trainctl.node.transfer.objects import ObjectReader
from trainctl.node.transfer.signed_keys import SignedKeys


class ServerReader(ObjectReader):
    """Objects behind a BlobServer."""

    streams = 2

    def __init__(self, value: Mapping[str, Any], pace: Optional[Pace] = None) -> None:
        self._client = BlobClient(value, pace)

    @property
    def where(self) -> str:
        """See Client."""
        return self._client.where

    @property
    def reached(self) -> bool:
        """See Client."""
        return self._client.reached

    def load(self, key: str) -> bytes:
        """See ObjectReader."""
        return self._client.load(key)

    def read(self, key: str, offset: int, view: memoryview) -> Iterator[int]:
        """See Client."""
        return self._client.read_object(key, offset, view)

    def abort(self) -> None:
        """See Client."""
        self._client.abort()

    def close(self) -> None:
        """See Client."""
        self._client.close()


class BucketReader(ObjectReader):
    """Objects of a bucket. A stream is as slow as the way there and back is long, so there are several."""

    streams = 8

    def __init__(self, signed: SignedKeys, pace: Optional[Pace] = None) -> None:
        self._client = LinkClient(signed, pace)

    @property
    def where(self) -> str:
        """See Client."""
        return self._client.where

    @property
    def reached(self) -> bool:
        """See Client."""
        return self._client.reached

    def load(self, key: str) -> bytes:
        """See ObjectReader."""
        return self._client.load(key)

    def read(self, key: str, offset: int, view: memoryview) -> Iterator[int]:
        """See Client."""
        return self._client.read(key, offset, view)

    def abort(self) -> None:
        """See Client."""
        self._client.abort()

    def close(self) -> None:
        """See Client."""
        self._client.close()
