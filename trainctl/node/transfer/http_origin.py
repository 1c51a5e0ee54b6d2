"""A mirror behind HTTP, on a host or in a bucket: patient where a server is busy or a connection breaks, and never asking twice for what has arrived."""

from __future__ import annotations

import random
import threading
import time
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Protocol, Tuple, TypeVar

from trainctl.base.failure import Failure
from trainctl.base.pace import Pace
from trainctl.node.content.parts import Part
from trainctl.node.transfer.blob_client import BROKEN, BlobClient, Later
from trainctl.node.transfer.link_client import LinkClient
from trainctl.node.transfer.links import Links
from trainctl.node.transfer.origin import Arrived, Origin

_PATIENCE_SECONDS = 60.0
_UNREACHED_SECONDS = 10.0
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
_STREAMS = 2
_BUCKET_STREAMS = 8  # one of them is as slow as the way there and back is long
_AGAIN = "Nothing came for {:g} s. Apply again: what has arrived is kept."
_UNREACHED = (
    "Let this host reach that one at one of these addresses (a firewall, a route, ports: of the cluster), "
    "or keep the mirror where you run trainctl: mirror: {url: file:///DIRECTORY}."
)
T = TypeVar("T")


class Client(Protocol):
    """Reads contents by one connection, one attempt at a time: see BlobClient."""

    @property
    def where(self) -> str:
        """Who is asked, in words."""
        ...

    @property
    def reached(self) -> bool:
        """Whether they ever answered; who never did is given up sooner."""
        ...

    def read(self, sha256: str, offset: int, view: memoryview) -> Iterator[int]:
        """See BlobClient."""
        ...

    def abort(self) -> None:
        """See BlobClient."""
        ...

    def close(self) -> None:
        """See BlobClient."""
        ...


class PatientOrigin(Origin):
    """A client that is asked again where a server is busy or a connection breaks."""

    def __init__(self, client: Client, value: Dict[str, Any]) -> None:
        self._client = client
        self._patience = float(value.get("patience", _PATIENCE_SECONDS))
        self._ending = threading.Event()
        self._until = 0.0
        self._pause = 0.0

    def read(self, sha256: str, offset: int, view: memoryview, arrived: Arrived) -> None:
        """See Origin. What broke off is taken up where it was."""
        done = 0

        def once() -> None:
            nonlocal done
            while done < len(view):
                for count in self._client.read(sha256, offset + done, view[done:]):
                    arrived(view[done : done + count])
                    done += count
                    self._advanced()

        self._patiently(once)

    def abort(self) -> None:
        """See Origin."""
        self._ending.set()
        self._client.abort()

    def close(self) -> None:
        """See Origin."""
        self._client.close()

    def _advanced(self) -> None:
        """Something arrived: patience begins anew."""
        self._until = time.monotonic() + self._patience
        self._pause = _FIRST_PAUSE_SECONDS

    def _patiently(self, once: Callable[[], T]) -> T:
        self._advanced()
        began = time.monotonic()
        while True:
            try:
                return once()
            except Later as error:
                asked, why, reached = error.seconds, "is too busy", True
            except BROKEN as error:
                asked, why = 0.0, f"does not answer: {str(error) or type(error).__name__}"
                reached = self._client.reached
            except Failure as error:
                summary = f"the mirror is out of reach: {error.summary}"
                raise Failure("origin", summary, error.detail) from None
            until = self._until if reached else min(self._until, began + _UNREACHED_SECONDS)
            if time.monotonic() >= until or self._ending.is_set():
                advice = _AGAIN.format(self._patience) if reached else _UNREACHED
                raise Failure("origin", f"the mirror at {self._client.where} {why}", advice)
            self._ending.wait(max(asked, self._pause * random.uniform(0.5, 1)))  # noqa: S311 - so that many don't come at once
            self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)


class HttpOrigin(PatientOrigin):
    """A server of blobs."""

    streams = _STREAMS

    def __init__(
        self, value: Dict[str, Any], pace: Optional[Pace] = None, *, evenly: bool = False
    ) -> None:
        self._server = BlobClient(value, pace, evenly=evenly)
        super().__init__(self._server, value)

    def read_small(self, sizes: Mapping[str, int]) -> Dict[str, bytearray]:
        """See Origin. One request brings them all."""

        def once() -> Dict[str, bytearray]:
            contents = self._server.pack(list(sizes)).contents
            for sha256, size in sizes.items():
                if sha256 not in contents or len(contents[sha256]) != size:
                    raise Failure("missing", f"{self._server.where} does not have blob {sha256}")
            return contents

        return self._patiently(once)


class LinkedOrigin(PatientOrigin):
    """A bucket, by links to its objects. None of these is larger than a chunk, which it is asked for by name; small files are in packs."""

    streams = _BUCKET_STREAMS

    def __init__(self, value: Dict[str, Any], links: Links, pace: Optional[Pace] = None) -> None:
        self._bucket = LinkClient(links, pace)
        super().__init__(self._bucket, value)

    def place_of(self, part: Part) -> Tuple[str, int]:
        """See Origin."""
        return part.chunk.sha256, 0

    def read_small(self, sizes: Mapping[str, int]) -> Dict[str, bytearray]:
        """See Origin. What has arrived isn't asked for again."""
        found: Dict[str, bytearray] = {}

        def once() -> Dict[str, bytearray]:
            left = {sha256: size for sha256, size in sizes.items() if sha256 not in found}
            for sha256, data in self._bucket.read_small(left):
                found[sha256] = data
                self._advanced()
            return found

        return self._patiently(once)
