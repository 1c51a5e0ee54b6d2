"""Verbs that start a run's supervisor: start, give_secrets."""

from __future__ import annotations

import signal
import time
from typing import Any, Callable, Dict

from trainctl.base.failure import Failure
from trainctl.base.files import read_json
from trainctl.base.processes import alive
from trainctl.base.protocol import WANTS_CARRYING_ON, WANTS_SECRETS
from trainctl.base.protocol.runs import RunReport, SecretsRequest, Started, StartRequest
from trainctl.node.runs import record as runs
from trainctl.node.runs.record import Run
from trainctl.node.supervision.run_verbs import status_of
from trainctl.node.supervision.supervisor import LaunchRequest, spawn
from trainctl.node.system import layout as names
from trainctl.node.system.ending import send
from trainctl.node.system.layout import Layout

Emit = Callable[[Dict[str, Any]], None]
_END_SECONDS = 30.0
_POLL_SECONDS = 0.05


def start(request: StartRequest, emit: Emit) -> Started:
    """Start the run unless it was started before; its status once it runs, waits or has ended.

    Of rank 0 of a gang also ``meeting``, with which the other ranks have to be started.
    """
    spec = request["run"]
    run = Run(Layout(request["root"], spec.get("cache")), spec["key"])
    if run.create(spec):
        _end_older(run)
    now = run.status()
    if now is None or runs.begins_anew(now):
        data = names.absolute(request["data"], "data")
        order = LaunchRequest(run, spec, request["secrets"], data, request.get("meeting"))
        spawn(order, lambda: emit({"waiting": run.record.get("waiting")}))
    meeting: Any = read_json(run.gang)
    return {**status_of(run), "meeting": meeting}


def give_secrets(request: SecretsRequest, emit: Emit) -> RunReport:
    """Restart a run that waits for secrets, with those given or stored here; the status of any other run is unchanged."""
    found = Run(Layout(request["root"]), request["key"])
    spec = found.spec
    if spec is None:
        raise Failure("missing", f"the node knows no run {found.key}")
    run = Run(Layout(request["root"], spec.get("cache")), found.key)
    given = request["secrets"]
    secrets = run.kept_secrets if given is None else given
    waiting_for = status_of(run)["waiting"]
    if secrets is not None and waiting_for in (WANTS_SECRETS, WANTS_CARRYING_ON):
        data = names.absolute(request["data"], "data")
        order = LaunchRequest(run, spec, secrets, data)
        spawn(order, lambda: emit({"waiting": run.record.get("waiting")}))
    return status_of(run)


def _end_older(run: Run) -> None:
    """Have the supervisor of an older attempt end; it writes nothing any more."""
    holder = run.supervisor
    deadline = time.monotonic() + _END_SECONDS
    while holder is not None and alive(holder):
        send([int(holder["pid"])], signal.SIGTERM)
        if time.monotonic() > deadline:
            raise Failure("busy", f"an older attempt at run {run.key} does not end")
        time.sleep(_POLL_SECONDS)
