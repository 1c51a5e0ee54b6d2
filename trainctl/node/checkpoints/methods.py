"""Verbs about checkpoints: which there are, reading them, bringing what was left behind, removing them."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, List

from trainctl.base.checkpoints.directory_store import DirectoryCheckpointStore
from trainctl.base.checkpoints.manifests import CheckpointManifest, RunCheckpoints
from trainctl.base.checkpoints.stores import store_errors
from trainctl.base.failure import Failure
from trainctl.base.filesystem.files import list_names, remove_tree
from trainctl.base.protocol import checkpoints as protocol
from trainctl.base.protocol.runs import RemoveResponse
from trainctl.node.checkpoints.monitor import SavedCheckpoint, list_saved
from trainctl.node.checkpoints.uploader import open_store_for
from trainctl.node.checkpoints.uploader_process import upload_remaining
from trainctl.node.runs.record import NodeRun, upload_status
from trainctl.node.system import layout
from trainctl.node.system.layout import Layout, is_inside

Emit = Callable[[Dict[str, Any]], None]


def checkpoints(request: protocol.CheckpointsRequest, emit: Emit) -> protocol.CheckpointsResponse:
    """The manifests of a run's checkpoints, and what is on this node without one."""
    data = layout.check_absolute(request["data"], "data")
    prefix, place = request["prefix"], request["place"]
    local = list_saved(
        data / "checkpoints" / RunCheckpoints(DirectoryCheckpointStore(data), prefix).prefix
    )
    complete: List[CheckpointManifest] = []
    if place is not None:
        complete = RunCheckpoints(open_store_for(place, data, {}), prefix).manifests()
        if place["url"] is None:
            complete = [one for one in complete if _is_unchanged(one, local)]
    run = NodeRun(Layout(request["root"]), request["key"])
    sync = upload_status(run.directory)
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


def read_objects(request: protocol.ReadObjectsRequest, write: Callable[[bytes], None]) -> None:
    """Objects of a store one after another, each from its ``offset`` on."""
    store = open_store_for(request["place"], layout.check_absolute(request["data"], "data"), {})
    prefix = RunCheckpoints(store, request["prefix"]).prefix
    for one in request["objects"]:
        if not one["key"].startswith(f"{prefix}/"):
            raise Failure("request", f"{one['key']!r} is no object of that run")
        store.read(one["key"], one["offset"], write)


def upload_checkpoints(
    request: protocol.UploadCheckpointsRequest, emit: Emit
) -> protocol.UploadCheckpointsResponse:
    """Bring to the store what an ended run left behind; how it stands afterwards."""
    run = NodeRun(Layout(request["root"]), request["key"])
    data = layout.check_absolute(request["data"], "data")
    spec = run.spec
    with store_errors(spec["store"] if spec else {}):
        return {"sync": upload_remaining(run, request["secrets"], data)}


def remove_checkpoints(request: protocol.RemoveCheckpointsRequest, emit: Emit) -> RemoveResponse:
    """Delete a run's checkpoints from this node, and from a store that is a directory; empty directories above go too."""
    data = layout.check_absolute(request["data"], "data")
    directory = layout.check_absolute(request["directory"], "directory")
    if not is_inside(directory, data) or directory == data:
        raise Failure("request", f"{directory} is no directory of checkpoints below {data}")
    place = request["place"]
    if place and place["url"] is not None:
        RunCheckpoints(open_store_for(place, data, {}), request["prefix"]).remove_all()
    remove_tree(directory)
    for above in directory.parents:
        if above == data or list_names(above):
            break
        with contextlib.suppress(FileNotFoundError):
            above.rmdir()
    return {"removed": True}


def _is_unchanged(manifest: CheckpointManifest, local: List[SavedCheckpoint]) -> bool:
    """Whether a checkpoint that is kept where it was saved is still what its manifest says."""
    files = {(one["path"], one["size"], one["modified"]) for one in manifest["files"]}
    return any(
        {(file.path, file.size, file.modified) for file in one.files} == files
        for one in local
        if (one.rank, one.name) == (manifest["rank"], manifest["name"])
    )


def _row(one: SavedCheckpoint) -> protocol.IncompleteCheckpoint:
    return {
        "rank": one.rank,
        "name": one.name,
        "bytes": one.bytes,
        "files": len(one.files),
        "skipped_links": one.skipped_links,
        "created_at": one.modified / 1e9,
    }
