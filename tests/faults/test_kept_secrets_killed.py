"""The supervisor of a run with a kept secret killed before its n-th effect: the run is done once, with its secret, and nothing of that stays.

The short form takes some of the effects; the long form takes every one.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.support.node_program.nodes import NodeHarness, all_text_below, wait_for
from tests.support.node_program.verb_forks import VerbForkServer
from tests.support.projects.project import processes

SECRET = "Hq7zL2mX9cE4-kept"
WANTS_SECRETS, WANTS_CARRYING_ON = (
    "waits for secrets",
    "waiting for apply or reconcile to resume it",
)
CREATED, LOST, COMPLETED = (f"TRAINING_JOB_{word}" for word in ("CREATED", "LOST", "COMPLETED"))


@pytest.mark.parametrize(
    "step", [pytest.param(9, id="short"), pytest.param(2, id="long", marks=pytest.mark.long)]
)
def test_a_supervisor_killed_at_every_point(
    tmp_path: Path, zygote: VerbForkServer, step: int
) -> None:
    """It waits for its secrets only if it was killed before they were kept, goes on with what is kept, or is LOST; its command is begun once at most."""
    waited = set()
    for lethal in itertools.count(1, step):
        base = tmp_path / str(lethal)
        base.mkdir()
        node = NodeHarness(base)
        waiting = started_and_killed(node, zygote, lethal)
        status = str(node.ended()["status"])

        begun = (base / "begun").read_text() if (base / "begun").exists() else ""
        assert status in (LOST, COMPLETED), lethal
        assert begun == f"{SECRET}\n" if status == COMPLETED else begun in ("", f"{SECRET}\n")
        assert SECRET.encode() not in all_text_below(node.root), lethal
        wait_for(lambda: processes(str(tmp_path)) == [zygote.pid])
        waited.add(waiting)
        if not (base / "killed").exists():
            break
    assert {WANTS_CARRYING_ON, None} <= waited <= {WANTS_SECRETS, WANTS_CARRYING_ON, None}
    assert step > 2 or WANTS_SECRETS in waited


def started_and_killed(node: NodeHarness, zygote: VerbForkServer, lethal: int) -> str | None:
    """Start a run whose supervisor dies, once more where it had not come to be, and have it go on if it can; what it waited for."""
    node.upload_code({"x": ""})
    spec = node.spec(
        f'echo "$TOKEN" >>{node.base}/begun', environment_variables={"TOKEN": {"secret": "corp"}}, persisted_secrets=["corp"]
    )  # fmt: skip
    request = node.start_request(spec, {"corp": SECRET})
    zygote.send("start", {"root": str(node.root), **request}, supervisor=lethal)
    zygote.answer()
    wait_for(lambda: not node.status()["supervised"])
    if node.status()["status"] == CREATED:
        node.call("start", request)
    waiting: str | None = node.status()["waiting"]
    if waiting is not None:
        given = {"corp": SECRET} if waiting == WANTS_SECRETS else None
        node.call("set_secrets", {"data": str(node.data), "key": "run-1", "secrets": given})
    return waiting
