"""Leases in objects: many processes copy different sources, or one deletes.

A writer holds the lease of its source at its pin; a process that deletes holds ``leases/gc.json``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Set

from trainctl.base.clock import elapsed
from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.lease import (
    RENEW_SECONDS,
    Liveness,
    holder_name,
    is_process_alive,
    is_process_dead,
)
from trainctl.base.listing import ResolvedSource
from trainctl.base.objects import ObjectStore
from trainctl.errors import LockHeld, StorageError, TrainctlError, UserInterrupt
from trainctl.store import documents, keys
from trainctl.store.references import Reference

LATE_RENEWAL_SECONDS = 10.0
"""Age of a renewal after which others may soon take the lease over."""
_SETTLE_SECONDS = 0.2
"""Time for others that saw the same dead lease to notice the take-over."""
_WATCH_SECONDS = 0.5
_WAIT_SECONDS = 0.2
_REPORT_SECONDS = 1.0
"""Delay before a wait is reported, and interval of further reports."""
Notify = Callable[[str], None]
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


def list_writers(objects: ObjectStore, liveness: Liveness) -> Dict[str, StoredLease]:
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
        self._document = {**document, "holder": holder_name(), "nonce": os.urandom(8).hex()}
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
        is_mine = self._objects.put_if_absent(self._key, self._data())
        if not is_mine and read_live(self._objects, self._key, liveness) is None:
            self._objects.delete([self._key])
            is_mine = self._objects.put_if_absent(self._key, self._data())
            self._stop.wait(_SETTLE_SECONDS if is_mine else 0)
        if not (is_mine and self.is_mine()):
            _nonces.discard(self._nonce)
            return False
        self._thread = threading.Thread(target=self._renew, daemon=True, name="lease")
        self._thread.start()
        return True

    def is_mine(self) -> bool:
        """Return whether the stored lease is this one."""
        held = read(self._objects, self._key)
        return held is not None and held.nonce == self._nonce

    def require(self, source: str) -> None:
        """Raise StorageError if the lease may have been lost while mirroring the source."""
        if self.is_late:
            raise StorageError(
                f"this process was suspended while mirroring {source}",
                "Apply again: data transferred so far is reused.",
            )

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

    def _data(self) -> bytes:
        return documents.encode({**self._document, "renewals": self._renewals})

    def _renew(self) -> None:
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


@contextlib.contextmanager
def hold_writer_lease(
    objects: ObjectStore,
    resolved: ResolvedSource,
    reference: Reference,
    cancelled: threading.Event,
    waiting: Notify,
) -> Iterator[ObjectLease]:
    """Hold the lease of a source at its pin while no process deletes.

    ``waiting`` is called, about once a second, with the reason of the wait: another process mirrors the source, or
    deletes.
    """
    liveness, due = Liveness(), time.monotonic() + _REPORT_SECONDS

    def wait(text: str) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + _REPORT_SECONDS
            waiting(text)
        if cancelled.wait(_WAIT_SECONDS):
            raise interrupted_error()

    key = keys.lease(resolved)
    names = {"owner": reference.owner, "address": reference.address}
    while True:
        with ObjectLease(objects, key, {"source": resolved.source, **names}) as lease:
            if lease.try_acquire(liveness):
                # Collections that start from now on see this lease and delete nothing.
                first = other = read_live(objects, keys.GC_LEASE, liveness)
                while first and other and other.nonce == first.nonce:
                    wait("waits for garbage collection in the mirror")
                    other = read_live(objects, keys.GC_LEASE, liveness)
                if first is None or lease.is_mine():
                    yield lease
                    return
                continue
        other = read_live(objects, key, liveness)
        if other is not None:
            holder = str(other.document.get("holder") or "")
            process = holder.rpartition("-")[0].rpartition("-")[2]
            label = (
                f"{other.document.get('owner') or 'another user'} (process {process or '?'}), who"
            )
            if holder == holder_name():
                label = f"{other.document.get('address')}, which"
            wait(f"waits for {label} mirrors the same source")


class ExclusiveAccess(NamedTuple):
    """Permission to delete objects not newer than ``since``, if there are no ``writers``."""

    since: float
    writers: Mapping[str, StoredLease]
    lease: Optional[ObjectLease] = None

    @property
    def description(self) -> str:
        """Reason why nothing can be deleted."""
        sources = {str(writer.document.get("source", "a source")) for writer in self.writers.values()}  # fmt: skip
        return f"{', '.join(sorted(sources))} is being mirrored."

    def require(self) -> None:
        """Raise StorageError if the lease may have been lost while suspended."""
        if self.lease is not None and self.lease.is_late:
            raise StorageError(
                "this process was suspended while deleting from the mirror",
                "Run it again. No referenced blob was deleted.",
            )


@contextlib.contextmanager
def hold_exclusive_access(
    objects: ObjectStore,
    notify: Notify = lambda _: None,
    liveness: Optional[Liveness] = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[ExclusiveAccess]:
    """Hold the lease for deleting; LockHeld if another holder is alive."""
    liveness = liveness or Liveness()
    tokens: Dict[str, bytes] = {}

    def find_live(holder: str, *, deleting: bool) -> Dict[str, StoredLease]:
        """Return the leases once one is renewed, or is certainly held; empty if all are stale."""
        for number in itertools.count():
            gc_lease = read_live(objects, keys.GC_LEASE, liveness) if deleting else None
            leases = {keys.GC_LEASE: gc_lease} if gc_lease else {}
            if not deleting:
                leases = list_writers(objects, liveness)
            is_renewed = [
                tokens.setdefault(key, held.renewal_token) != held.renewal_token
                for key, held in leases.items()
            ]
            if not leases or any(is_renewed) or any(held.is_alive for held in leases.values()):
                break
            if not number:
                notify(f"Waiting for a heartbeat of {holder}.")
            sleep(_WATCH_SECONDS)
        return leases

    with ObjectLease(objects, keys.GC_LEASE, {}) as lease:
        while not lease.try_acquire(liveness):
            if find_live("another garbage collection", deleting=True):
                raise LockHeld(
                    f"another garbage collection of {objects.url} is running",
                    "Try again when it has finished.",
                )
        stat = objects.stat(keys.GC_LEASE)
        if stat is None:
            raise StorageError(
                f"{objects.url} doesn't list an object that was just stored",
                "Try again. Nothing was deleted.",
            )
        writers = find_live("a process that mirrors a source", deleting=False)
        if not writers:
            ended = [stat.key for stat in objects.list(keys.LEASES) if stat.key != keys.GC_LEASE]
            objects.delete(ended)
        yield ExclusiveAccess(stat.modified, writers, lease)


def interrupted_error() -> UserInterrupt:
    """Return the error of a cancelled transfer."""
    return UserInterrupt("mirroring was stopped", "The next apply resumes the transfer.")
