"""The sides that ``bucket_mirror`` compares, each a program of its own so that its peak memory and CPU time are its own.

    python -m tests.benchmarks.bucket_mirror_sides SIDE ARGUMENT …

``least HUB ENDPOINT PREFIX`` and ``product HUB ENDPOINT PREFIX`` mirror.
"""

from __future__ import annotations

import hashlib
import json
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from urllib.parse import quote
from urllib.request import urlopen

from tests.benchmarks.quick_hub import COMMIT, REPO
from tests.support.servers.bucket_stores import objects_in
from tests.support.servers.buckets import BucketServer
from tests.support.storage.mirrors import ingest
from tests.support.storage.store_contents import CountingObjects
from trainctl.base.listing import CHUNK_BYTES, SourceFile
from trainctl.base.retry import RetryPolicy
from trainctl.sources.hf import HubSource
from trainctl.store.store import MirrorStore

_SMALL_AT_ONCE = 32
_UPLOADS = 8


def product(hub: str, endpoint: str, prefix: str) -> dict[str, float]:
    """What trainctl does."""
    objects = CountingObjects(objects_in(BucketServer(endpoint, "models"), prefix))
    source = HubSource(hub)
    resolved = source.resolve(f"hf://{REPO}", None, None)
    ingest(MirrorStore(objects, RetryPolicy()), resolved, source)
    return {"writes": sum(objects.calls[name] for name in ("put", "put_if_absent", "delete"))}


def least(hub: str, endpoint: str, prefix: str) -> dict[str, float]:
    """Every small file is asked for and put, and every chunk of a large one as it arrives."""
    objects = objects_in(BucketServer(endpoint, "models"), prefix)
    resolved = HubSource(hub).resolve(f"hf://{REPO}", None, None)

    def bring(file: SourceFile) -> None:
        whole, sent = hashlib.sha256(), list[Future[None]]()
        address = f"{hub}/{REPO}/resolve/{COMMIT}/{quote(file.path)}"
        with urlopen(address) as answer, ThreadPoolExecutor(_UPLOADS) as pool:
            for _ in range(0, file.size, CHUNK_BYTES):
                chunk = answer.read(CHUNK_BYTES)
                whole.update(chunk)
                key = f"blobs/{hashlib.sha256(chunk).hexdigest()}"
                sent.append(pool.submit(objects.put, key, chunk))
                if len(sent) > _UPLOADS:
                    sent.pop(0).result()

    def bring_small(file: SourceFile) -> None:
        with urlopen(f"{hub}/{REPO}/resolve/{COMMIT}/{quote(file.path)}") as answer:
            data = answer.read()
        objects.put(f"blobs/{hashlib.sha256(data).hexdigest()}", data)

    with ThreadPoolExecutor(_SMALL_AT_ONCE) as pool:
        list(pool.map(bring_small, (item for item in resolved.files if item.size < CHUNK_BYTES)))
    for file in resolved.files:
        if file.size >= CHUNK_BYTES:
            bring(file)
    return {}


SIDES: dict[str, Callable[..., dict[str, float]]] = {
    "least": least,
    "product": product,
}


if __name__ == "__main__":
    began = time.perf_counter()
    more = SIDES[sys.argv[1]](*sys.argv[2:])
    used = resource.getrusage(resource.RUSAGE_SELF)
    figures = {
        "seconds": time.perf_counter() - began,
        "cpu": used.ru_utime + used.ru_stime,
        "peak_mb": used.ru_maxrss * 1024 / 1e6,
    }
    print(json.dumps({**figures, **more}))
