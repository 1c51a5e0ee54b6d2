"""Read a mirror's objects by key: from a directory, from a server, or from a bucket by presigned URLs."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, Mapping, Optional, Tuple, cast

from trainctl.base.failure import Failure
from trainctl.base.listing import Chunk, ListedFile, Listing
from trainctl.base.objects import ObjectStore
from trainctl.base.pace import Pace
from trainctl.errors import StorageError
from trainctl.node.content.parts import Part
from trainctl.node.system import layout
from trainctl.node.transfer.http_origin import Client, PatientOrigin
from trainctl.node.transfer.origin import Clone, Origin
from trainctl.node.transfer.shelf import open_blob
from trainctl.store import keys
from trainctl.store.reader import Locator, runs

if TYPE_CHECKING:
    from trainctl.node.transfer.signed_keys import SignedKeys

_READ_BYTES = 2**20
_NO_ANSWER = "the mirror's objects are in no place that this node program can read"


class ObjectReader(Client):
    """Reads objects by key, in one thread at a time; errors as of ``BlobClient``."""

    streams: int

    def load(self, key: str) -> bytes:
        """A whole object; Failure ``missing`` if there is none."""
        raise NotImplementedError


class DirectoryReader(ObjectReader):
    """Objects in a directory that this node sees. One stream reads while another hashes."""

    streams = 2

    def __init__(self, path: Any, pace: Optional[Pace] = None) -> None:
        self._root = layout.absolute(path, "origin")
        self._pace = pace or Pace()

    @property
    def where(self) -> str:
        """See Client."""
        return str(self._root)

    @property
    def reached(self) -> bool:
        """See Client."""
        return True

    def load(self, key: str) -> bytes:
        """See ObjectReader."""
        with self._opened(key) as stream:
            return cast(bytes, stream.read())

    def read(self, key: str, offset: int, view: memoryview) -> Iterator[int]:
        """See Client."""
        done = 0
        with self._opened(key) as stream:
            while done < len(view):
                end = min(done + _READ_BYTES, len(view))
                self._pace.spend(end - done)
                count = os.preadv(stream.fileno(), [view[done:end]], offset + done)
                if not count:
                    raise Failure("missing", f"{self.where}/{key} ends at {offset + done} bytes")
                done += count
                yield count

    def clone(self, chunk: Chunk, clone: Clone) -> bool:
        """Fill a chunk of a file from its object without copying bytes."""
        with self._opened(keys.blob(chunk.sha256)) as stream:
            return clone(stream.fileno(), chunk)

    def abort(self) -> None:
        """See Client. It waits for nothing."""

    def close(self) -> None:
        """See Client. Nothing stays open."""

    def _opened(self, key: str) -> Any:
        stream = open_blob(f"{self._root}/{key}")
        if stream is None:
            raise Failure("missing", f"{self._root} does not have {key}")
        return stream


class Indexes:
    """Where a listing's small files are in packs, read once for all streams of a delivery."""

    def __init__(self, reader: ObjectReader, listing: Listing) -> None:
        self._origin = _Loading(reader)
        self._locator = Locator(cast(ObjectStore, self), listing)
        self._lock = threading.Lock()
        self.url = reader.where
        self.locate = self._locator.whole

    def get(self, key: str, offset: int = 0, length: Optional[int] = None) -> Optional[bytes]:
        """A whole object, for the locator. See ObjectStore."""
        with self._lock:
            return self._origin.load(key)

    def abort(self) -> None:
        """Give up what is under way, from another thread."""
        self._origin.abort()

    def close(self) -> None:
        """Close the connection."""
        self._origin.close()


class _Loading(PatientOrigin):
    """Whole objects, as patiently as parts of them."""

    def __init__(self, reader: ObjectReader) -> None:
        super().__init__(reader, {})
        self._reader = reader

    def load(self, key: str) -> Optional[bytes]:
        """An object, None if there is none."""

        def attempt() -> Optional[bytes]:
            try:
                return self._reader.load(key)
            except Failure as error:
                if error.kind == "missing":
                    return None
                raise

        return self._patiently(attempt)


class ObjectOrigin(PatientOrigin):
    """A mirror by its objects: chunks and large files are objects of their own, small files are in packs."""

    def __init__(self, reader: ObjectReader, indexes: Indexes, value: Dict[str, Any]) -> None:
        super().__init__(reader, value)
        self._reader = reader
        self._indexes = indexes
        self.streams = reader.streams

    def place_of(self, part: Part) -> Tuple[str, int]:
        """See Origin."""
        return keys.blob(part.chunk.sha256), 0

    def read_small(self, sizes: Mapping[str, int]) -> Dict[str, bytearray]:
        """See Origin. Files that are close to each other in a pack come by one request."""
        found = {sha256: bytearray() for sha256, size in sizes.items() if not size}
        try:
            pieces = [self._indexes.locate(sha256, size) for sha256, size in sizes.items() if size]
        except StorageError as error:
            raise Failure("origin", error.summary, error.detail) from None
        for run in runs(pieces):
            start = run[0].offset
            data = bytearray(max(piece.end for piece in run) - start)
            self.read(run[0].key, start, memoryview(data), lambda piece: None)
            for piece in run:
                found[piece.sha256] = data[piece.offset - start : piece.end - start]
        return found

    def clone(self, file: ListedFile, clone: Clone) -> bool:
        """See Origin."""
        reader = self._reader
        return isinstance(reader, DirectoryReader) and all(
            reader.clone(chunk, clone) for chunk in file.chunk_ranges
        )

    def abort(self) -> None:
        """See Origin."""
        super().abort()
        self._indexes.abort()

    def close(self) -> None:
        """See Origin."""
        super().close()
        self._indexes.close()


def object_origins(
    value: Dict[str, Any], listing: Listing, signed: Optional[SignedKeys], pace: Pace
) -> Callable[[], Origin]:
    """What opens streams to the mirror of a request: of a directory (``path``), a server (``urls``) or a bucket."""
    reader = _opener(value, signed, pace)
    indexes = Indexes(reader(), listing)
    return lambda: ObjectOrigin(reader(), indexes, value)


def _opener(
    value: Mapping[str, Any], signed: Optional[SignedKeys], pace: Pace
) -> Callable[[], ObjectReader]:
    if "path" in value:
        return lambda: DirectoryReader(value["path"], pace)
    if "urls" in value:
        from trainctl.node.transfer.http_objects import ServerReader  # heavy

        return lambda: ServerReader(value, pace)
    if signed is not None:
        from trainctl.node.transfer.http_objects import BucketReader

        return lambda: BucketReader(signed, pace)
    raise Failure("request", _NO_ANSWER)
