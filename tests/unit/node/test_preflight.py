"""Checks of a host before a run: each finding, and none on a healthy host."""

from __future__ import annotations

import json
import os
import resource
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.machines.gpus import FakeNvidiaGpus
from trainctl.base.failure import Failure
from trainctl.base.protocol.preflight import PreflightPortsRequest, PreflightRequest
from trainctl.base.protocol.spec import RunGpus
from trainctl.node.supervision.preflight import check_allocation, preflight
from trainctl.node.system import gang_ports, health
from trainctl.node.system.gang_ports import free_port, preflight_ports
from trainctl.node.system.health import (
    clock_findings,
    disk_findings,
    limit_findings,
    probe_disk,
    xid_errors,
)
from trainctl.node.system.layout import Layout

MIB = 2**20
NO_GPUS: RunGpus = {"count": 0, "kind": "", "declared": None}
H100: RunGpus = {"count": 2, "kind": "H100", "declared": None}
ANY: RunGpus = {"count": None, "kind": "", "declared": None}


def ask(root: Path, gpus: RunGpus = NO_GPUS, **more: Any) -> dict[str, Any]:
    """The response of the method."""
    request: dict[str, Any] = {
        "root": str(root),
        "data": str(root),
        "key": "key",
        "gpus": gpus,
        "in_container": True,
        "listings": [],
        "probe_bytes": 64 * MIB,
        "checkpoint_bytes": 0,
        "ports": None,
        **more,
    }
    return cast("dict[str, Any]", preflight(cast(PreflightRequest, request), lambda _: None))


def found(response: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Check, level and summary of each finding."""
    return [(one["check"], one["level"], one["summary"]) for one in response["findings"]]


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvidiaGpus:
    """Two H100 that are healthy, on a host whose kernel has logged nothing of them."""
    made = FakeNvidiaGpus.make(tmp_path / "tools", 2)
    monkeypatch.setenv("PATH", f"{made.tools}:{os.environ['PATH']}")
    return made


def test_a_healthy_host_has_no_findings(tmp_path: Path, gpus: FakeNvidiaGpus) -> None:
    """The driver is reported, and nothing is left on the disk."""
    before = sorted(tmp_path.rglob("*"))
    response = ask(tmp_path, H100, listings=["cold"])
    assert found(response) == []
    assert (response["driver"], response["started"]) == ("550.54.15", False)
    assert abs(response["time"] - time.time()) < 5
    assert sorted(tmp_path.rglob("*")) == before


def test_missing_gpus_are_a_fault(tmp_path: Path, gpus: FakeNvidiaGpus) -> None:
    """Also if the kind differs; a job that takes all GPUs has no such need."""
    assert found(ask(tmp_path, {**H100, "count": 3})) == [
        ("gpus", "fault", "2 of 3 H100 GPUs that the run needs")
    ]
    assert found(ask(tmp_path, {**H100, "kind": "A100"})) == [
        ("gpus", "fault", "0 of 2 A100 GPUs that the run needs")
    ]
    assert found(ask(tmp_path, ANY)) == []


@pytest.mark.parametrize(("wanted", "level"), [(H100, "fault"), (ANY, "warning")])
def test_a_broken_driver_is_a_fault_if_gpus_are_needed(
    tmp_path: Path, gpus: FakeNvidiaGpus, wanted: RunGpus, level: str
) -> None:
    """A job without an accelerator runs without GPUs."""
    (gpus.tools / "nvidia-smi").write_text("#!/bin/sh\necho mismatch; exit 18\n")
    ((check, got, summary),) = found(ask(tmp_path, wanted))
    assert (check, got) == ("driver", level)
    assert "exit code 18: mismatch" in summary


def test_uncorrectable_errors_are_a_fault(tmp_path: Path, gpus: FakeNvidiaGpus) -> None:
    """Of the GPUs that the run may use."""
    gpus.report_health(errors=2)
    assert found(ask(tmp_path, H100)) == [("ecc", "fault", "GPU 0 has 2 uncorrectable ECC errors")]


def test_programs_on_the_gpus_are_a_warning_if_the_run_waits_for_them(
    tmp_path: Path, gpus: FakeNvidiaGpus
) -> None:
    """One free GPU is enough for a run that needs one."""
    gpus.compute_on(gpus.ids[0])
    summary = f"PID {os.getpid()} computes on GPU 0"
    assert found(ask(tmp_path, H100)) == [("processes", "warning", summary)]
    assert found(ask(tmp_path, {**H100, "count": 1})) == []


def test_recent_hardware_xids_are_found(tmp_path: Path) -> None:
    """Those of programs (13, 31) and old ones are not; each GPU once."""
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
    """As many bytes as they have; a warm start writes nothing."""
    sizes: list[int] = []
    monkeypatch.setattr(health, "probe_disk", lambda _, size: sizes.append(size))
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
    """An I/O error is a fault; no space is an error."""

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
    monkeypatch.setattr(health, "free_space", lambda _: 12 * 10**6)
    (full,) = disk_findings(tmp_path, tmp_path, 64 * MIB)
    assert (full["level"], full["summary"]) == ("error", f"12.0 MB free in {tmp_path}")


def test_a_slow_disk_is_a_warning_in_limited_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probe ends early."""
    monkeypatch.setattr(health, "_PROBE_SECONDS", 0.2)
    monkeypatch.setattr(os, "fdatasync", lambda _: time.sleep(0.3))
    finding = probe_disk(tmp_path, 64 * MIB)
    assert finding is not None
    assert finding["level"] == "warning"
    assert finding["summary"].startswith(f"{tmp_path} is slow: ")


def test_low_limits_are_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open files; shared memory for jobs with GPUs outside containers only."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 2048))
    assert [one["summary"] for one in limit_findings(False)] == ["at most 2048 open files"]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 2**20))
    status = os.statvfs(tmp_path)
    small = os.statvfs_result((*(4096, 4096, 16384), *tuple(status)[3:]))
    monkeypatch.setattr(os, "statvfs", lambda _: small)
    (finding,) = limit_findings(True)
    assert (finding["check"], finding["level"]) == ("shm", "warning")


def test_a_started_run_is_not_checked(tmp_path: Path, gpus: FakeNvidiaGpus) -> None:
    """An interrupted apply may have started it: it holds the GPUs itself."""
    directory = tmp_path / "runs" / "key"
    directory.mkdir(parents=True)
    (directory / "spec.json").write_text(json.dumps({"key": "key"}))
    gpus.report_health(errors=2)
    response = ask(tmp_path, H100)
    assert (response["started"], response["findings"]) == (True, [])


def test_a_range_without_a_free_port_is_an_error(tmp_path: Path) -> None:
    """Of a gang's node; else a port of the range is chosen."""
    taken = free_port("")
    with socket.socket() as sock:
        sock.bind(("0.0.0.0", taken))
        sock.listen()
        ((check, level, summary),) = found(ask(tmp_path, ports=f"{taken}-{taken}"))
    assert (check, level) == ("port", "error")
    assert f"none of the ports {taken}-{taken} is free" in summary
    assert ask(tmp_path, ports=f"{taken}-{taken}")["port"] == taken


def gang(*ports: int, deaf: int | None = None) -> list[dict[str, Any]]:
    """What each host of a gang on this machine responds; nothing listens on behalf of the ``deaf`` one."""
    hosts = [{"addresses": ["127.0.0.1"], "port": port} for port in ports]
    answers: list[dict[str, Any]] = [{}] * len(ports)

    def host(rank: int) -> Callable[[], None]:
        def check() -> None:
            request = {"root": "/", "rank": rank, "token": "t", "hosts": hosts}
            answers[rank] = cast(
                "dict[str, Any]",
                preflight_ports(cast(PreflightPortsRequest, request), lambda _: None),
            )

        return check

    threads = [threading.Thread(target=host(at)) for at in range(len(ports)) if at != deaf]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_hosts_of_a_gang_reach_each_other() -> None:
    """In less time than the limit; the MTU is that of the loopback interface."""
    began = time.monotonic()
    answers = gang(*(free_port("") for _ in range(4)))
    assert [one["unreached"] for one in answers] == [[]] * 4
    assert [one["mtu"] for one in answers] == [65535] * 4  # IP_MAX_MTU
    assert time.monotonic() - began < gang_ports._SECONDS


def test_a_host_that_does_not_listen_is_unreached(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others reach each other."""
    monkeypatch.setattr(gang_ports, "_SECONDS", 0.5)
    answers = gang(*(free_port("") for _ in range(3)), deaf=1)
    assert [one.get("unreached") for one in answers] == [[1], None, [1]]


def in_allocation(root: Path, gpus: RunGpus, granted: list[str]) -> str:
    """The error of a machine that a batch system chose, with the GPUs that it granted."""
    request: dict[str, Any] = {
        "root": str(root), "data": str(root), "key": "key", "gpus": gpus, "in_container": True,
        "listings": [], "probe_bytes": 0, "checkpoint_bytes": 0, "ports": None,
    }  # fmt: skip
    try:
        check_allocation(cast(PreflightRequest, request), "n1", granted)
    except Failure as error:
        return error.summary
    return ""


def test_only_granted_gpus_of_a_machine_are_checked(
    tmp_path: Path, gpus: FakeNvidiaGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first has errors. Their kind is the batch system's to know."""
    gpus.report_health(errors=2)
    one: RunGpus = {"count": 1, "kind": "BIG", "declared": None}
    for number, expected in (("1", ""), ("0", "node n1: GPU 0 has 2 uncorrectable ECC errors")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", number)
        assert in_allocation(tmp_path, one, [number]) == expected


def test_a_machine_that_grants_too_few_gpus_fails(tmp_path: Path) -> None:
    """Without a tool that reports them, too."""
    summary = "node n1: 1 of 2 GPUs that the run needs were granted"
    assert in_allocation(tmp_path, H100, ["0"]) == summary
    assert in_allocation(tmp_path, H100, []) == ""


def test_a_clock_is_compared_with_that_of_the_file_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways; the file is removed."""
    assert [*clock_findings(tmp_path)] == []
    now = time.time()
    for skew, words in ((100, "100 s ahead"), (-100, "100 s behind")):
        monkeypatch.setattr(time, "time", lambda skew=skew: now + skew)
        (finding,) = clock_findings(tmp_path)
        assert words in finding["summary"]
    assert [*tmp_path.iterdir()] == []
