"""Leases as objects: which process copies a source, or collects garbage."""

from __future__ import annotations

import contextlib
import secrets
import threading
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Set

from trainctl.base.clock import elapsed
from trainctl.base.lease import (
    RENEW_SECONDS,
    Liveness,
    holder_name,
    is_process_alive,
    is_process_dead,
)
from trainctl.base.objects import ObjectStore
from trainctl.errors import TrainctlError
from trainctl.store import documents, keys

LATE_RENEWAL_SECONDS = 10.0
"""After so long without a renewal others may soon take the lease over."""
_SETTLE_SECONDS = 0.2
"""Time for others that found the same dead lease to notice that it was taken over."""
_nonces: Set[str] = set()
"""Of the leases that this process holds: any other lease in its name is left over."""


class StoredLease(NamedTuple):
    """A lease that is held. ``document`` is empty if it can't be read; ``sign`` changes with each renewal."""

    document: Mapping[str, Any]
    sign: bytes

    @property
    def nonce(self) -> object:
        """What no other lease has."""
        return self.document.get("nonce")

    @property
    def is_dead(self) -> bool:
        """Whether its process has certainly ended."""
        holder = self.document.get("holder")
        if holder == holder_name():
            return self.nonce not in _nonces
        return isinstance(holder, str) and is_process_dead(holder)

    @property
    def is_alive(self) -> bool:
        """Whether its process certainly runs."""
        holder = self.document.get("holder")
        return isinstance(holder, str) and is_process_alive(holder) and not self.is_dead


def read(objects: ObjectStore, key: str) -> Optional[StoredLease]:
    """The lease with that key; None if nobody holds it."""
    data = objects.get(key)
    if data is None:
        return None
    try:
        return StoredLease(documents.decode(data), data)
    except ValueError:
        return StoredLease({}, data)


def read_live(objects: ObjectStore, key: str, liveness: Liveness) -> Optional[StoredLease]:
    """The same lease, unless its holder is known to be dead or showed no sign of life for long."""
    held = read(objects, key)
    if held is None or held.is_dead or liveness.is_stale(key, held.sign):
        return None
    return held


def list_live(objects: ObjectStore, liveness: Liveness) -> Dict[str, StoredLease]:
    """All such leases of writers, by their keys."""
    found = (
        (stat.key, read_live(objects, stat.key, liveness)) for stat in objects.list(keys.LEASES)
    )
    return {key: held for key, held in found if held is not None and key != keys.GC_LEASE}


class ObjectLease:
    """A lease that this process may hold, renewed by a thread as long as it does.

    ``document`` says what for. After ``with lease: …`` it is released.
    """

    def __init__(
        self,
        objects: ObjectStore,
        key: str,
        document: Mapping[str, Any],
        clock: Callable[[], float] = elapsed,
    ) -> None:
        self._objects = objects
        self._key = key
        self._document = {**document, "holder": holder_name(), "nonce": secrets.token_hex(8)}
        self._nonce = str(self._document["nonce"])
        self._clock = clock
        self._renewals = 0
        self._renewed = 0.0
        self._missed = False
        self._stop = threading.Event()
        self._thread: Optional[threading.Thread] = None

    @property
    def late(self) -> bool:
        """Whether others may have taken the lease over, as it once wasn't renewed in time."""
        self._missed = self._missed or self._clock() - self._renewed > LATE_RENEWAL_SECONDS
        return self._missed

    def try_acquire(self, liveness: Liveness) -> bool:
        """Take the lease if nobody holds it, or its holder is dead; False otherwise."""
        _nonces.add(self._nonce)
        self._renewed = self._clock()
        is_taken_over = False
        if not self._put_if_absent():
            if read_live(self._objects, self._key, liveness) is not None:
                return self._give_up()
            self._objects.delete([self._key])
            is_taken_over = True
            if not self._put_if_absent():
                return self._give_up()
        if is_taken_over:
            self._stop.wait(_SETTLE_SECONDS)
        if not self.is_mine():
            return self._give_up()
        self._thread = threading.Thread(target=self._renew_until_stopped, daemon=True, name="lease")
        self._thread.start()
        return True

    def is_mine(self) -> bool:
        """Whether this is the lease that is stored."""
        held = read(self._objects, self._key)
        return held is not None and held.nonce == self._nonce

    def release(self) -> None:
        """Let others have it."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            with contextlib.suppress(TrainctlError):  # others see that this process let it go
                if self.is_mine():
                    self._objects.delete([self._key])
        _nonces.discard(self._nonce)

    def __enter__(self) -> ObjectLease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _put_if_absent(self) -> bool:
        return self._objects.put_if_absent(self._key, self._data())

    def _give_up(self) -> bool:
        _nonces.discard(self._nonce)
        return False

    def _data(self) -> bytes:
        return documents.encode({**self._document, "renewals": self._renewals})

    def _renew_until_stopped(self) -> None:
        while not self._stop.wait(RENEW_SECONDS):
            with contextlib.suppress(TrainctlError):
                began = self._clock()
                if not self.is_mine():
                    self._missed = True
                    return
                self._renewals += 1
                self._objects.put(self._key, self._data())
                if not self.late:
                    self._renewed = began
