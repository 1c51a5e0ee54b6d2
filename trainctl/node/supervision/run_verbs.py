"""Verbs about runs that are there: status, stop, remove. They load nothing that only a supervisor needs."""

from __future__ import annotations

import contextlib
import signal
import time
from typing import Any, Callable, Dict, Mapping, Optional

from trainctl.base.failure import Failure
from trainctl.base.files import (
    make_directory,
    names_in,
    remove_tree,
    unique,
    write_json,
)
from trainctl.base.processes import alive, descendants
from trainctl.base.protocol import runs as protocol
from trainctl.base.protocol.spec import RunSpec
from trainctl.base.protocol.verb import OfRun
from trainctl.node.cache.leases import Leases
from trainctl.node.containers import leftovers
from trainctl.node.runs import record as runs
from trainctl.node.runs.record import Run
from trainctl.node.system import layout as names
from trainctl.node.system.ending import kill_marked, send
from trainctl.node.system.layout import Layout, layout_of
from trainctl.node.turns.turn import waiting

Emit = Callable[[Dict[str, Any]], None]
_STOP_MARGIN_SECONDS = 30.0
_POLL_SECONDS = 0.05
_TELL_SECONDS = 1.0
_MARK_SECONDS = 86400.0


def status(request: protocol.StatusRequest, emit: Emit) -> protocol.Statuses:
    """The status of each run that is asked for; null for one that is not here."""
    layout = Layout(request["root"])
    return {"runs": {key: _told(Run(layout, key)) for key in request["keys"]}}


def reorder(request: protocol.ReorderRequest, emit: Emit) -> protocol.RunReport:
    """Give a run that may be waiting another priority, and its sweep another number of slots."""
    run = Run(Layout(request["root"]), request["key"])
    if run.spec is None:
        raise Failure("missing", f"the node knows no run {run.key}")
    run.reorder({"priority": request["priority"], "slots": request["slots"]})
    return status_of(run)


def past(request: OfRun, emit: Emit) -> protocol.Past:
    """The inputs of a run, for repeating it, and whether its code is still stored here."""
    layout = Layout(request["root"])
    spec = Run(layout, request["key"]).spec
    if spec is None:
        raise Failure("missing", f"the node knows no run {request['key']}")
    present = layout.archive(spec["code"]).is_file()
    return {"code": spec["code"], "code_present": present, "made_of": spec["made_of"]}


def stop(request: protocol.StopRequest, emit: Emit) -> protocol.RunReport:
    """End the run and see it end, saying each second how far that is. One that was never started can't be started afterwards."""
    run = Run(Layout(request["root"]), request["key"])
    spec = run.spec or _forbid_unknown(run)
    if spec is None:
        return {"key": run.key, "status": runs.LOST, "supervised": False}
    if request["grace_seconds"] is not None:
        write_json(run.directory / "stop.json", {"grace_seconds": request["grace_seconds"]})
    began = told = time.monotonic()
    grace, patience = run.grace_seconds(spec), _patience(run, spec)
    asked: Optional[Mapping[str, Any]] = None
    while time.monotonic() < began + patience:
        now = status_of(run)
        if time.monotonic() - told >= _TELL_SECONDS:
            told = time.monotonic()
            left = max(0, len(descendants(now["pid"])) - 1) if now["pid"] else 0
            emit({"seconds": round(told - began), "grace": grace, "processes": left})
        if now["status"] in runs.ENDED or now["status"] == runs.LOST:
            return now
        holder = run.supervisor
        if not now["supervised"]:
            _forbid(run)
        elif holder != asked and alive(holder):
            asked = holder
            send([int((holder or {})["pid"])], signal.SIGTERM)
        time.sleep(_POLL_SECONDS)
    raise Failure(
        "busy", f"run {run.key} did not end", f"Process {status_of(run)['pid']} is at it."
    )


def remove(request: protocol.RunInCache, emit: Emit) -> protocol.Removed:
    """Remove what an ended run left, but for its checkpoints, and its leases."""
    run = Run(Layout(request["root"]), request["key"])
    now = run.status()
    if now is not None and now["supervised"]:
        raise Failure("busy", f"run {run.key} is still live", "Stop it first.")
    if now is not None and runs.begins_anew(now) and not _forbid(run):
        raise Failure("busy", f"run {run.key} was started this very moment", "Stop it first.")
    spec = run.spec
    for layout in (layout_of(request), Layout(request["root"], spec["cache"] if spec else None)):
        Leases(layout).release(run.key)
    if now is None:
        return {"removed": False}  # a mark that forbids its start stays
    return {"removed": _remove(run)}


def release(request: protocol.RunInCache, emit: Emit) -> protocol.Released:
    """Drop the leases of a run that never came to be here; those of one that did end with it."""
    layout = layout_of(request)
    key = names.name(request["key"], "key")
    unstarted = Run(layout, key).spec is None
    if unstarted:
        Leases(layout).release(key)
    return {"released": unstarted}


def remove_old_marks(layout: Layout) -> None:
    """Remove old marks that forbid the start of unknown runs, and the dates of applies without runs."""
    dated = set(names_in(layout.applies))
    for name in names_in(layout.runs):
        run = Run(layout, name) if not name.startswith(".") else None
        spec = run.spec if run else None
        if run is not None and spec is None and run.record:
            with contextlib.suppress(FileNotFoundError):
                if time.time() - run.directory.stat().st_mtime > _MARK_SECONDS:
                    remove_tree(run.directory)
        elif spec is not None:
            dated.discard(spec["turn"]["apply"])
    for path in (layout.applies / name for name in dated):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > _MARK_SECONDS:
                path.unlink()


def _forbid_unknown(run: Run) -> Optional[RunSpec]:
    """Forbid the start of a run that is unknown here; its specification if it was started just now."""
    if run.layout.root.is_dir():  # a node that is gone stays gone
        make_directory(run.directory)
        _forbid(run)
    return run.spec


def _told(run: Run) -> Optional[protocol.RunReport]:
    """The run's status; of one that is pending with its place in the queue."""
    found = run.status()
    return {**found, "waiting": waiting(run, found)} if found else None


def status_of(run: Run) -> protocol.RunReport:
    """The run's status. Failure if it isn't here any more."""
    found = _told(run)
    if found is None:
        raise Failure("missing", f"run {run.key} was removed meanwhile")
    return found


def _patience(run: Run, spec: RunSpec) -> float:
    """How long a stop may take: the job's grace, then the upload of its last checkpoint."""
    grace = run.grace_seconds(spec)
    upload = float((spec.get("store") or {}).get("upload_timeout", 0.0)) if grace > 0 else 0.0
    return grace + upload + _STOP_MARGIN_SECONDS


def _forbid(run: Run) -> bool:
    """Decide, in a supervisor's stead, that the run never starts."""
    if not run.claim():
        return False
    run.discard_secrets()
    run.write({"status": runs.STOPPED, "ended_at": time.time()})
    return True


def _remove(run: Run) -> bool:
    """Take the directory out of sight first, so that half of a run is never seen."""
    leftovers.clean(run.directory)
    run.discard_secrets()
    doomed = run.layout.runs / unique(run.key)
    try:
        run.directory.replace(doomed)
    except FileNotFoundError:
        return False
    kill_marked(run.mark)
    remove_tree(doomed)
    return True
