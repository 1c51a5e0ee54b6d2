"""Where a content lies in a mirror's directory: a slice of a pack if it is small, else, and from before there were packs, a file of its own."""

from __future__ import annotations

import os

from trainctl.base import below
from trainctl.node.content.packs import Packs, Slice
from trainctl.node.content.parts import PACKED_BYTES
from trainctl.weights.mirror.layout import Layout


class Contents:
    """What there is, of packs as they were when they were last looked at. A writer looks when its reference is there: what it sees then stays."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._packs = Packs(layout.packs)
        self._in_packs = str(layout.packs)

    def refresh(self) -> None:
        """Look for packs that have come or gone."""
        self._packs.refresh()

    def find(self, sha256: str) -> Slice | None:
        """Where a content lies."""
        found = self._packs.find(sha256)
        if found is not None:
            return found
        path = self.layout.blob_name(sha256)
        size = below.file_size(path)
        return None if size is None else Slice(path, 0, size)

    def has(self, sha256: str, size: int) -> bool:
        """Whether a content is there with its size."""
        return self.named_in(sha256, size) is not None

    def named_in(self, sha256: str, size: int) -> str | None:
        """The directory in which a content of this size got its name; None if it isn't there."""
        packed = self._packs.find(sha256) if size < PACKED_BYTES else None
        if packed is not None and packed.length == size:
            return self._in_packs
        blob = self.layout.has_blob(sha256, size)
        return os.path.dirname(self.layout.blob_name(sha256)) if blob else None  # noqa: PTH120
