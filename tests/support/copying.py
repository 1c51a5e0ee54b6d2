"""A process that uses a store, to be killed: ``python -m tests.support.copying PLACE VERB …``.

PLACE is a directory, or ENDPOINT#PREFIX in a bucket of moto's. ``ingest HUB CHUNK_BYTES ADDRESS [LETHAL]`` copies
hf://acme/model and prints progress, what is waited for, and the listing with the memory that it took. ``gc [LETHAL]``
collects once, or ``gc forever``. With LETHAL the process kills itself before its effect of that number.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from tests.support.dying import mortal
from tests.support.mirrors import REFERENCE, impatient, ingest
from tests.support.peaks import peak
from trainctl.base.objects import ObjectStore
from trainctl.errors import Busy, TrainctlError
from trainctl.sources.hf import HubSource
from trainctl.store.directory import DirectoryObjects
from trainctl.store.gc import GcOptions
from trainctl.store.store import Store


def objects_at(place: str) -> ObjectStore:
    """The objects in a directory or bucket."""
    endpoint, _, prefix = place.partition("#")
    if not prefix:
        return DirectoryObjects(Path(place))
    from tests.support.bucket_stores import objects_in  # most processes need no libraries of clouds
    from tests.support.buckets import Bucket

    return objects_in(Bucket(endpoint, "models"), prefix)


def main(place: str, verb: str, *words: str) -> None:
    """See the module."""
    objects = objects_at(place)
    if verb == "ingest":
        copy(objects, *words)
        return
    store = Store(objects, impatient())
    if words != ("forever",):
        mortal(int(words[0]) if words else 0)
        store.gc(GcOptions())
        return
    while True:
        try:
            store.gc(GcOptions())
        except Busy:
            continue


def copy(objects: ObjectStore, hub: str, chunk_bytes: str, address: str, lethal: str = "0") -> None:
    """Copy the source in."""
    source = HubSource(hub)
    resolved = source.resolve("hf://acme/model", None, None)
    mortal(int(lethal))
    listing = ingest(
        Store(objects, impatient(), int(chunk_bytes)),
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
