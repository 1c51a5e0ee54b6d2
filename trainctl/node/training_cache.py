"""Training caches: read-write directories that lineages share; the last one to let go removes them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Callable, Dict, Mapping

from trainctl.node import layout as names
from trainctl.node.failure import Failure
from trainctl.node.files import make_directory, remove_tree, tree_size
from trainctl.node.layout import Layout, inside
from trainctl.node.references import References

Emit = Callable[[Dict[str, Any]], None]
_MARKER = ".trainctl-cache"


def make_cache(request: Mapping[str, Any], emit: Emit) -> Dict[str, Any]:
    """Make the directory, or find it; the lineage refers to it from now on."""
    layout = Layout(request["root"])
    directory = names.absolute(request["directory"], "directory")
    lineage = names.name(request["lineage"], "lineage")
    References(layout).refer_cache(lineage, _name(directory), str(directory))
    existed = directory.exists()
    make_directory(directory)
    if not existed:
        (directory / _MARKER).touch(0o600)
    return {"directory": str(directory), "bytes": tree_size(directory)}


def remove_cache(request: Mapping[str, Any], emit: Emit) -> Dict[str, Any]:
    """Let go of the directory; it is removed with what it holds if no other lineage refers to it and we made it."""
    layout = Layout(request["root"])
    directory = names.absolute(request["directory"], "directory")
    references = References(layout)
    if inside(layout.root, directory):
        raise Failure("request", f"{directory} holds more than a training cache")
    references.drop_cache(names.name(request["lineage"], "lineage"), _name(directory))
    size = tree_size(directory)
    ours = inside(directory, layout.root) or (directory / _MARKER).exists()
    if references.cache_users(_name(directory)) or not ours:
        return {"directory": str(directory), "bytes": size, "removed": False}
    remove_tree(directory)
    return {"directory": str(directory), "bytes": size, "removed": True}


def _name(directory: Path) -> str:
    return hashlib.sha256(str(directory).encode()).hexdigest()[:16]
