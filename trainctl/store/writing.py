"""The lease of the process that copies a source in. Others that need the same source wait, and find it there."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Callable, Iterator, Optional

from trainctl.base.lease import Liveness, holder_name
from trainctl.base.listing import ResolvedSource
from trainctl.base.objects import ObjectStore
from trainctl.errors import StorageError
from trainctl.store import keys
from trainctl.store.lease import Held, ObjectLease, living
from trainctl.store.references import Reference
from trainctl.store.transfer import stopped

_POLL_SECONDS = 0.2
_TELL_SECONDS = 1.0
"""How long a wait lasts before it is told, and how often it is told again."""
Waiting = Callable[[str], None]
"""Called with what is waited for."""


@contextlib.contextmanager
def writing(
    objects: ObjectStore,
    resolved: ResolvedSource,
    reference: Reference,
    cancelled: threading.Event,
    waiting: Waiting,
    liveness: Optional[Liveness] = None,
) -> Iterator[ObjectLease]:
    """Hold the lease of a source at its pin while nobody deletes. Interrupted if cancelled before."""
    wait = _Wait(cancelled, waiting)
    liveness = liveness or Liveness()
    key = keys.lease(resolved)
    document = {
        "source": resolved.source,
        "owner": reference.owner,
        "address": reference.address,
    }
    while True:
        while living(objects, keys.GC_LEASE, liveness) is not None:
            wait.once("waits until garbage is collected in the mirror")
        with ObjectLease(objects, key, document) as lease:
            if lease.try_acquire(liveness):
                # A collection that began since has not seen this lease, or waits for it to end.
                if living(objects, keys.GC_LEASE, liveness) is None:
                    yield lease
                    return
                continue
        other = living(objects, key, liveness)
        if other is not None:
            wait.once(f"waits for {_name(other)} brings the same")


def require_punctual(lease: ObjectLease, resolved: ResolvedSource) -> None:
    """StorageError if others may have taken the lease over, and deleted what was copied."""
    if lease.late:
        raise StorageError(
            f"this process was suspended while mirroring {resolved.source}",
            "Apply again: what arrived is used.",
        )


class _Wait:
    def __init__(self, cancelled: threading.Event, waiting: Waiting) -> None:
        self._cancelled = cancelled
        self._waiting = waiting
        self._due = time.monotonic() + _TELL_SECONDS

    def once(self, text: str) -> None:
        """Wait for a moment; tell why, but not often."""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + _TELL_SECONDS
            self._waiting(text)
        if self._cancelled.wait(_POLL_SECONDS):
            raise stopped()


def _name(other: Held) -> str:
    holder = str(other.document.get("holder") or "")
    if holder == holder_name():
        return f"{other.document.get('address')}, which"
    process = holder.rpartition("-")[0].rpartition("-")[2]
    owner = other.document.get("owner") or "somebody"
    return f"{owner} (process {process or '?'}), who"
