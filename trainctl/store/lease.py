"""Leases in objects, held while mirroring a source or collecting garbage."""

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
"""Age of a renewal after which others may soon take the lease over."""
_SETTLE_SECONDS = 0.2
"""Time for others that saw the same dead lease to notice the take-over."""
_nonces: Set[str] = set()
"""Nonces of leases that this process holds; other leases in its name are stale."""


class StoredLease(NamedTuple):
    """A stored lease; ``document`` is empty if corrupt."""

    document: Mapping[str, Any]
    renewal_token: bytes

    @property
    def nonce(self) -> object:
        """Random id of the lease."""
        return self.document.get("nonce")

    @property
    def is_dead(self) -> bool:
        """Whether the holder has certainly ended."""
        holder = self.document.get("holder")
        if holder == holder_name():
            return self.nonce not in _nonces
        return isinstance(holder, str) and is_process_dead(holder)

    @property
    def is_alive(self) -> bool:
        """Whether the holder is certainly running."""
        holder = self.document.get("holder")
        return isinstance(holder, str) and is_process_alive(holder) and not self.is_dead


def read(objects: ObjectStore, key: str) -> Optional[StoredLease]:
    """Read a lease; None if it is free."""
    data = objects.get(key)
    if data is None:
        return None
    try:
        return StoredLease(documents.decode(data), data)
    except ValueError:
        return StoredLease({}, data)


def read_live(objects: ObjectStore, key: str, liveness: Liveness) -> Optional[StoredLease]:
    """Read a lease; None if it is free or its holder is dead or stale."""
    held = read(objects, key)
    if held is None or held.is_dead or liveness.is_stale(key, held.renewal_token):
        return None
    return held


def list_live(objects: ObjectStore, liveness: Liveness) -> Dict[str, StoredLease]:
    """Return the live leases of writers by key."""
    leases = (
        (stat.key, read_live(objects, stat.key, liveness)) for stat in objects.list(keys.LEASES)
    )
    return {key: held for key, held in leases if held is not None and key != keys.GC_LEASE}


class ObjectLease:
    """A lease that a thread renews while held; a context manager that releases it.

    ``document`` describes its purpose.
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
    def is_late(self) -> bool:
        """Whether a renewal was late, so that others may have taken the lease over."""
        self._missed = self._missed or self._clock() - self._renewed > LATE_RENEWAL_SECONDS
        return self._missed

    def try_acquire(self, liveness: Liveness) -> bool:
        """Acquire the lease if it is free or its holder is dead."""
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
        """Return whether the stored lease is this one."""
        held = read(self._objects, self._key)
        return held is not None and held.nonce == self._nonce

    def release(self) -> None:
        """Release the lease."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            with contextlib.suppress(TrainctlError):  # others detect a stale lease
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
                if not self.is_late:
                    self._renewed = began
