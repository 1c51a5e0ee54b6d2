"""Verbs about checkpoints: which there are, reading them, bringing what was left behind, removing them."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, List

from trainctl.base.checkpoints.directory import DirectoryStore
from trainctl.base.checkpoints.manifests import Manifest, RunCheckpoints
from trainctl.base.checkpoints.stores import blamed
from trainctl.base.failure import Failure
from trainctl.base.files import names_in, remove_tree
from trainctl.base.protocol import checkpoints as protocol
from trainctl.base.protocol.runs import Removed
from trainctl.node.checkpoints.uploader import store_at
from trainctl.node.checkpoints.uploader_process import upload
from trainctl.node.checkpoints.watch import SavedCheckpoint, saved_in
from trainctl.node.runs.record import Run, sync_of
from trainctl.node.system import layout
from trainctl.node.system.layout import Layout, inside

Emit = Callable[[Dict[str, Any]], None]


def checkpoints(request: protocol.CheckpointsRequest, emit: Emit) -> protocol.CheckpointsAnswer:
    """The manifests of a run's checkpoints, and what is on this node without one."""
    data = layout.absolute(request["data"], "data")
    prefix, place = request["prefix"], request["place"]
    local = saved_in(data / "checkpoints" / RunCheckpoints(DirectoryStore(data), prefix).prefix)
    complete: List[Manifest] = []
    if place is not None:
        complete = RunCheckpoints(store_at(place, data, {}), prefix).manifests()
        if place["url"] is None:
            complete = [one for one in complete if _still(one, local)]
    run = Run(Layout(request["root"]), request["key"])
    sync = sync_of(run.directory)
    named = {(one["rank"], one["name"]) for one in complete}
    left = set(sync.get("pending") or ())
    unfinished = [
        one
        for one in local
        if (one.rank, one.name) not in named
        and (one.name in left or not sync or place is None or place["url"] is None)
    ]
    status = run.status()
    if request["brief"]:
        complete = [{**one, "files": len(one["files"])} for one in complete]
    return {
        "complete": complete,
        "unfinished": [_row(one) for one in unfinished],
        "pending": sorted(left),
        "live": bool(status and status["supervised"]),
    }


def read_objects(request: protocol.ObjectsRequest, write: Callable[[bytes], None]) -> None:
    """Objects of a store one after another, each from its ``offset`` on."""
    store = store_at(request["place"], layout.absolute(request["data"], "data"), {})
    prefix = RunCheckpoints(store, request["prefix"]).prefix
    for one in request["objects"]:
        if not one["key"].startswith(f"{prefix}/"):
            raise Failure("request", f"{one['key']!r} is no object of that run")
        store.read(one["key"], one["offset"], write)


def upload_checkpoints(request: protocol.UploadRequest, emit: Emit) -> protocol.Uploaded:
    """Bring to the store what an ended run left behind; how it stands afterwards."""
    run = Run(Layout(request["root"]), request["key"])
    data = layout.absolute(request["data"], "data")
    spec = run.spec
    with blamed(spec["store"] if spec else {}):
        return {"sync": upload(run, request["secrets"], data)}


def remove_checkpoints(request: protocol.RemoveCheckpointsRequest, emit: Emit) -> Removed:
    """Delete a run's checkpoints from this node, and from a store that is a directory; empty directories above go too."""
    data = layout.absolute(request["data"], "data")
    directory = layout.absolute(request["directory"], "directory")
    if not inside(directory, data) or directory == data:
        raise Failure("request", f"{directory} is no directory of checkpoints below {data}")
    place = request["place"]
    if place and place["url"] is not None:
        RunCheckpoints(store_at(place, data, {}), request["prefix"]).remove_all()
    remove_tree(directory)
    for above in directory.parents:
        if above == data or names_in(above):
            break
        with contextlib.suppress(FileNotFoundError):
            above.rmdir()
    return {"removed": True}


def _still(manifest: Manifest, local: List[SavedCheckpoint]) -> bool:
    """Whether a checkpoint that is kept where it was saved is still what its manifest says."""
    files = {(one["path"], one["size"], one["modified"]) for one in manifest["files"]}
    return any(
        {(file.path, file.size, file.modified) for file in one.files} == files
        for one in local
        if (one.rank, one.name) == (manifest["rank"], manifest["name"])
    )


def _row(one: SavedCheckpoint) -> protocol.Unfinished:
    return {
        "rank": one.rank,
        "name": one.name,
        "bytes": one.bytes,
        "files": len(one.files),
        "left_out": one.left_out,
        "created_at": one.modified / 1e9,
    }
