"""RPC methods that start a run's supervisor."""

from __future__ import annotations

import signal
import time
from typing import Any, Callable, Dict

from trainctl.base.filesystem.files import read_json
from trainctl.base.protocol import WAITS_FOR_RESUME, WAITS_FOR_SECRETS
from trainctl.base.protocol.runs import RunReport, SetSecretsRequest, StartRequest, StartResponse
from trainctl.base.system.processes import is_alive
from trainctl.errors import LockHeld, UnknownOnNode
from trainctl.node.runs import record as runs
from trainctl.node.runs.record import NodeRun
from trainctl.node.supervision.run_methods import remove_containers, status_of
from trainctl.node.supervision.supervisor import LaunchRequest, spawn
from trainctl.node.system import layout as names
from trainctl.node.system.host import send_signal
from trainctl.node.system.layout import Layout

Emit = Callable[[Dict[str, Any]], None]
_END_SECONDS = 30.0
_POLL_SECONDS = 0.05


def start(request: StartRequest, emit: Emit) -> StartResponse:
    """Start the run unless it was started; its status once it runs, waits or ended.

    For rank 0 of a gang also ``rendezvous``, which the start of the other ranks needs.
    """
    spec = request["run"]
    run = NodeRun(Layout(request["root"], spec.get("cache")), spec["key"])
    remove_containers(run.layout)
    # the supervisor of an older attempt writes no record any more
    holder = run.supervisor if run.create(spec) else None
    deadline = time.monotonic() + _END_SECONDS
    while holder is not None and is_alive(holder):
        send_signal([int(holder["pid"])], signal.SIGTERM)
        if time.monotonic() > deadline:
            raise LockHeld(f"the supervisor of an older attempt at run {run.key} did not stop")
        time.sleep(_POLL_SECONDS)
    status = run.status()
    if status is None or runs.may_restart(status):
        data = names.check_absolute(request["data"], "data")
        spawn(LaunchRequest(run, spec, request["secrets"], data, request.get("rendezvous")), emit)
    rendezvous: Any = read_json(run.gang)
    return {**status_of(run), "rendezvous": rendezvous}


def set_secrets(request: SetSecretsRequest, emit: Emit) -> RunReport:
    """Restart a run that waits for secrets, with given or stored ones."""
    key = request["key"]
    spec = NodeRun(Layout(request["root"]), key).spec
    if spec is None:
        raise UnknownOnNode(f"run {key} not found on the node")
    run = NodeRun(Layout(request["root"], spec.get("cache")), key)
    secrets, waiting_for = request["secrets"], status_of(run)["waiting"]
    if secrets is None and waiting_for == WAITS_FOR_RESUME:
        secrets = run.stored_secrets or {}  # it may need none
    if secrets is not None and waiting_for in (WAITS_FOR_SECRETS, WAITS_FOR_RESUME):
        data = names.check_absolute(request["data"], "data")
        spawn(LaunchRequest(run, spec, secrets, data), emit)
    return status_of(run)
