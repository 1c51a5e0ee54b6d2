"""RPC methods on existing runs. Imports nothing that only a supervisor needs."""

from __future__ import annotations

import contextlib
import signal
import time
from typing import Any, Callable, Dict, Mapping, Optional, cast

from trainctl.base.filesystem.files import (
    list_names,
    make_directory,
    remove_tree,
    temporary_name,
)
from trainctl.base.protocol import runs as protocol
from trainctl.base.protocol.method import RunRequest
from trainctl.base.protocol.runs import RunInputs, RunSpec
from trainctl.base.system.processes import Process, descendants, is_alive, is_dead
from trainctl.errors import LockHeld, NodeError, UnknownOnNode
from trainctl.node.cache.holds import CacheHolds
from trainctl.node.containers import cleanup
from trainctl.node.metrics.progress import read_progress
from trainctl.node.runs import record as runs
from trainctl.node.runs.points import stored_results
from trainctl.node.runs.record import NodeRun, upload_seconds
from trainctl.node.scheduling.allocation import waiting_text
from trainctl.node.system import layout as names
from trainctl.node.system.host import kill_marked, send_signal
from trainctl.node.system.layout import Layout, layout_of

Emit = Callable[[Dict[str, Any]], None]
_STOP_MARGIN_SECONDS = 30.0  # containers are removed and files chowned after the grace period
_POLL_SECONDS = 0.05
_REPORT_SECONDS = 1.0
_MARK_MAX_AGE = 86400.0  # no start arrives later than that


def status(request: protocol.StatusRequest, emit: Emit) -> protocol.StatusResponse:
    """Report the status of each run; null if it doesn't exist here."""
    layout = Layout(request["root"])
    return {"runs": {key: _status_with_queue(NodeRun(layout, key)) for key in request["keys"]}}


def set_queue_order(request: protocol.SetQueueOrderRequest, emit: Emit) -> protocol.RunReport:
    """Change the priority of a pending run, and the slots of its sweep."""
    run = NodeRun(Layout(request["root"]), request["key"])
    if run.spec is None:
        raise UnknownOnNode(f"run {run.key} not found on the node")
    run.set_queue_order({"priority": request["priority"], "slots": request["slots"]})
    return status_of(run)


def extend_session(
    request: protocol.ExtendSessionRequest, emit: Emit
) -> protocol.ExtendSessionResponse:
    """Extend the session of a live run."""
    run = NodeRun(Layout(request["root"]), request["key"])
    report, spec = status_of(run), run.spec
    if spec is None or not spec["job"].get("interactive_session"):
        raise NodeError(f"run {run.key} has no interactive session", "Set interactive_session.")
    if not report["supervised"]:
        raise UnknownOnNode(f"run {run.key} has ended", "Start a new run: trainctl run.")
    run.extend_session(request["seconds"])
    session = report["session"]
    return {"until": session["until"] + request["seconds"] if session else None}


def get_run_inputs(request: RunRequest, emit: Emit) -> protocol.RunInputsResponse:
    """Return a run's inputs, for repeating it, and whether its code is still stored."""
    layout = Layout(request["root"])
    spec = NodeRun(layout, request["key"]).spec
    if spec is None:
        raise UnknownOnNode(f"run {request['key']} not found on the node")
    present = layout.archive(spec["code"]).is_file()
    return {"code": spec["code"], "code_present": present, "run_inputs": _inputs(spec)}


def _inputs(spec: RunSpec) -> RunInputs:
    return {"attributes": spec["job"], "listings": spec["listings"]}


def find_run(request: protocol.FindRunRequest, emit: Emit) -> protocol.FindRunResponse:
    """Find a run by its ID or key, for importing it into a state."""
    for run, spec in runs.list_specs(Layout(request["root"])):
        if request["id"] in (spec["id"], spec["key"]):
            found = runs.part_of(spec, protocol.FoundRun)
            found.update(created_at=status_of(run)["created_at"], run_inputs=_inputs(spec))
            return {"run": cast("protocol.FoundRun", found)}
    return {"run": None}


def stop(request: protocol.StopRequest, emit: Emit) -> protocol.RunReport:
    """Stop a run and wait for its end, with an event each second."""
    run = NodeRun(Layout(request["root"]), request["key"])
    remove_containers(run.layout)
    spec = run.spec
    if spec is None and run.layout.root.is_dir():  # don't recreate a destroyed node
        make_directory(run.directory)
        _forbid_start(run)
        spec = run.spec  # it may have just been started
    if spec is None:
        return {"key": run.key, "status": runs.LOST, "supervised": False}
    if request["grace_seconds"] is not None:
        run.request_stop(grace_seconds=request["grace_seconds"])
    start = reported_at = time.monotonic()
    grace = run.grace_seconds(spec)
    # the last checkpoint is uploaded after a stop that has time
    timeout = grace + (upload_seconds(spec) if grace > 0 else 0.0) + _STOP_MARGIN_SECONDS
    signalled: Optional[Mapping[str, Any]] = None
    while time.monotonic() < start + timeout:
        status = status_of(run)
        if time.monotonic() - reported_at >= _REPORT_SECONDS:
            reported_at = time.monotonic()
            count = max(0, len(descendants(status["pid"])) - 1) if status["pid"] else 0
            emit({"seconds": round(reported_at - start), "grace": grace, "processes": count})
        if status["status"] in runs.ENDED or status["status"] == runs.LOST:
            return status
        holder = run.supervisor
        if not status["supervised"]:
            _forbid_start(run)
        elif holder != signalled and is_alive(holder):
            signalled = holder
            send_signal([int((holder or {})["pid"])], signal.SIGTERM)
        time.sleep(_POLL_SECONDS)
    pid = status_of(run)["pid"]
    raise LockHeld(
        f"run {run.key} did not stop: PID {pid} is still running",
        "Retry with a longer --grace.",
    )


def remove_containers(layout: Layout) -> None:
    """Remove the containers that ended runs left on this host."""
    for path in layout.runs.glob("*/container.json"):
        holder = NodeRun(layout, path.parent.name).supervisor
        if holder is not None and is_dead(Process(**holder)):
            cleanup.remove_container(path.parent)


def remove(request: protocol.RunCacheRequest, emit: Emit) -> protocol.RemoveResponse:
    """Remove an ended run except for its checkpoints, and its holds."""
    run = NodeRun(Layout(request["root"]), request["key"])
    status = run.status()
    spec = run.spec
    is_batch = spec is not None and spec.get("batch") is not None  # the client asks the scheduler
    if status is not None and status["supervised"] and not is_batch:
        raise LockHeld(f"run {run.key} is live", "Stop it first.")
    if status is not None and runs.may_restart(status) and not _forbid_start(run):
        raise LockHeld(f"run {run.key} has just been started", "Stop it first.")
    for layout in (layout_of(request), Layout(request["root"], spec["cache"] if spec else None)):
        CacheHolds(layout).release(run.key)
    if status is None:
        return {"removed": False}  # keep a record that prevents its start
    cleanup.remove_container(run.directory)
    run.discard_secrets()
    # rename the directory first, so that no partial run is visible
    pending_removal = run.layout.runs / temporary_name(run.key)
    try:
        run.directory.replace(pending_removal)
    except FileNotFoundError:
        return {"removed": False}
    kill_marked(run.mark)
    remove_tree(pending_removal)
    return {"removed": True}


def release(request: protocol.RunCacheRequest, emit: Emit) -> protocol.ReleaseResponse:
    """Release the holds of a run that was never created here."""
    layout = layout_of(request)
    key = names.check_name(request["key"], "key")
    unstarted = NodeRun(layout, key).spec is None
    if unstarted:
        CacheHolds(layout).release(key)
    return {"released": unstarted}


def remove_old_marks(layout: Layout) -> None:
    """Remove old records of unknown runs, and dates of applies without runs."""
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


def _status_with_queue(run: NodeRun) -> Optional[protocol.RunReport]:
    """Status of a run; of a pending one with its place in the queue."""
    status = run.status()
    if status is None:
        return None
    is_live = status["status"] not in runs.ENDED
    progress = read_progress(run, status.get("started_at"), is_live=is_live)
    if is_live:
        status["results"] = stored_results(run)
    return {**status, "waiting": waiting_text(run, status), "progress": progress}


def status_of(run: NodeRun) -> protocol.RunReport:
    """Status of a run; TrainctlError if it doesn't exist any more."""
    status = _status_with_queue(run)
    if status is None:
        raise UnknownOnNode(f"run {run.key} was removed meanwhile")
    return status


def _forbid_start(run: NodeRun) -> bool:
    """Claim a run like a supervisor and mark it stopped; False if it can't be claimed."""
    if not run.claim():
        return False
    run.discard_secrets()
    run.write({"status": runs.STOPPED, "ended_at": time.time()})
    return True
