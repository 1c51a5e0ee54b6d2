"""The recorded location of a mirror."""

from __future__ import annotations

import pytest

from trainctl.model.delivery import MirrorSite

STORE, OTHER = "http://127.0.0.1:9000", "http://127.0.0.1:9001"


@pytest.mark.parametrize(
    ("today", "outputs", "before"),
    [
        (MirrorSite("s3://b/p", STORE), {"mirror": "s3://b/p"}, MirrorSite("s3://b/p")),
        (MirrorSite("s3://b/p", STORE), {"mirror": "file:///old"}, MirrorSite("file:///old")),
        (MirrorSite("s3://b/p", STORE), {}, MirrorSite("s3://b/p", STORE)),
        (MirrorSite("s3://b/p", STORE), MirrorSite("s3://b/p", OTHER).outputs, MirrorSite("s3://b/p", OTHER)),
        (MirrorSite("s3://b/p", STORE), MirrorSite("s3://b/p").outputs, MirrorSite("s3://b/p")),
        (MirrorSite("file:///new"), MirrorSite("s3://b/p", OTHER).outputs, MirrorSite("s3://b/p", OTHER)),
    ],
)  # fmt: skip
def test_a_record_has_the_mirror_of_weights(
    today: MirrorSite, outputs: dict[str, str], before: MirrorSite
) -> None:
    assert today.of(outputs) == before


@pytest.mark.parametrize(
    ("today", "before", "moved"),
    [
        ("node://lab/data/mirror", "node://lab/data/mirror", False),
        ("node://lab/data/mirror", "node://lab/home/me/mirror", True),
        ("node://lab", "node://lab/home/me/mirror", False),
        ("node://lab", "node://lab-2/home/me/mirror", True),
        ("node://lab", "file:///home/me/mirror", True),
        ("file:///new", "file:///old", True),
        ("file:///", "file:///old", True),
    ],
)
def test_a_mirror_in_the_default_directory_of_a_cluster_has_not_moved(
    today: str, before: str, *, moved: bool
) -> None:
    assert MirrorSite(today).differs_from(MirrorSite(before)) is moved
