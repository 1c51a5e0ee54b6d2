"""What a store takes of memory for a made-up source: ``python -m tests.support.storage.synthetic_source PLACE COUNT SIZE parts|stream``.

Copies COUNT files of SIZE bytes in, verifies them, copies them again, lists them, drops the reference and collects. Prints
the peak after each step, in bytes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.support.memory_peak import peak
from tests.support.storage.mirrors import REFERENCE, immediate_retry
from tests.support.storage.store_process import objects_at
from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.base.system.syscalls import limit_malloc_arenas
from trainctl.store.maintenance.gc import GcOptions
from trainctl.store.store import MirrorStore

_PIECE = 2**20
Fill = Callable[[memoryview], None]


class SyntheticUpstream:
    """An Upstream whose files have their name and the number of the MiB over and over again."""

    source = "hf://made/up"

    def __init__(self, parts: bool) -> None:
        self._parts = parts

    @contextmanager
    def open(self, file: SourceFile, offset: int) -> Iterator[Iterator[bytes]]:
        """See Upstream."""
        yield (self._piece(file, at) for at in range(offset, file.size, _PIECE))

    @contextmanager
    def read_range(self, file: SourceFile, offset: int, length: int) -> Iterator[Fill | None]:
        """See Upstream."""
        at = offset

        def fill(into: memoryview) -> None:
            nonlocal at
            into[:] = self._piece(file, at)[: len(into)]
            at += len(into)

        yield fill if self._parts else None

    def checksum(self, file: SourceFile) -> str:
        """See Upstream."""
        return ""

    def _piece(self, file: SourceFile, at: int) -> bytes:
        word = f"{file.path} {at // _PIECE}.".encode()
        return (word * (_PIECE // len(word) + 1))[: min(_PIECE, file.size - at)]


def main(place: str, count: str, size: str, how: str) -> None:
    """See the module."""
    limit_malloc_arenas()  # as commands do
    files = tuple(
        SourceFile(f"{number:08}", int(size), f"etag:{number}") for number in range(int(count))
    )
    resolved = ResolvedSource(SyntheticUpstream.source, "1", files)
    store, upstream = (
        MirrorStore(objects_at(place), immediate_retry()),
        SyntheticUpstream(how == "parts"),
    )
    steps: dict[str, Callable[[], object]] = {
        "ingest": lambda: store.ingest(resolved, upstream, REFERENCE),
        "verify": store.verify,
        "again": lambda: store.ingest(resolved, upstream, REFERENCE),
        "inventory": store.inventory,
        "drop": lambda: store.drop_reference(REFERENCE.lineage, REFERENCE.address),
        "gc": lambda: store.gc(GcOptions()),
    }
    peaks = {}
    for name, act in steps.items():
        act()
        peaks[name] = peak()
    print(json.dumps(peaks))


if __name__ == "__main__":
    main(*sys.argv[1:])
