"""Objects of a mirror that a server on its host may serve: blobs and indexes."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

from trainctl.base.filesystem.files import open_file
from trainctl.base.network.object_server import ObjectSource, OpenObject
from trainctl.store import keys

_READABLE = {"blobs", "slices", "packs"}


class MirrorObjectSource(ObjectSource):
    """A mirror in a directory."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def open(self, key: str, offset: int, length: Optional[int]) -> Optional[OpenObject]:
        is_readable = keys.is_store_key(key) and key.partition("/")[0] in _READABLE
        stream = open_file(f"{self._root}/{key}") if is_readable else None
        return OpenObject.from_file(stream) if stream else None
