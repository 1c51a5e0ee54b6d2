"""Where the kernel gives no private mounts: links inside the working directory, absolute mounts refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.node_program.nodes import DEFAULT_REQUESTS, NodeHarness, received_as
from trainctl.base.failure import Failure
from trainctl.node.cache.delivery import deliver
from trainctl.node.jobs import workspace
from trainctl.node.runs import mount
from trainctl.node.runs.record import NodeRun
from trainctl.node.system.layout import Layout


@pytest.fixture
def run(node: NodeHarness, monkeypatch: pytest.MonkeyPatch) -> NodeRun:
    """A run on a node whose kernel allows nothing."""
    refused = mount.MountSupport(False, "Operation not permitted (unshare)")
    monkeypatch.setattr(workspace, "private_mounts", lambda within: refused)
    node.mirror.add("config.json", b"{}")
    node.upload_code({"train.py": ""})
    request, caller = received_as({"root": str(node.root), **node.delivery()})
    deliver(request, lambda event: None, caller)
    return NodeRun(Layout(str(node.root)), "run-1")


def _spec(node: NodeHarness, location: str) -> Any:
    weights = {"name": "w", "listing": node.mirror.listing.id, "mount_location": location}
    return node.spec("true", weights=[weights])


def test_a_relative_mount_is_a_link_into_the_tree(
    node: NodeHarness, run: NodeRun, tmp_path: Path
) -> None:
    """The job finds the files through a link, and the record says that it is advisory."""
    prepared = workspace.prepare_job(run, _spec(node, "weights/w"), tmp_path / "data")

    assert (prepared.mount, prepared.weights_mode, prepared.mounts) == ("link", "advisory", ())
    assert (run.work / "weights" / "w").readlink() == node.tree


def test_an_absolute_mount_is_refused_with_the_reason(
    node: NodeHarness, run: NodeRun, tmp_path: Path
) -> None:
    """Nothing is made at a shared path; the error says why and what to write."""
    with pytest.raises(Failure) as raised:
        workspace.prepare_job(run, _spec(node, "/app/models/x"), tmp_path / "data")

    assert "/app/models/x" in raised.value.summary
    assert "Operation not permitted" in raised.value.detail


@pytest.mark.parametrize("location", ["../x", "a/../../x", "."])
def test_a_relative_mount_stays_inside(
    node: NodeHarness, run: NodeRun, tmp_path: Path, location: str
) -> None:
    """A relative location that leads out of the working directory is refused."""
    with pytest.raises(Failure):
        workspace.prepare_job(run, _spec(node, location), tmp_path / "data")


def test_facts_blocks_every_absolute_mount(
    monkeypatch: pytest.MonkeyPatch, node: NodeHarness
) -> None:
    """Where nothing can be mounted, the plan hears it of each mount."""
    from trainctl.node.supervision import inspection as facts

    refused = mount.MountSupport(False, "Operation not permitted (unshare)")
    monkeypatch.setattr(facts, "private_mounts", lambda: refused)

    place = {"root": str(node.root), "data": str(node.data)}
    request: Any = {**place, **DEFAULT_REQUESTS["facts"], "mounts": ["/app/x"]}
    found = facts.facts(request, lambda event: None)

    assert found["mount"] == "link"
    assert "Operation not permitted" in found["blocked"][0]["why"]
