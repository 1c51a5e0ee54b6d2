"""Checks of a host before a run: each finding, and none on a healthy host."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.cases import cases
from tests.support.machines.gpus import FakeNvidiaGpus
from tests.support.servers.buckets import free_port
from trainctl.base.protocol.host import PreflightPortsRequest, PreflightRequest
from trainctl.base.protocol.runs import RunGpus
from trainctl.errors import TrainctlError
from trainctl.node.supervision.preflight import (
    check_allocation,
    disk_findings,
    preflight,
    preflight_ports,
    probe_disk,
    xid_errors,
)
from trainctl.node.system.layout import Layout

MIB = 2**20
NO_GPUS: RunGpus = {"count": 0, "kind": "", "declared": None}
H100: RunGpus = {"count": 2, "kind": "H100", "declared": None}


def request(root: Path, gpus: RunGpus = NO_GPUS, **more: Any) -> PreflightRequest:
    usual: dict[str, Any] = {
        "root": str(root), "data": str(root), "key": "key", "gpus": gpus, "in_container": True, "listings": [],
        "probe_bytes": 64 * MIB, "checkpoint_bytes": 0, "ports": None,
    }  # fmt: skip
    return cast(PreflightRequest, {**usual, **more})


def ask(root: Path, gpus: RunGpus = NO_GPUS, **more: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", preflight(request(root, gpus, **more), lambda _: None))


def findings(response: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(row["check"], row["level"], row["summary"]) for row in response["findings"]]


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvidiaGpus:
    """Two H100 that are healthy, on a host whose kernel has logged nothing of them."""
    gpus = FakeNvidiaGpus.make(tmp_path / "tools", 2)
    monkeypatch.setenv("PATH", f"{gpus.tools}:{os.environ['PATH']}")
    return gpus


def test_a_healthy_host_has_no_findings(tmp_path: Path, gpus: FakeNvidiaGpus) -> None:
    before = sorted(tmp_path.rglob("*"))
    response = ask(tmp_path, H100, listings=["cold"])
    assert findings(response) == []
    assert (response["driver"], response["started"]) == ("550.54.15", False)
    assert abs(response["time"] - time.time()) < 5
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("case", cases("node/preflight"))
def test_problems_of_gpus_are_reported(tmp_path: Path, gpus: FakeNvidiaGpus, case: Any) -> None:
    """A job that names no GPUs runs without them."""
    if case.get("broken"):
        (gpus.tools / "nvidia-smi").write_text("#!/bin/sh\necho mismatch; exit 18\n")
    gpus.report_health(errors=case.get("errors", 0))
    gpus.compute_on(*(gpus.ids[number] for number in case.get("busy", [])))
    wanted: RunGpus = {"count": case["count"], "kind": case["kind"], "declared": None}

    texts = ["{} {}: {}".format(*row) for row in findings(ask(tmp_path, wanted))]

    assert texts == [text.replace("PID", f"PID {os.getpid()}") for text in case["findings"]]


def test_recent_hardware_xids_are_found(tmp_path: Path) -> None:
    now = int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6)
    lines = [
        f"4,1,{now - 90_000 * 10**6},-;NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.",
        f"4,2,{now},-;NVRM: Xid (PCI:0000:02:00): 31, pid=1, name=python",
        f"4,3,{now},-;NVRM: Xid (PCI:0000:03:00): 79, pid='<unknown>', GPU has fallen off the bus.",
        f"4,4,{now},-;NVRM: Xid (PCI:0000:03:00): 79, again",
        "4,5,0,-;usb 1-1: new device",
    ]
    log = tmp_path / "kmsg"
    log.write_text("\n".join(lines) + "\n")
    (finding,) = xid_errors(str(log))
    assert finding["level"] == "fault"
    assert finding["summary"].startswith("GPU at 0000:03:00 had Xid 79, ")
    assert [*xid_errors(str(tmp_path / "none"))] == []


def test_only_new_weights_are_probed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(f"{preflight.__module__}.probe_disk", lambda _, size: sizes.append(size))
    marker = Layout(str(tmp_path)).completion_marker("warm")
    marker.parent.mkdir(parents=True)
    marker.write_text("{}")
    ask(tmp_path, listings=["warm"])
    ask(tmp_path, listings=[])
    assert sizes == []
    ask(tmp_path, listings=["warm", "cold"], probe_bytes=3 * MIB)
    assert sizes == [3 * MIB]


def test_a_disk_that_cannot_be_written_or_is_full_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fails)
    finding = probe_disk(tmp_path, MIB)
    assert finding is not None
    assert (finding["level"], finding["summary"]) == (
        "fault",
        f"cannot write to {tmp_path}: Input/output error",
    )
    assert [*tmp_path.iterdir()] == []
    monkeypatch.setattr(f"{preflight.__module__}.free_space", lambda _: 12 * 10**6)
    layout = Layout(str(tmp_path))
    (full,) = disk_findings(request(tmp_path, listings=["cold"]), layout)
    assert (full["level"], full["summary"]) == ("error", f"12.0 MB free in {tmp_path}")
    (small,) = disk_findings(request(tmp_path, checkpoint_bytes=2**60), layout)
    assert small["level"] == "error"
    assert small["summary"].endswith("1152922 TB needed for checkpoints (volume_size_gib)")


def test_a_started_run_is_not_checked(tmp_path: Path, gpus: FakeNvidiaGpus) -> None:
    directory = tmp_path / "runs" / "key"
    directory.mkdir(parents=True)
    (directory / "spec.json").write_text(json.dumps({"key": "key"}))
    gpus.report_health(errors=2)
    response = ask(tmp_path, H100)
    assert (response["started"], response["findings"]) == (True, [])


def test_hosts_of_a_gang_reach_each_other() -> None:
    hosts = [{"addresses": ["127.0.0.1"], "port": free_port()} for _ in range(4)]

    def check(rank: int) -> dict[str, Any]:
        order = {"root": "/", "rank": rank, "token": "t", "hosts": hosts}
        response = preflight_ports(cast(PreflightPortsRequest, order), lambda _: None)
        return cast("dict[str, Any]", response)

    with ThreadPoolExecutor(len(hosts)) as pool:
        answers = list(pool.map(check, range(len(hosts))))

    assert [answer["unreached"] for answer in answers] == [[]] * 4
    assert [answer["mtu"] for answer in answers] == [65535] * 4  # IP_MAX_MTU


def test_only_granted_gpus_of_a_batch_systems_machine_are_checked(
    tmp_path: Path, gpus: FakeNvidiaGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    def error(wanted: RunGpus, granted: list[str]) -> str:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(granted))
        try:
            check_allocation(request(tmp_path, wanted, probe_bytes=0), "n1", granted)
        except TrainctlError as failure:
            return failure.summary
        return ""

    gpus.report_health(errors=2)
    big: RunGpus = {"count": 1, "kind": "BIG", "declared": None}
    assert error(big, ["1"]) == ""
    assert error(big, ["MIG-5f6c"]) == ""  # a part of a GPU, which nvidia-smi doesn't list
    assert error(big, ["0"]) == "node n1: GPU 0 has 2 uncorrectable ECC errors"
    (gpus.tools / "nvidia-smi").unlink()
    assert error(H100, ["1"]) == "node n1: 1 of 2 GPUs that the run needs were granted"
