"""Exclusive access for what deletes: one lease, which writers respect before they begin."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import Callable, Dict, Iterable, Iterator, Mapping, Optional, Tuple

from trainctl.base.lease import Liveness
from trainctl.base.objects import ObjectStore
from trainctl.errors import Busy, StorageError
from trainctl.store import keys
from trainctl.store.lease import Held, ObjectLease, list_living, living
from trainctl.store.references import StoredReference

_POLL_SECONDS = 0.5


class Access:
    """What deleting needs to know: what is no younger than ``since``, by the store's clock, may be deleted if there are no ``writers``."""

    def __init__(
        self, since: float, writers: Mapping[str, Held], lease: Optional[ObjectLease] = None
    ) -> None:
        self.since = since
        self.writers = writers
        self._lease = lease

    def copied(self, stored: Iterable[StoredReference]) -> Tuple[StoredReference, ...]:
        """The references whose sources are being copied."""
        return tuple(
            reference
            for reference in stored
            if keys.lease_of(reference.identity, str(reference.record["pin"])) in self.writers
        )

    @property
    def description(self) -> str:
        """Why nothing can be deleted."""
        sources = sorted(
            {str(writer.document.get("source", "a source")) for writer in self.writers.values()}
        )
        return f"{', '.join(sources)} is being copied into the mirror."

    def require(self) -> None:
        """StorageError if others may have taken the lease over, as this process was suspended."""
        if self._lease is not None and self._lease.late:
            raise StorageError(
                "this process was suspended while it deleted from the mirror",
                "Nothing that is needed was deleted. Run it again.",
            )


@contextmanager
def held(
    objects: ObjectStore,
    notify: Callable[[str], None] = lambda text: None,
    liveness: Optional[Liveness] = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Access]:
    """Hold the lease. Busy if another process does; a holder that may be dead is watched until it is certain."""
    liveness = liveness or Liveness()
    with ObjectLease(objects, keys.GC_LEASE, {}) as lease:
        _acquire(objects, lease, liveness, notify, sleep)
        stat = objects.stat(keys.GC_LEASE)
        if stat is None:
            raise StorageError(
                f"{objects.url} doesn't show what was stored just now",
                "Nothing was deleted. Try again.",
            )
        writers = _writers(objects, liveness, notify, sleep)
        if not writers:
            ended = [one.key for one in objects.list(keys.LEASES) if one.key != keys.GC_LEASE]
            objects.delete(ended)
        yield Access(stat.modified, writers, lease)


def preview(objects: ObjectStore) -> Access:
    """What ``held`` would find, without waiting or writing; ``since`` is this machine's time."""
    return Access(time.time(), list_living(objects, Liveness()))


def _acquire(
    objects: ObjectStore,
    lease: ObjectLease,
    liveness: Liveness,
    notify: Callable[[str], None],
    sleep: Callable[[float], None],
) -> None:
    first: Optional[Held] = None
    while not lease.try_acquire(liveness):
        other = living(objects, keys.GC_LEASE, liveness)
        if other is None:
            continue
        if first is None:
            notify("Waiting for a sign of life from another process that collects garbage.")
        first = first or other
        if other.is_alive or other.sign != first.sign:
            raise Busy(
                f"another process deletes from {objects.url}", "Try again when it has ended."
            )
        sleep(_POLL_SECONDS)


def _writers(
    objects: ObjectStore,
    liveness: Liveness,
    notify: Callable[[str], None],
    sleep: Callable[[float], None],
) -> Dict[str, Held]:
    """Writers that live. As soon as one is certain to, the others aren't waited for."""
    first: Dict[str, bytes] = {}
    while True:
        writers = list_living(objects, liveness)
        for key, writer in writers.items():
            if writer.is_alive or writer.sign != first.get(key, writer.sign):
                return writers
        if not writers:
            return writers
        if not first:
            notify("Waiting for a sign of life from a process that copies into the mirror.")
        first = {**{key: writer.sign for key, writer in writers.items()}, **first}
        sleep(_POLL_SECONDS)
