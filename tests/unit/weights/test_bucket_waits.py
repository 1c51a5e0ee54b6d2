"""Who waits while somebody else brings the same into a bucket's mirror hears for whom."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.bucket_mirrors import mirror_in
from tests.support.buckets import moto
from tests.support.mirrors import REFERENCE, MemorySource
from trainctl.base.exclusive import holder_name
from trainctl.base.json import canonical
from trainctl.weights.bucket import keys
from trainctl.weights.bucket.mirror import BucketMirror
from trainctl.weights.mirror.layout import Reference

pytestmark = pytest.mark.integration

OTHER = Reference("lineage-2", "weights.else", "bob@desk", "other")


@pytest.fixture
def client() -> Iterator[BucketMirror]:
    """A mirror in a bucket that takes conditions, without which nobody waits."""
    with moto() as bucket:
        yield mirror_in(bucket, "team")


def test_who_waits_says_for_whom(client: BucketMirror) -> None:
    """Another resource of this very process is named by its address; what has no reference by its process; of a lease that can't be read nobody is known."""
    source = MemorySource({"a": b"a"})
    found = source.resolve("hf://acme/model", None, None)
    lease, reference = keys.lease(found), keys.reference(OTHER.lineage, OTHER.address)
    client.shelf.objects.put(reference, canonical(OTHER.record({}, found, None, 0)))
    said: list[str] = []

    def tell(text: str) -> None:
        said.append(text)
        client.shelf.objects.delete([lease, reference])

    mine = canonical({"holder": holder_name(), "beat": 0})
    for document in (mine, mine, mine[:-5]):
        client.shelf.objects.put(lease, document)
        client.mirror(found, source, REFERENCE, waiting=tell)

    assert said == [
        f"waits for {OTHER.address}, which brings the same",
        f"waits for process {os.getpid()}, which brings the same",
        "waits for somebody who brings the same",
    ]
