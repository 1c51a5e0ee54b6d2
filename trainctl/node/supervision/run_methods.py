"""Verbs about runs that are there: status, stop, remove. They load nothing that only a supervisor needs."""

from __future__ import annotations

import contextlib
import signal
import time
from typing import Any, Callable, Dict, Mapping, Optional

from trainctl.base.failure import Failure
from trainctl.base.filesystem.files import (
    list_names,
    make_directory,
    remove_tree,
    temporary_name,
    write_json,
)
from trainctl.base.protocol import runs as protocol
from trainctl.base.protocol.method import RunRequest
from trainctl.base.protocol.spec import RunSpec
from trainctl.base.system.processes import descendants, is_alive
from trainctl.node.cache.leases import CacheLeases
from trainctl.node.containers import cleanup
from trainctl.node.runs import record as runs
from trainctl.node.runs.record import NodeRun
from trainctl.node.scheduling.allocation import waiting_text
from trainctl.node.system import layout as names
from trainctl.node.system.layout import Layout, layout_of
from trainctl.node.system.process_tree import kill_marked, send_signal

Emit = Callable[[Dict[str, Any]], None]
_STOP_MARGIN_SECONDS = 30.0
_POLL_SECONDS = 0.05
_REPORT_SECONDS = 1.0
_MARK_MAX_AGE = 86400.0


def status(request: protocol.StatusRequest, emit: Emit) -> protocol.StatusResponse:
    """The status of each run that is asked for; null for one that is not here."""
    layout = Layout(request["root"])
    return {"runs": {key: _status_with_queue(NodeRun(layout, key)) for key in request["keys"]}}


def set_queue_order(request: protocol.SetQueueOrderRequest, emit: Emit) -> protocol.RunReport:
    """Give a run that may be waiting another priority, and its sweep another number of slots."""
    run = NodeRun(Layout(request["root"]), request["key"])
    if run.spec is None:
        raise Failure("missing", f"the node knows no run {run.key}")
    run.set_queue_order({"priority": request["priority"], "slots": request["slots"]})
    return status_of(run)


def get_run_inputs(request: RunRequest, emit: Emit) -> protocol.RunInputsResponse:
    """The inputs of a run, for repeating it, and whether its code is still stored here."""
    layout = Layout(request["root"])
    spec = NodeRun(layout, request["key"]).spec
    if spec is None:
        raise Failure("missing", f"the node knows no run {request['key']}")
    present = layout.archive(spec["code"]).is_file()
    return {"code": spec["code"], "code_present": present, "run_inputs": spec["run_inputs"]}


def stop(request: protocol.StopRequest, emit: Emit) -> protocol.RunReport:
    """End the run and see it end, saying each second how far that is. One that was never started can't be started afterwards."""
    run = NodeRun(Layout(request["root"]), request["key"])
    spec = run.spec or _forbid_unknown(run)
    if spec is None:
        return {"key": run.key, "status": runs.LOST, "supervised": False}
    if request["grace_seconds"] is not None:
        write_json(run.directory / "stop.json", {"grace_seconds": request["grace_seconds"]})
    began = told = time.monotonic()
    grace, patience = run.grace_seconds(spec), _stop_timeout(run, spec)
    asked: Optional[Mapping[str, Any]] = None
    while time.monotonic() < began + patience:
        now = status_of(run)
        if time.monotonic() - told >= _REPORT_SECONDS:
            told = time.monotonic()
            left = max(0, len(descendants(now["pid"])) - 1) if now["pid"] else 0
            emit({"seconds": round(told - began), "grace": grace, "processes": left})
        if now["status"] in runs.ENDED or now["status"] == runs.LOST:
            return now
        holder = run.supervisor
        if not now["supervised"]:
            _forbid_start(run)
        elif holder != asked and is_alive(holder):
            asked = holder
            send_signal([int((holder or {})["pid"])], signal.SIGTERM)
        time.sleep(_POLL_SECONDS)
    raise Failure(
        "busy", f"run {run.key} did not end", f"Process {status_of(run)['pid']} is at it."
    )


def remove(request: protocol.RunCacheRequest, emit: Emit) -> protocol.RemoveResponse:
    """Remove what an ended run left, but for its checkpoints, and its leases."""
    run = NodeRun(Layout(request["root"]), request["key"])
    now = run.status()
    if now is not None and now["supervised"]:
        raise Failure("busy", f"run {run.key} is still live", "Stop it first.")
    if now is not None and runs.may_restart(now) and not _forbid_start(run):
        raise Failure("busy", f"run {run.key} was started this very moment", "Stop it first.")
    spec = run.spec
    for layout in (layout_of(request), Layout(request["root"], spec["cache"] if spec else None)):
        CacheLeases(layout).release(run.key)
    if now is None:
        return {"removed": False}  # a mark that forbids its start stays
    return {"removed": _remove(run)}


def release(request: protocol.RunCacheRequest, emit: Emit) -> protocol.ReleaseResponse:
    """Drop the leases of a run that never came to be here; those of one that did end with it."""
    layout = layout_of(request)
    key = names.check_name(request["key"], "key")
    unstarted = NodeRun(layout, key).spec is None
    if unstarted:
        CacheLeases(layout).release(key)
    return {"released": unstarted}


def remove_old_marks(layout: Layout) -> None:
    """Remove old marks that forbid the start of unknown runs, and the dates of applies without runs."""
    dated = set(list_names(layout.applies))
    for name in list_names(layout.runs):
        run = NodeRun(layout, name) if not name.startswith(".") else None
        spec = run.spec if run else None
        if run is not None and spec is None and run.record:
            with contextlib.suppress(FileNotFoundError):
                if time.time() - run.directory.stat().st_mtime > _MARK_MAX_AGE:
                    remove_tree(run.directory)
        elif spec is not None:
            dated.discard(spec["turn"]["apply"])
    for path in (layout.applies / name for name in dated):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > _MARK_MAX_AGE:
                path.unlink()


def _forbid_unknown(run: NodeRun) -> Optional[RunSpec]:
    """Forbid the start of a run that is unknown here; its specification if it was started just now."""
    if run.layout.root.is_dir():  # a node that is gone stays gone
        make_directory(run.directory)
        _forbid_start(run)
    return run.spec


def _status_with_queue(run: NodeRun) -> Optional[protocol.RunReport]:
    """The run's status; of one that is pending with its place in the queue."""
    found = run.status()
    return {**found, "waiting": waiting_text(run, found)} if found else None


def status_of(run: NodeRun) -> protocol.RunReport:
    """The run's status. Failure if it isn't here any more."""
    found = _status_with_queue(run)
    if found is None:
        raise Failure("missing", f"run {run.key} was removed meanwhile")
    return found


def _stop_timeout(run: NodeRun, spec: RunSpec) -> float:
    """How long a stop may take: the job's grace, then the upload of its last checkpoint."""
    grace = run.grace_seconds(spec)
    upload = float((spec.get("store") or {}).get("upload_timeout", 0.0)) if grace > 0 else 0.0
    return grace + upload + _STOP_MARGIN_SECONDS


def _forbid_start(run: NodeRun) -> bool:
    """Decide, in a supervisor's stead, that the run never starts."""
    if not run.claim():
        return False
    run.discard_secrets()
    run.write({"status": runs.STOPPED, "ended_at": time.time()})
    return True


def _remove(run: NodeRun) -> bool:
    """Take the directory out of sight first, so that half of a run is never seen."""
    cleanup.remove_container(run.directory)
    run.discard_secrets()
    pending_removal = run.layout.runs / temporary_name(run.key)
    try:
        run.directory.replace(pending_removal)
    except FileNotFoundError:
        return False
    kill_marked(run.mark)
    remove_tree(pending_removal)
    return True
