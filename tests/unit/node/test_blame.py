"""Telling a rank's own failure from the consequence of another's, by the last lines of its log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import cases
from trainctl.node.rendezvous.member import is_consequence
from trainctl.node.runs.record import NodeRun
from trainctl.node.system.layout import Layout


@pytest.mark.parametrize("case", cases("node/consequences"))
def test_broken_connections_and_collectives_are_consequences(case: Any) -> None:
    assert is_consequence(f"Traceback:\n{case['line']}\n") is case["consequence"]


def test_the_end_of_a_log_is_read_whatever_bytes_are_in_it(tmp_path: Path) -> None:
    run = NodeRun(Layout(str(tmp_path)), "run-1")
    log = run.log(0)
    log.parent.mkdir(parents=True)
    log.write_bytes(b"Connection refused\n" + b"\xff" * 100_000 + b"\nAssertionError\n")
    assert run.tail(0).endswith("\nAssertionError\n")
    assert len(run.tail(0)) < 20_000
    assert run.tail(1) == ""
