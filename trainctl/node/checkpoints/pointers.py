"""Files by which trainers find their newest checkpoint: read next to a saved one, written next to a loaded one."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, List, Mapping

from trainctl.base.checkpoints.layout import POINTER_NAME, PointerFile, find_pointer
from trainctl.base.filesystem.files import list_names
from trainctl.node.checkpoints.monitor import SavedCheckpoint

_MOST_BYTES = 4096


def pointers_of(saved: SavedCheckpoint, manifest: Mapping[str, Any]) -> List[PointerFile]:
    """Return the pointers next to a checkpoint, with the values for it."""
    place = (saved.top / saved.name).parent
    pointers, names = [], list_names(place)
    for path in (place / name for name in filter(POINTER_NAME.fullmatch, names)):
        with contextlib.suppress(OSError, ValueError):
            target = os.readlink(path) if path.is_symlink() else None
            is_small = target is None and path.is_file() and path.stat().st_size <= _MOST_BYTES
            text = path.read_text("utf-8", "replace") if is_small else ""
            pointers.append(find_pointer(path.name, text.strip(), target, manifest, names))
    return [pointer for pointer in pointers if pointer is not None]


def place_pointers(manifest: Mapping[str, Any], rank: Path, visible: Path) -> List[str]:
    """Write the pointers of a checkpoint that was loaded below ``rank``; return their paths.

    ``visible``: that directory as the job sees it.
    """
    loaded = rank / manifest["name"]
    written = []
    for row in manifest.get("pointers") or ():
        pointer = PointerFile(str(row["name"]), str(row["kind"]), str(row["value"]))
        path = loaded.parent / pointer.name
        if "/" in pointer.name or os.path.lexists(path):
            continue
        if pointer.kind == "link":
            path.symlink_to(loaded.name)
        elif pointer.kind != "copy":
            is_path = pointer.kind == "path"
            path.write_text(str(visible / manifest["name"]) if is_path else pointer.value)
        elif pointer.value in [file["path"] for file in manifest["files"]]:
            os.link(loaded / pointer.value, path, follow_symlinks=False)
        written.append(path.relative_to(rank).as_posix())
    return written
