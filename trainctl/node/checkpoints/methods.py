"""RPC methods for checkpoints: list, hash, read, upload, remove."""

from __future__ import annotations

import contextlib
import hashlib
import time
from typing import Any, Callable, Dict, List, cast

from trainctl.base.checkpoints.manifests import CheckpointManifest, RunCheckpoints
from trainctl.base.checkpoints.stores import DirectoryCheckpointStore, store_errors
from trainctl.base.filesystem.files import is_inside, list_names, remove_tree
from trainctl.base.listing import CHUNK_BYTES, ListedFile
from trainctl.base.protocol import training as protocol
from trainctl.base.protocol.runs import RemoveResponse
from trainctl.errors import NodeError, SourceMismatch, UnknownOnNode
from trainctl.node.checkpoints.monitor import SavedCheckpoint, list_saved
from trainctl.node.checkpoints.uploader import open_store_for
from trainctl.node.checkpoints.uploader_process import upload_remaining
from trainctl.node.runs.record import NodeRun, upload_status
from trainctl.node.system import layout
from trainctl.node.system.layout import Layout

Emit = Callable[[Dict[str, Any]], None]


def checkpoints(request: protocol.CheckpointsRequest, emit: Emit) -> protocol.CheckpointsResponse:
    """List a run's complete checkpoints by manifest, and incomplete ones on this node."""
    data = layout.check_absolute(request["data"], "data")
    prefix, location = request["prefix"], request["place"]
    local = list_saved(
        data / "checkpoints" / RunCheckpoints(DirectoryCheckpointStore(data), prefix).prefix
    )
    complete: List[CheckpointManifest] = []
    if location is not None:
        complete = RunCheckpoints(open_store_for(location, data, {}), prefix).manifests()
        if location["url"] is None:
            complete = [manifest for manifest in complete if _is_unchanged(manifest, local)]
    run = NodeRun(Layout(request["root"]), request["key"])
    sync = upload_status(run.directory)
    complete_keys = {(manifest["rank"], manifest["name"]) for manifest in complete}
    pending = set(sync.get("pending") or ())
    is_local = location is None or location["url"] is None
    incomplete = [
        saved
        for saved in local
        if saved.key not in complete_keys and (saved.name in pending or not sync or is_local)
    ]
    status = run.status()
    if request["brief"]:
        complete = [{**manifest, "files": len(manifest["files"])} for manifest in complete]
    return {
        "complete": complete,
        "unfinished": [
            cast(
                "protocol.IncompleteCheckpoint",
                {**saved.row, "bytes": saved.bytes, "files": len(saved.files)},
            )
            for saved in incomplete
        ],
        "pending": sorted(pending),
        "live": bool(status and status["supervised"]),
    }


def checkpoint_listing(
    request: protocol.CheckpointListingRequest, emit: Emit
) -> protocol.CheckpointListingResponse:
    """Verify a complete checkpoint in a directory; list its files and manifest by key. Events: ``{done, total}``."""
    data = layout.check_absolute(request["data"], "data")
    store = open_store_for(request["place"] or {}, data, {})
    run = RunCheckpoints(store, request["prefix"])
    key = run.manifest_key(request["rank"], request["name"])
    manifest = run.manifest(request["rank"], request["name"])
    if manifest is None or not isinstance(store, DirectoryCheckpointStore):
        raise UnknownOnNode(f"{key!r} no longer exists")
    digests = {file["key"]: file["sha256"] for file in manifest["files"]}
    files: List[ListedFile] = []
    done, reported = 0, 0.0
    for path in sorted({*digests, key}):
        whole, chunks, size = hashlib.sha256(), [], 0
        with store.open(path) as stream:
            while block := stream.read(CHUNK_BYTES):
                whole.update(block)
                chunks.append(hashlib.sha256(block).hexdigest())
                size += len(block)
                done += len(block)
                if time.monotonic() - reported >= 1:
                    reported = time.monotonic()
                    emit({"done": min(done, manifest["bytes"]), "total": manifest["bytes"]})
        sha256 = whole.hexdigest()
        files.append(ListedFile(path, size, sha256, chunks if len(chunks) > 1 else ()))
        if digests.get(path, sha256) != sha256:
            raise SourceMismatch(f"{path!r} in the store is corrupt: digest mismatch")
    return {"directory": str(store.root), "files": [file.row for file in files]}


def read_objects(request: protocol.ReadObjectsRequest, write: Callable[[bytes], None]) -> None:
    """Write objects of a checkpoint store one after another, each from its ``offset``."""
    store = open_store_for(request["place"], layout.check_absolute(request["data"], "data"), {})
    prefix = RunCheckpoints(store, request["prefix"]).prefix
    for item in request["objects"]:
        if not item["key"].startswith(f"{prefix}/"):
            raise NodeError(f"object {item['key']!r} does not belong to run {prefix}")
        store.read(item["key"], item["offset"], write)


def upload_checkpoints(
    request: protocol.UploadCheckpointsRequest, emit: Emit
) -> protocol.UploadCheckpointsResponse:
    """Upload checkpoints that a finished run left on its node."""
    run = NodeRun(Layout(request["root"]), request["key"])
    data = layout.check_absolute(request["data"], "data")
    spec = run.spec
    with store_errors(spec["store"] if spec else {}):
        return {"sync": upload_remaining(run, request["secrets"], data)}


def remove_checkpoints(request: protocol.RemoveCheckpointsRequest, emit: Emit) -> RemoveResponse:
    """Delete a run's checkpoints, with directories that become empty."""
    data = layout.check_absolute(request["data"], "data")
    directory = layout.check_absolute(request["directory"], "directory")
    if not is_inside(directory, data) or directory == data:
        raise NodeError(f"{directory} is not a checkpoint directory below {data}")
    location = request["place"]
    if location and location["url"] is not None:
        RunCheckpoints(open_store_for(location, data, {}), request["prefix"]).remove_all()
    remove_tree(directory)
    for parent in directory.parents:
        if parent == data or list_names(parent):
            break
        with contextlib.suppress(FileNotFoundError):
            parent.rmdir()
    return {"removed": True}


def _is_unchanged(manifest: CheckpointManifest, local: List[SavedCheckpoint]) -> bool:
    """Check that a checkpoint stored in place still matches its manifest, apart from logs."""
    files = {(file["path"], file["size"], file["modified"]) for file in manifest["files"]}
    return any(
        {(file.path, file.size, file.modified) for file in saved.deciding} <= files
        and {path for path, *_ in files} <= {file.path for file in saved.files}
        for saved in local
        if saved.key == (manifest["rank"], manifest["name"])
    )
