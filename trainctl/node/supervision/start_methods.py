"""Verbs that start a run's supervisor: start, give_secrets."""

from __future__ import annotations

import signal
import time
from typing import Any, Callable, Dict

from trainctl.base.failure import Failure
from trainctl.base.filesystem.files import read_json
from trainctl.base.protocol import WAITS_FOR_RESUME, WAITS_FOR_SECRETS
from trainctl.base.protocol.runs import RunReport, SetSecretsRequest, StartRequest, StartResponse
from trainctl.base.system.processes import is_alive
from trainctl.node.runs import record as runs
from trainctl.node.runs.record import NodeRun
from trainctl.node.supervision.run_methods import status_of
from trainctl.node.supervision.supervisor import LaunchRequest, spawn
from trainctl.node.system import layout as names
from trainctl.node.system.layout import Layout
from trainctl.node.system.process_tree import send_signal

Emit = Callable[[Dict[str, Any]], None]
_END_SECONDS = 30.0
_POLL_SECONDS = 0.05


def start(request: StartRequest, emit: Emit) -> StartResponse:
    """Start the run unless it was started before; its status once it runs, waits or has ended.

    Of rank 0 of a gang also ``rendezvous``, with which the other ranks have to be started.
    """
    spec = request["run"]
    run = NodeRun(Layout(request["root"], spec.get("cache")), spec["key"])
    if run.create(spec):
        _stop_older_supervisor(run)
    now = run.status()
    if now is None or runs.may_restart(now):
        data = names.check_absolute(request["data"], "data")
        order = LaunchRequest(run, spec, request["secrets"], data, request.get("rendezvous"))
        spawn(order, lambda: emit({"waiting": run.record.get("waiting")}))
    rendezvous: Any = read_json(run.gang)
    return {**status_of(run), "rendezvous": rendezvous}


def set_secrets(request: SetSecretsRequest, emit: Emit) -> RunReport:
    """Restart a run that waits for secrets, with those given or stored here; the status of any other run is unchanged."""
    found = NodeRun(Layout(request["root"]), request["key"])
    spec = found.spec
    if spec is None:
        raise Failure("missing", f"the node knows no run {found.key}")
    run = NodeRun(Layout(request["root"], spec.get("cache")), found.key)
    given = request["secrets"]
    secrets = run.kept_secrets if given is None else given
    waiting_for = status_of(run)["waiting"]
    if secrets is not None and waiting_for in (WAITS_FOR_SECRETS, WAITS_FOR_RESUME):
        data = names.check_absolute(request["data"], "data")
        order = LaunchRequest(run, spec, secrets, data)
        spawn(order, lambda: emit({"waiting": run.record.get("waiting")}))
    return status_of(run)


def _stop_older_supervisor(run: NodeRun) -> None:
    """Have the supervisor of an older attempt end; it writes nothing any more."""
    holder = run.supervisor
    deadline = time.monotonic() + _END_SECONDS
    while holder is not None and is_alive(holder):
        send_signal([int(holder["pid"])], signal.SIGTERM)
        if time.monotonic() > deadline:
            raise Failure("busy", f"an older attempt at run {run.key} does not end")
        time.sleep(_POLL_SECONDS)
