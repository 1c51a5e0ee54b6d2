"""A mirror behind HTTP: patient where a server is busy or a connection breaks, and never asking twice for what has arrived."""

from __future__ import annotations

import random
import threading
import time
from typing import Any, Callable, Dict, Mapping, Optional, TypeVar

from trainctl.node.blob_client import BROKEN, BlobClient, Later
from trainctl.node.failure import Failure
from trainctl.node.origin import Arrived, Origin
from trainctl.node.pace import Pace

_PATIENCE_SECONDS = 60.0
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
_STREAMS = 2
T = TypeVar("T")


class HttpOrigin(Origin):
    """A server of blobs, by one connection."""

    streams = _STREAMS

    def __init__(
        self, value: Dict[str, Any], pace: Optional[Pace] = None, *, evenly: bool = False
    ) -> None:
        self._client = BlobClient(value.get("url"), value.get("token"), pace, evenly=evenly)
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

    def read_small(self, sizes: Mapping[str, int]) -> Dict[str, bytearray]:
        """See Origin. One request brings them all."""

        def once() -> Dict[str, bytearray]:
            contents = self._client.pack(list(sizes)).contents
            for sha256, size in sizes.items():
                if sha256 not in contents or len(contents[sha256]) != size:
                    raise Failure("missing", f"{self._client.where} does not have blob {sha256}")
            return contents

        return self._patiently(once)

    def abort(self) -> None:
        """See Origin."""
        self._ending.set()
        self._client.abort()

    def clone(self, sha256: str, target: int) -> bool:
        """See Origin."""
        return False

    def close(self) -> None:
        """See Origin."""
        self._client.close()

    def _advanced(self) -> None:
        """Something arrived: patience begins anew."""
        self._until = time.monotonic() + self._patience
        self._pause = _FIRST_PAUSE_SECONDS

    def _patiently(self, once: Callable[[], T]) -> T:
        self._advanced()
        while True:
            try:
                return once()
            except Later as error:
                asked, why = error.seconds, "is too busy"
            except BROKEN as error:
                asked, why = 0.0, f"does not answer: {str(error) or type(error).__name__}"
            except Failure as error:
                raise Failure("origin", f"the mirror is out of reach: {error.summary}") from None
            if time.monotonic() >= self._until or self._ending.is_set():
                raise Failure(
                    "origin",
                    f"the mirror at {self._client.where} {why}",
                    f"Nothing came for {self._patience:g} s. Apply again: what has arrived is kept.",
                )
            self._ending.wait(max(asked, self._pause * random.uniform(0.5, 1)))  # noqa: S311 - so that many don't come at once
            self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
