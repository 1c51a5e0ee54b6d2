"""Locking of a store: many processes mirror different sources, or one deletes."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Callable, Dict, Iterable, Iterator, Mapping, Optional, Tuple

from trainctl.base.lease import Liveness, holder_name
from trainctl.base.listing import ResolvedSource
from trainctl.base.objects import ObjectStore
from trainctl.errors import LockHeld, StorageError
from trainctl.store import keys
from trainctl.store.ingestion.file_transfer import interrupted_error
from trainctl.store.lease import ObjectLease, StoredLease, list_live, read_live
from trainctl.store.references import Reference, StoredReference

_WATCH_SECONDS = 0.5
_WAIT_SECONDS = 0.2
_TELL_SECONDS = 1.0
"""Delay before a wait is reported, and interval of further reports."""
Notify = Callable[[str], None]


def no_notify(text: str) -> None:
    """Report nothing."""


@contextlib.contextmanager
def hold_writer_lease(
    objects: ObjectStore,
    resolved: ResolvedSource,
    reference: Reference,
    cancelled: threading.Event,
    waiting: Notify,
) -> Iterator[ObjectLease]:
    """Hold the lease of a source at its pin while no process deletes.

    ``waiting`` is called with the reason of the wait: another process mirrors the source, or deletes.
    """
    wait, liveness = _WaitReporter(cancelled, waiting), Liveness()
    key = keys.lease(resolved)
    document = {
        "source": resolved.source,
        "owner": reference.owner,
        "address": reference.address,
    }
    while True:
        with ObjectLease(objects, key, document) as lease:
            if lease.try_acquire(liveness):
                # Collections that start from now on see this lease and delete nothing.
                first = other = read_live(objects, keys.GC_LEASE, liveness)
                while first and other and other.nonce == first.nonce:
                    wait.poll("waits for garbage collection in the mirror")
                    other = read_live(objects, keys.GC_LEASE, liveness)
                if first is None or lease.is_mine():
                    yield lease
                    return
                continue
        other = read_live(objects, key, liveness)
        if other is not None:
            wait.poll(f"waits for {_holder_label(other)} mirrors the same source")


def require_not_late(lease: ObjectLease, resolved: ResolvedSource) -> None:
    """Raise StorageError if the lease may have been lost."""
    if lease.is_late:
        raise StorageError(
            f"this process was suspended while mirroring {resolved.source}",
            "Apply again: data transferred so far is reused.",
        )


class ExclusiveAccess:
    """Permission to delete objects not newer than ``since``, without ``writers``."""

    def __init__(
        self, since: float, writers: Mapping[str, StoredLease], lease: Optional[ObjectLease] = None
    ) -> None:
        self.since = since
        self.writers = writers
        self._lease = lease

    def being_copied(self, stored: Iterable[StoredReference]) -> Tuple[StoredReference, ...]:
        """Return the references whose sources are being mirrored."""
        return tuple(
            reference
            for reference in stored
            if keys.lease_of(reference.identity, str(reference.record["pin"])) in self.writers
        )

    @property
    def description(self) -> str:
        """Reason why nothing can be deleted."""
        sources = {str(writer.document.get("source", "a source")) for writer in self.writers.values()}  # fmt: skip
        return f"{', '.join(sorted(sources))} is being mirrored."

    def require(self) -> None:
        """Raise StorageError if the lease may have been lost while suspended."""
        if self._lease is not None and self._lease.is_late:
            raise StorageError(
                "this process was suspended while deleting from the mirror",
                "Run it again. No referenced blob was deleted.",
            )


@contextlib.contextmanager
def hold_exclusive_access(
    objects: ObjectStore,
    notify: Notify = no_notify,
    liveness: Optional[Liveness] = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[ExclusiveAccess]:
    """Hold the lease for deleting; LockHeld if another holder is alive."""
    liveness = liveness or Liveness()
    watch = _LeaseWatcher(notify, sleep)
    with ObjectLease(objects, keys.GC_LEASE, {}) as lease:
        while not lease.try_acquire(liveness):
            if watch.find_live(lambda: _gc_lease(objects, liveness), "another garbage collection"):  # fmt: skip
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
        writers = watch.find_live(lambda: list_live(objects, liveness), "a process that mirrors a source")  # fmt: skip
        if not writers:
            ended = [stat.key for stat in objects.list(keys.LEASES) if stat.key != keys.GC_LEASE]
            objects.delete(ended)
        yield ExclusiveAccess(stat.modified, writers, lease)


def preview_exclusive_access(objects: ObjectStore) -> ExclusiveAccess:
    """Return the present access, without waiting or writing."""
    return ExclusiveAccess(time.time(), list_live(objects, Liveness()))


def _gc_lease(objects: ObjectStore, liveness: Liveness) -> Dict[str, StoredLease]:
    held = read_live(objects, keys.GC_LEASE, liveness)
    return {} if held is None else {keys.GC_LEASE: held}


class _LeaseWatcher:
    """Watches leases whose holders may be dead."""

    def __init__(self, notify: Notify, sleep: Callable[[float], None]) -> None:
        self._notify = notify
        self._sleep = sleep
        self._tokens: Dict[str, bytes] = {}

    def find_live(
        self, find: Callable[[], Dict[str, StoredLease]], holder: str
    ) -> Dict[str, StoredLease]:
        """Return the leases of ``find`` once one is held; empty if all are stale."""
        is_reported = False
        while True:
            leases = find()
            is_unchanged = [
                held.renewal_token == self._tokens.setdefault(key, held.renewal_token)
                for key, held in leases.items()
            ]
            is_alive = any(held.is_alive for held in leases.values())
            if not leases or is_alive or not all(is_unchanged):
                return leases
            if not is_reported:
                self._notify(f"Waiting for a heartbeat of {holder}.")
                is_reported = True
            self._sleep(_WATCH_SECONDS)


class _WaitReporter:
    def __init__(self, cancelled: threading.Event, waiting: Notify) -> None:
        self._cancelled = cancelled
        self._waiting = waiting
        self._due = time.monotonic() + _TELL_SECONDS

    def poll(self, text: str) -> None:
        """Sleep briefly; report the reason, at most once a second."""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + _TELL_SECONDS
            self._waiting(text)
        if self._cancelled.wait(_WAIT_SECONDS):
            raise interrupted_error()


def _holder_label(other: StoredLease) -> str:
    holder = str(other.document.get("holder") or "")
    if holder == holder_name():
        return f"{other.document.get('address')}, which"
    process = holder.rpartition("-")[0].rpartition("-")[2]
    owner = other.document.get("owner") or "another user"
    return f"{owner} (process {process or '?'}), who"
