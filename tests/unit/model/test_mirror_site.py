"""What a state remembers of where a mirror is."""

from __future__ import annotations

import pytest

from trainctl.model.mirror_site import MirrorSite

STORE, OTHER = "http://127.0.0.1:9000", "http://127.0.0.1:9001"


@pytest.mark.parametrize(
    ("today", "outputs", "before"),
    [
        (MirrorSite("s3://b/p", STORE), {"mirror": "s3://b/p"}, MirrorSite("s3://b/p", STORE)),
        (MirrorSite("s3://b/p", STORE), {"mirror": "s3://b/old"}, MirrorSite("s3://b/old", STORE)),
        (MirrorSite("s3://b/p", STORE), {"mirror": "file:///old"}, MirrorSite("file:///old")),
        (MirrorSite("s3://b/p", STORE), {}, MirrorSite("s3://b/p", STORE)),
        (MirrorSite("s3://b/p", STORE), MirrorSite("s3://b/p", OTHER).outputs, MirrorSite("s3://b/p", OTHER)),
        (MirrorSite("s3://b/p", STORE), MirrorSite("s3://b/p").outputs, MirrorSite("s3://b/p")),
        (MirrorSite("file:///new"), MirrorSite("s3://b/p", OTHER).outputs, MirrorSite("s3://b/p", OTHER)),
    ],
)  # fmt: skip
def test_a_record_tells_where_weights_are(
    today: MirrorSite, outputs: dict[str, str], before: MirrorSite
) -> None:
    """One that tells no server, as earlier releases wrote it, is no move to another server by itself."""
    assert today.of(outputs) == before
