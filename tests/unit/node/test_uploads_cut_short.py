"""Uploads that were given up: what lies on the node is told, and so is why."""

from __future__ import annotations

import re

import pytest

from tests.support.node_program.nodes import NodeHarness, wait_for
from tests.support.node_program.saved_runs import PREFIX, SavedRun
from trainctl.node.runs.record import upload_status

pytestmark = pytest.mark.integration

SAVE = "mkdir -p {0}; head -c {1} /dev/zero >{0}/model.bin"
LARGE = 2**21


def test_what_a_stop_cuts_short_stays_listed(node: NodeHarness) -> None:
    """Also one that was saved while the one before it was uploaded; and the error says how long was waited."""
    go = node.base / "go"
    store = {"url": f"file://{node.base}/store", "prefix": PREFIX, "enabled": True}
    slowly = {**store, "debounce_seconds": 0, "max_rate": 1000, "upload_timeout": 3600}
    spec = node.spec(
        "cd $BT_CHECKPOINT_DIR",
        SAVE.format("checkpoint-5", LARGE),
        f"while [ ! -e {go} ]; do sleep 0.1; done",
        SAVE.format("checkpoint-10", LARGE),
        "echo saved; sleep 600",
        project="demo",
        store=slowly,
        environment={"BT_CHECKPOINT_DIR": str(node.data / "checkpoints" / PREFIX / "rank-0")},
    )
    node.start(spec)
    wait_for(lambda: list((node.base / "store").rglob(".model.bin.*")))
    go.touch()
    wait_for(lambda: "saved" in node.log())

    node.call("stop", {"key": "run-1", "grace_seconds": 0})
    request = {"data": str(node.data), "key": "run-1", "prefix": PREFIX, "place": store}
    told = node.call("checkpoints", request)

    assert {one["name"] for one in told["unfinished"]} == {"checkpoint-5", "checkpoint-10"}
    assert told["pending"] == ["checkpoint-10", "checkpoint-5"]
    waited = r"timed out after \d{2,3} s; `trainctl checkpoints upload` uploads the rest"
    assert re.fullmatch(waited, upload_status(node.directory())["error"] or "")


def test_what_a_store_that_does_not_answer_keeps_back_stays_listed(run: SavedRun) -> None:
    """Before anything could be looked at, and after that only what is not complete."""
    run.save("checkpoint-1", {"model.bin": b"1"})
    run.uploader().report_failure("nobody answers")
    first = upload_status(run.run.directory)
    run.finish()
    run.save("checkpoint-2", {"model.bin": b"2"})
    run.uploader().report_failure("nobody answers")

    assert first == {"state": "SYNCING", "error": "nobody answers", "pending": ["checkpoint-1"]}
    assert upload_status(run.run.directory)["pending"] == ["checkpoint-2"]
