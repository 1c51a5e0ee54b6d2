"""Whoever starts a run's supervisor is let go when there is something to tell."""

from __future__ import annotations

import os
import time

import pytest

from tests.support.node_program.nodes import NodeHarness, run_spec
from trainctl.node.runs.record import NodeRun
from trainctl.node.supervision import supervisor
from trainctl.node.system.layout import Layout


def test_a_supervisor_that_takes_time_to_die_is_dead_for_whoever_started_it(
    node: NodeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed, it closes its files before it is gone: asked in between, the run would seem to go on."""
    spec = run_spec()
    run = NodeRun(Layout(str(node.root)), spec["key"])
    run.create(spec)

    def die_slowly(self: object) -> None:
        run.claim()
        os.closerange(3, 64)
        time.sleep(0.5)

    monkeypatch.setattr(supervisor._Supervisor, "run", die_slowly)
    supervisor.spawn(supervisor.LaunchRequest(run, spec, {}, node.data), lambda: None)

    status = run.status()
    assert status is not None
    assert not status["supervised"]
