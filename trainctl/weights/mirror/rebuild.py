"""Learning again what a blob is when only the blob is left: its record was lost, or never written."""

from __future__ import annotations

from trainctl.base import below
from trainctl.weights.mirror.hashing import ContentHash
from trainctl.weights.mirror.layout import Content, Layout, content_fingerprint

_PIECE = 2**20


def relearn(layout: Layout, sha256: str, size: int) -> Content | None:
    """The content of a blob that is here, read and verified; None, and the blob gone, where it is not right."""
    if not layout.has_blob(sha256, size):
        return None
    path = layout.blob(sha256)
    hashing = ContentHash(size, None, layout.chunk_bytes, lambda number, digest: None)
    try:
        with path.open("rb", buffering=0) as stream:
            while piece := stream.read(_PIECE):
                hashing.update(piece)
    finally:
        hashing.close()
    digests = hashing.digests()
    if digests.sha256 != sha256:
        below.remove(layout.root, path)
        return None
    content = Content(sha256, size, digests.chunks)
    if content.chunks:
        layout.learn(content_fingerprint(sha256, size), content)
    return content
