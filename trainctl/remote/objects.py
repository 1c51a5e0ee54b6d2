"""Object store in a directory of a host, accessed by methods of the node program."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.objects import ObjectStat
from trainctl.base.protocol.mirrors import (
    OBJECT_DELETE,
    OBJECT_GET,
    OBJECT_LIST,
    OBJECT_PUT,
    OBJECT_STAT,
    OBJECT_SYNC,
    ObjectGetRequest,
    ObjectKeysRequest,
    ObjectListRequest,
    ObjectPutRequest,
)  # fmt: skip
from trainctl.remote.agent import NodeAgent

Data = bytes | bytearray | memoryview
_SILENCE_SECONDS = 60.0
"""Seconds until a host must have started to respond to a read."""


class HostDirectory(NamedTuple):
    """A directory of a host: its URL in manifests, and its path."""

    url: str
    path: str


class HostObjects:
    """An ObjectStore; each operation is one call, which may also raise NodeError.

    ``directory`` returns the root directory; it may raise NodeError. ``agent`` returns the host's agent: with True, one
    that may install the node program.
    """

    def __init__(
        self, directory: Callable[[], HostDirectory], agent: Callable[[bool], NodeAgent]
    ) -> None:
        self._directory = directory
        self._agent = agent

    @property
    def url(self) -> str:
        return self._directory().url

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes | None:
        data = bytearray()
        exists = self._read(key, offset, length, data.extend)
        return bytes(data) if exists else None

    def fetch(self, key: str, into: BinaryIO) -> bool:
        return self._read(key, 0, None, into.write)

    def put(self, key: str, data: Data, *, durable: bool = True) -> None:
        self._put(key, data, durable=durable, if_absent=False)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        return self._put(key, data, durable=True, if_absent=True)

    def sync(self, keys: Sequence[str]) -> None:
        self._agent(True).call(OBJECT_SYNC, self._keys_request(keys))

    def stat(self, key: str) -> ObjectStat | None:
        request = self._keys_request([key])
        (row,) = self._agent(False).call(OBJECT_STAT, request, timeout=_SILENCE_SECONDS)["stats"]
        return None if row is None else ObjectStat(*row)

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectStat]:
        request = ObjectListRequest(path=self._directory().path, prefix=prefix, after=after)
        rows: list[Sequence[Any]] = []
        self._agent(False).call(
            OBJECT_LIST,
            request,
            on_event=lambda event: rows.extend(event["rows"]),
            timeout=_SILENCE_SECONDS,
        )
        return (ObjectStat(*row) for row in rows)

    def delete(self, keys: Sequence[str]) -> None:
        self._agent(True).call(OBJECT_DELETE, self._keys_request(keys))

    def _read(
        self, key: str, offset: int, length: int | None, write: Callable[[bytes], object]
    ) -> bool:
        path = self._directory().path
        request = ObjectGetRequest(path=path, key=key, offset=offset, length=length)

        def on_event(event: Mapping[str, Any]) -> None:
            write(b64decode(event["data"]))

        response = self._agent(False).call(
            OBJECT_GET, request, on_event=on_event, timeout=_SILENCE_SECONDS
        )
        return response["exists"]

    def _put(self, key: str, data: Data, *, durable: bool, if_absent: bool) -> bool:
        path = self._directory().path
        request = ObjectPutRequest(path=path, key=key, durable=durable, if_absent=if_absent)
        response = self._agent(True).call(OBJECT_PUT, request, following=[bytes(data)])
        return response["created"]

    def _keys_request(self, keys: Sequence[str]) -> ObjectKeysRequest:
        return {"path": self._directory().path, "keys": list(keys)}
