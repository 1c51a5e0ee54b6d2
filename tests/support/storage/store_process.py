"""A process that uses a store, to be killed: ``python -m tests.support.storage.store_process PLACE VERB …``.

PLACE is a directory, or ENDPOINT#PREFIX in a bucket of moto's. ``ingest HUB CHUNK_BYTES ADDRESS [LETHAL]`` copies
hf://acme/model and prints progress, what is waited for, and the listing with the memory that it took. ``gc [LETHAL]``
collects once, or ``gc forever``. With LETHAL the process kills itself before its effect of that number.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from tests.support.memory_peak import peak
from tests.support.projects.kill_at_effect import kill_at_effect
from tests.support.storage.mirrors import REFERENCE, immediate_retry, ingest
from trainctl.base.objects import ObjectStore
from trainctl.errors import LockHeld, TrainctlError
from trainctl.sources.hf import HubSource
from trainctl.store.backends.directory import DirectoryObjects
from trainctl.store.maintenance.gc import GcOptions
from trainctl.store.store import MirrorStore


def objects_at(place: str) -> ObjectStore:
    """The objects in a directory or bucket."""
    endpoint, _, prefix = place.partition("#")
    if not prefix:
        return DirectoryObjects(Path(place))
    from tests.support.servers.bucket_stores import (
        objects_in,  # most processes need no libraries of clouds
    )
    from tests.support.servers.buckets import BucketServer

    return objects_in(BucketServer(endpoint, "models"), prefix)


def main(place: str, method: str, *words: str) -> None:
    """See the module."""
    objects = objects_at(place)
    if method == "ingest":
        copy(objects, *words)
        return
    store = MirrorStore(objects, immediate_retry())
    if words != ("forever",):
        kill_at_effect(int(words[0]) if words else 0)
        store.gc(GcOptions())
        return
    while True:
        try:
            store.gc(GcOptions())
        except LockHeld:
            continue


def copy(objects: ObjectStore, hub: str, chunk_bytes: str, address: str, lethal: str = "0") -> None:
    """Copy the source in."""
    source = HubSource(hub)
    resolved = source.resolve("hf://acme/model", None, None)
    kill_at_effect(int(lethal))
    listing = ingest(
        MirrorStore(objects, immediate_retry(), int(chunk_bytes)),
        resolved,
        source,
        replace(REFERENCE, address=address),
        progress=lambda done, total, files: report(done=done, files=files),
        waiting=lambda text: report(waiting=text),
    )
    report(listing=listing.id, peak=peak())


def report(**values: object) -> None:
    """Print a line of JSON."""
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except TrainctlError as error:
        report(error=error.code, text=str(error))
        sys.exit(error.exit_code)
