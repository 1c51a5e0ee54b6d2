"""Files by which trainers find their newest checkpoint: read next to a saved one, written next to a loaded one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, List, Mapping

from trainctl.base.checkpoints.layout import Pointer, find_pointer
from trainctl.base.filesystem.files import list_names
from trainctl.node.checkpoints.monitor import SavedCheckpoint

_MOST_BYTES = 4096


def pointers_of(saved: SavedCheckpoint, manifest: Mapping[str, Any]) -> List[Pointer]:
    """Return the pointers next to a checkpoint, with the values for it."""
    place = (saved.top / saved.name).parent
    pointers, names = [], list_names(place)
    for name in names:
        path = place / name
        try:
            target = os.readlink(path) if path.is_symlink() else None
            is_small = path.is_file() and path.stat().st_size <= _MOST_BYTES
            text = path.read_text("utf-8") if target is None and is_small else None
        except (OSError, ValueError):
            continue
        pointer = find_pointer(name, text, target, manifest, names)
        if pointer is not None and (target is not None or path.is_file()):
            pointers.append(pointer)
    return pointers


def place_pointers(manifest: Mapping[str, Any], rank: Path, visible: Path) -> List[str]:
    """Write the pointers of a checkpoint that was loaded below ``rank``; return their paths.

    ``visible``: that directory as the job sees it.
    """
    place = (rank / manifest["name"]).parent
    written = []
    for row in manifest.get("pointers") or ():
        pointer = Pointer(str(row["name"]), str(row["kind"]), str(row["value"]))
        path = place / pointer.name
        if "/" in pointer.name or pointer.name in (".", "..") or os.path.lexists(path):
            continue
        if pointer.kind == "link":
            path.symlink_to(manifest["name"].rpartition("/")[2])
        elif pointer.kind == "copy":
            if pointer.value not in [file["path"] for file in manifest["files"]]:
                continue
            os.link(rank / manifest["name"] / pointer.value, path, follow_symlinks=False)
        else:
            is_path = pointer.kind == "path"
            path.write_text(str(visible / manifest["name"]) if is_path else pointer.value)
        written.append(path.relative_to(rank).as_posix())
    return written
