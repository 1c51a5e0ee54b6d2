"""The supervisor killed before its n-th effect, from its claim of a run to the run's end: checkpoints are whole or not listed, and no process is left.

The short form takes some of the effects; the long form takes every third.
"""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_program.nodes import NodeHarness, wait_for
from tests.support.node_program.saved_runs import PREFIX, restored
from tests.support.node_program.verb_forks import VerbForkServer
from tests.support.projects.project import processes
from trainctl.base.checkpoints.manifests import COMPLETE
from trainctl.base.checkpoints.stores import DirectoryCheckpointStore
from trainctl.base.filesystem.files import is_temporary
from trainctl.base.system.processes import parent_of

SAVED = {
    name: {"model.bin": f"{name}\n".encode(), "deep/state": b"state\n"}
    for name in ("checkpoint-1", "checkpoint-2")
}
SAVE = "mkdir -p {0}/deep; echo {0} >{0}/model.bin; echo state >{0}/deep/state"
CREATED, LOST, COMPLETED = (f"TRAINING_JOB_{word}" for word in ("CREATED", "LOST", "COMPLETED"))


@pytest.mark.parametrize(
    "step", [pytest.param(40, id="short"), pytest.param(3, id="long", marks=pytest.mark.long)]
)
def test_a_supervisor_killed_at_every_point(
    tmp_path: Path, zygote: VerbForkServer, step: int
) -> None:
    """The run completes, started once more if none of its commands was begun, or is LOST; ``upload_checkpoints`` then brings what is whole, and nothing else stays."""
    ends = set()
    for lethal in itertools.count(1, step):
        base = tmp_path / str(lethal)
        base.mkdir()
        node = NodeHarness(base)
        status = started_and_killed(node, zygote, lethal)
        request = {"data": str(node.data), "key": "run-1", "secrets": {}}
        node.call("upload_checkpoints", request)
        store = DirectoryCheckpointStore(node.base / "store")
        whole = restored(store)

        assert status in (LOST, COMPLETED), lethal
        assert whole.items() <= SAVED.items(), lethal
        assert status == LOST or whole == SAVED, lethal
        assert not unnamed(store), lethal
        left = [path for path in node.base.glob("store/**/*") if is_temporary(path.name)]
        assert not left, lethal
        wait_for(lambda: all(parent_of(pid) == os.getpid() for pid in processes(str(tmp_path))))
        ends.add((status, len(whole)))
        if not (node.base / "killed").exists():
            break
    assert (COMPLETED, 2) in ends
    assert step > 3 or LOST in {status for status, _ in ends}


def started_and_killed(node: NodeHarness, zygote: VerbForkServer, lethal: int) -> str:
    """Start a run whose supervisor dies, and once more what was not begun, as the next apply would; how it ended."""
    node.upload_code({"x": ""})
    place = {"url": f"file://{node.base}/store", "prefix": PREFIX}
    store = {**place, "debounce_seconds": 0}
    environment = {"BT_CHECKPOINT_DIR": f"{node.data}/checkpoints/{PREFIX}/rank-0"}
    commands = ["cd $BT_CHECKPOINT_DIR", *map(SAVE.format, SAVED), "sleep 0.3"]
    spec = node.spec(
        *commands,
        project="demo",
        store=store,
        environment=environment,
        checkpointing_config={"enabled": True},
    )
    request = node.start_request(spec)
    zygote.send("start", {"root": str(node.root), **request}, supervisor=lethal)
    zygote.answer()
    wait_for(lambda: not node.status()["supervised"])
    if node.status()["status"] == CREATED:
        node.call("start", request)
    return str(node.ended()["status"])


def unnamed(store: DirectoryCheckpointStore) -> set[str]:
    """Objects in a store that nothing names."""
    manifests = [item.key for item in store.list(f"{PREFIX}/{COMPLETE}/")]
    documents: list[dict[str, Any]] = [json.loads(store.get(key) or b"") for key in manifests]
    named = {file["key"] for document in documents for file in document["files"]}
    return {item.key for item in store.list("")} - named - {*manifests, f"{PREFIX}/run.json"}
