"""Which nodes runs get, and how reports of preflight checks lead to warnings and quarantine."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trainctl.apply.step import ApplyStep
from trainctl.base.protocol.method import UntypedMethod
from trainctl.ledger.state import RecordedResource
from trainctl.model.address import Address
from trainctl.model.specs.job_spec import Compute, JobSpec
from trainctl.plan.placement import PlannedRun
from trainctl.plan.quarantine import QuarantineEntry
from trainctl.plugin_api.provider import Node
from trainctl.resources.agents import Agents
from trainctl.resources.placement import PreflightChecker, RunPlacer
from trainctl.store.store import MirrorStore

NODES = [Node("lab", f"gpu-{at}", "local", "/root", "/data", "python3") for at in range(3)]
GANG, SINGLE = Address.parse("job.gang"), Address.parse("job.single")
WANTED = {GANG: Compute(2, accelerator="H100:1"), SINGLE: Compute(accelerator="H100:2")}


def seating(*planned: str, busy: str = "") -> RunPlacer:
    """Of three hosts with two GPUs each, all free but those of one; the plan has the gang on some of them."""

    def call(
        node: Node, method: UntypedMethod, request: Mapping[str, Any], **_: Any
    ) -> dict[str, Any]:
        gpus = [{"name": "H100", "is": ["H100"], "free": node.id != busy}] * 2
        more = {"cpus": 8, "memory": 2**33, "cached": {"trees": [], "blobs": []}}
        return {"gpus": gpus, "live": [], "nodes": None, **more}

    agents = SimpleNamespace(
        of=lambda _, node: SimpleNamespace(call=lambda *a, **k: call(node, *a, **k))
    )
    runs = {
        GANG: PlannedRun(WANTED[GANG], frozenset(planned)),
        SINGLE: PlannedRun(WANTED[SINGLE], frozenset()),
    }
    return RunPlacer(cast(Agents, agents), cast(MirrorStore, None), runs)


def place_run(placer: RunPlacer, job: Address) -> list[str]:
    outputs = {"nodes": [node.to_json() for node in NODES]}
    cluster = RecordedResource(Address.parse("cluster.lab"), "ssh", {}, outputs)
    return [item.id for item in placer.place_run(cluster, job, f"key-{job.name}", WANTED[job], [])]


@pytest.mark.parametrize("order", [(GANG, SINGLE), (SINGLE, GANG)], ids=["first", "last"])
def test_whoever_is_ready_first_leaves_the_others_what_was_planned(
    order: tuple[Address, ...],
) -> None:
    """A job without weights is ready before those that have some: it doesn't take the nodes that the plan has them on."""
    created = seating("lab/gpu-0", "lab/gpu-1")
    runs = {job: place_run(created, job) for job in order}
    assert runs == {GANG: ["lab/gpu-0", "lab/gpu-1"], SINGLE: ["lab/gpu-2"]}


def test_a_node_that_is_taken_meanwhile_is_not_waited_for() -> None:
    """What the plan had is a preference among nodes that are free."""
    assert place_run(seating("lab/gpu-1", "lab/gpu-2"), GANG) == ["lab/gpu-1", "lab/gpu-2"]
    assert place_run(seating("lab/gpu-0", "lab/gpu-1", busy="lab/gpu-0"), GANG) == [
        "lab/gpu-1",
        "lab/gpu-2",
    ]


CLUSTER = Address.parse("cluster.lab")


CHECKED_NODES = [
    Node("lab", f"gpu-{at}", f"10.0.0.{at}", "/r", "/d", "python3", f"key-{at}") for at in range(3)
]


ECC = {"check": "ecc", "level": "fault", "summary": "GPU 3 is broken", "remedy": "Reset it."}


class Lab:
    """Three hosts; ``reports`` and ``unreached`` by node name."""

    def __init__(self, **quarantine: QuarantineEntry) -> None:
        self.reports: dict[str, dict[str, Any]] = {}
        self.unreached: dict[str, list[int]] = {}
        self.mtus: dict[str, int] = {}
        self.notes: list[str] = []
        self.quarantined: list[tuple[str, str]] = []
        self.called: list[str] = []
        named = {name.replace("_", "-"): entry.to_json() for name, entry in quarantine.items()}
        outputs = {"nodes": [node.to_json() for node in CHECKED_NODES], "quarantine": named}
        self.cluster = RecordedResource(CLUSTER, "ssh", {}, outputs)

    def _call(self, node: Node, method: UntypedMethod, request: Mapping[str, Any]) -> Any:
        self.called.append(method.name)
        if method.name == "preflight_ports":
            unreached = self.unreached.get(node.name, [])
            return {"unreached": unreached, "mtu": self.mtus.get(node.name, 1500), "problem": ""}
        healthy = {"time": time.time(), "started": False, "driver": "550", "findings": []}
        more = {"addresses": [node.address], "port": 29000}
        return {**healthy, **more, **self.reports.get(node.name, {})}

    def check(self) -> dict[str, str]:
        agents = SimpleNamespace(
            of=lambda _, node: SimpleNamespace(
                call=lambda method, request, timeout: self._call(node, method, request)
            )
        )
        job = JobSpec.from_attributes({"cluster": "lab", "compute": {"node_count": 3}})
        step = SimpleNamespace(job_spec=job, notify=self.notes.append)

        preflight = PreflightChecker(
            cast(Agents, agents), lambda _, *entry: self.quarantined.append(entry)
        )
        errors = preflight.check(cast(ApplyStep, step), "key", self.cluster, CHECKED_NODES, [])
        return {node: str(error) for node, error in errors.items()}


def test_healthy_nodes_pass_without_a_word() -> None:
    lab = Lab()
    assert (lab.check(), lab.notes, lab.quarantined) == ({}, [], [])
    assert sorted(lab.called) == ["preflight"] * 3 + ["preflight_ports"] * 3


def test_a_fault_is_an_error_and_quarantines() -> None:
    """With node, finding and remedy; connections wait for a choice of healthy nodes."""
    lab = Lab()
    lab.reports["gpu-1"] = {"findings": [ECC]}
    assert lab.check() == {
        "lab/gpu-1": "node lab/gpu-1: GPU 3 is broken\nReset it. To use the node again: trainctl nodes release lab/gpu-1."
    }
    assert lab.quarantined == [("lab/gpu-1", "GPU 3 is broken")]
    assert "preflight_ports" not in lab.called


def test_an_error_does_not_quarantine() -> None:
    """The disk may have space at the next apply."""
    lab = Lab()
    lab.reports["gpu-0"] = {"findings": [{**ECC, "level": "error"}]}
    assert [*lab.check()] == ["lab/gpu-0"]
    assert lab.quarantined == []


def test_a_fault_for_which_the_node_was_released_is_a_warning() -> None:
    """Whoever released it knew of it; another fault is one."""
    lab = Lab(gpu_0=QuarantineEntry("GPU 3 is broken", 1.0, "me", "key-0", 2.0))
    lab.reports["gpu-0"] = {"findings": [ECC]}
    assert lab.check() == {}
    assert lab.notes == ["warning: node lab/gpu-0: GPU 3 is broken. Reset it."]
    lab.reports["gpu-0"] = {"findings": [{**ECC, "summary": "GPU 4 is broken"}]}
    assert [*lab.check()] == ["lab/gpu-0"]


def test_differences_between_nodes_are_warnings() -> None:
    lab = Lab()
    lab.reports["gpu-1"] = {"time": time.time() - 95, "driver": "535"}
    lab.mtus["gpu-2"] = 9000
    assert lab.check() == {}
    assert [note.partition(". ")[0] for note in lab.notes] == [
        "warning: node lab/gpu-1: its clock is 95 s behind",
        "warning: node lab/gpu-1: its driver is 535, that of lab/gpu-0 550",
        "warning: node lab/gpu-2: its interface has MTU 9000, that of lab/gpu-0 1500",
    ]


def test_the_node_with_most_failed_connections_is_to_blame() -> None:
    lab = Lab()
    lab.unreached = {"gpu-0": [1], "gpu-1": [2], "gpu-2": [1]}
    errors = lab.check()
    assert [*errors] == ["lab/gpu-1"]
    assert errors["lab/gpu-1"].startswith(
        "node lab/gpu-1: lab/gpu-0 cannot connect to it at port 29000 (10.0.0.1)\nOpen all ports of lab/gpu-1"
    )


def test_a_started_run_is_left_alone() -> None:
    """Its nodes hold GPUs for it."""
    lab = Lab()
    lab.reports = {"gpu-0": {"started": True}, "gpu-1": {"findings": [ECC]}}
    assert (lab.check(), lab.quarantined) == ({}, [])
