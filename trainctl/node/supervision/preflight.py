"""Check a host before a run: GPUs, disks, clock, limits, and connections between the hosts of a gang. Leaves nothing behind."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import shutil
import socket
import sys
import threading
import time
from itertools import chain
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from trainctl.base.filesystem.space import free_space
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.network.addresses import addresses, listen, parse_port_range
from trainctl.base.parallel import each
from trainctl.base.protocol.host import (
    ERROR,
    FAULT,
    WARNING,
    DiskNeeds,
    Finding,
    HostCheck,
    PortOfRank,
    PreflightPortsRequest,
    PreflightPortsResponse,
    PreflightRequest,
    PreflightResponse,
    make_finding,
)
from trainctl.base.protocol.runs import RunGpus
from trainctl.base.units import format_bytes
from trainctl.errors import NodeError, TrainctlError
from trainctl.node.cache.listings import ListingTrees
from trainctl.node.rendezvous.link import PortReservation
from trainctl.node.runs.record import NodeRun
from trainctl.node.scheduling.allocation import name_pids, usable_gpus
from trainctl.node.scheduling.claims import is_held
from trainctl.node.system.gpus import (
    GpuDevice,
    ListGpusFn,
    ToolTimeout,
    list_gpus,
    nvidia_health,
    nvidia_users,
    visible_gpus,
)
from trainctl.node.system.layout import Layout, check_absolute, layout_of

_TOOL_SECONDS = 2.5  # all checks of a host take at most 3 s
_PORTS_SECONDS = 1.5
"""Time until all hosts must have reached each other; calls may begin late."""
_PORT_CONNECT_SECONDS = 0.3
_PORT_RETRY_SECONDS = 0.05
_IP_MTU = 14
"""linux/in.h: MTU of the route of a connected socket."""


def preflight(
    request: PreflightRequest, emit: Callable[[Dict[str, Any]], None]
) -> PreflightResponse:
    """Check this host; a run that has started here needs no check."""
    now, layout = time.time(), layout_of(request)
    started = NodeRun(layout, request["key"]).spec is not None
    check: HostCheck = {"driver": None, "findings": []} if started else _check(request, layout)
    response: PreflightResponse = {
        **check,
        "addresses": [],
        "time": now,
        "started": started,
        "port": None,
    }
    if request["ports"] is not None and not started:
        response["addresses"] = addresses()
        try:
            reservation = PortReservation(parse_port_range(request["ports"]) or _ANY_PORT)
            response["port"] = reservation.allocate()
            reservation.release()
        except TrainctlError as error:
            finding = make_finding("port", ERROR, error.summary, error.detail)
            response["findings"].append(finding)
    return response


def check_allocation(request: PreflightRequest, host: str, granted: Sequence[str]) -> None:
    """Check a machine of a batch system before a rank's gang starts; TrainctlError if the rank can't run there.

    ``granted``: numbers of its GPUs. GPUs that no tool reports, and parts of GPUs, are not checked. Warnings are printed.
    """
    gpus = request["gpus"]
    has_tool = any(map(shutil.which, ("nvidia-smi", "rocm-smi")))
    is_listed = has_tool and "MIG-" not in os.environ.get("CUDA_VISIBLE_DEVICES", "")
    gpus = {"count": gpus["count"] if is_listed else 0, "kind": "", "declared": None}
    visible: ListGpusFn = lambda: visible_gpus(_host_gpus(), os.environ)  # noqa: E731
    findings = _check({**request, "gpus": gpus}, layout_of(request), visible)["findings"]
    wanted = request["gpus"]["count"] or 0
    if 0 < len(granted) < wanted:
        summary = f"{len(granted)} of {wanted} GPUs that the run needs were granted"
        findings.append(
            make_finding("gpus", ERROR, summary, "Check the GPUs of the node in the batch system.")
        )
    for finding in findings:
        if finding["level"] != WARNING:
            raise NodeError(f"node {host}: {finding['summary']}", finding["remedy"])
        sys.stderr.write(f"warning: node {host}: {finding['summary']}\n")


def _host_gpus() -> List[GpuDevice]:
    return list_gpus(_TOOL_SECONDS)


def _check(
    request: PreflightRequest, layout: Layout, gpu_source: ListGpusFn = _host_gpus
) -> HostCheck:
    """Check GPUs, disks and limits."""
    uses_gpus = request["gpus"]["count"] != 0 and request["gpus"]["declared"] != 0
    gpus: Callable[[], HostCheck] = lambda: _gpus(request["gpus"], gpu_source)  # noqa: E731
    disks: Callable[[], HostCheck] = lambda: {  # noqa: E731
        "driver": None,
        "findings": [*disk_findings(request, layout)],
    }
    reports = each(lambda check: check(), [gpus, disks] if uses_gpus else [disks], 2)
    driver = reports[0]["driver"]
    has_gpus = uses_gpus and (bool(request["gpus"]["count"]) or driver is not None)
    findings = [*chain.from_iterable(report["findings"] for report in reports)]
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most != resource.RLIM_INFINITY and most < _MIN_FILES:
        remedy = "Raise nofile in /etc/security/limits.conf."
        findings.append(make_finding("limits", WARNING, f"at most {most} open files", remedy))
    with contextlib.suppress(OSError):
        status = os.statvfs(_SHM)
        size = status.f_blocks * status.f_frsize
        if has_gpus and not request["in_container"] and size < _MIN_SHM:
            summary = f"{_SHM} has {format_bytes(size)}: data loaders and NCCL may fail"
            remedy = f"Mount a larger tmpfs on {_SHM}."
            findings.append(make_finding("shm", WARNING, summary, remedy))
    return {"driver": driver, "findings": findings}


def _gpus(wanted: RunGpus, gpu_source: ListGpusFn) -> HostCheck:
    """Compare the GPUs with those that the run needs."""
    required = wanted["count"]
    tools: List[Callable[[], Any]] = [
        lambda: usable_gpus(wanted["declared"], gpu_source),
        lambda: nvidia_health(_TOOL_SECONDS),
        lambda: nvidia_users(_TOOL_SECONDS),
    ]
    try:
        gpus, health, users = each(lambda tool: tool(), tools, len(tools))
    except ToolTimeout as error:
        remedy = "Enable the driver's persistence mode."
        finding = make_finding("driver", WARNING, error.summary, remedy)
        return {"driver": None, "findings": [finding]}
    except TrainctlError as error:
        remedy = "Check nvidia-smi on the host: repair the driver, or reboot."
        level = FAULT if required else WARNING
        return {"driver": None, "findings": [make_finding("driver", level, error.summary, remedy)]}
    matching = [gpu for gpu in gpus if gpu.matches_kind(wanted["kind"])]
    findings: List[Finding] = []
    for gpu in matching:
        status = health.get(gpu.id)
        if status and status.uncorrected:
            count = f"{status.uncorrected} uncorrectable ECC error"
            summary = f"GPU {gpu.number} has {count}{'s' if status.uncorrected > 1 else ''}"
            findings.append(make_finding("ecc", FAULT, summary, _RESET))
        if status and status.remap_failed:
            summary = f"GPU {gpu.number} failed to remap a row of its memory"
            remedy = "Replace the GPU, then release the node."
            findings.append(make_finding("ecc", FAULT, summary, remedy))
    findings += xid_errors() if matching and matching[0].vendor else ()
    if required is not None and len(matching) < required:
        kind = f"{wanted['kind']} " if wanted["kind"] else ""
        summary = f"{len(matching)} of {required} {kind}GPUs that the run needs"
        remedy = "Check nvidia-smi on the host, or change compute.accelerator."
        findings.append(make_finding("gpus", FAULT, summary, remedy))
    else:
        findings += _foreign(matching, users, len(matching) if required is None else required)
    driver = next((status.driver for status in health.values()), None)
    return {"driver": driver, "findings": findings}


def _foreign(gpus: List[GpuDevice], users: Mapping[str, str], required: int) -> List[Finding]:
    """Find programs on GPUs for which the run would wait."""
    unclaimed = [gpu for gpu in gpus if not is_held(gpu.claim)]
    taken = [gpu for gpu in unclaimed if gpu.id in users]
    if not taken or len(unclaimed) - len(taken) >= required:
        return []
    named = name_pids(users[gpu.id] for gpu in taken)
    summary = f"{named} computes on GPU {', '.join(str(gpu.number) for gpu in taken)}"
    return [make_finding("processes", WARNING, summary, "Stop the program, or the run waits.")]


_ANY_PORT = range(20000, 32000)
"""Below the range of outgoing connections, which could take the port."""


def preflight_ports(
    request: PreflightPortsRequest, emit: Callable[[Dict[str, Any]], None]
) -> PreflightPortsResponse:
    """Listen until all ranks have connected or the time is over; connect to all of them."""
    rank, hosts = request["rank"], request["hosts"]
    own, deadline = hosts[rank], time.monotonic() + _PORTS_SECONDS
    others = [other for other in range(len(hosts)) if other != rank]
    try:
        listeners = listen(own["addresses"], range(own["port"], own["port"] + 1))
    except (OSError, TrainctlError) as error:
        return {"unreached": [], "mtu": None, "problem": str(error)}

    def reply(other: int) -> bytes:
        """Another host may have the same private address: a reply names check and rank."""
        return f"{request['token']} {other}\n".encode()

    def answer() -> None:
        """Reply to all that connect, until all ranks have."""
        missing = set(others)
        with contextlib.ExitStack() as stack:
            for listener in listeners:
                stack.enter_context(listener)
            while missing and time.monotonic() < deadline:
                ready = select.select(listeners, [], [], max(0.0, deadline - time.monotonic()))[0]
                for listener in ready:
                    with contextlib.suppress(OSError, ValueError), listener.accept()[0] as peer:
                        peer.settimeout(_PORT_CONNECT_SECONDS)
                        missing.discard(int(peer.recv(8)))
                        peer.sendall(reply(rank))

    def reach(other: int) -> Optional[int]:
        return _reach(hosts[other], rank, reply(other), deadline)

    answering = threading.Thread(target=answer, daemon=True)
    answering.start()
    mtus = each(reach, others, len(others))
    answering.join()
    unreached = [other for other, mtu in zip(others, mtus) if mtu is None]
    return {"unreached": unreached, "mtu": next(iter(mtus), None) or None, "problem": ""}


def _reach(host: PortOfRank, rank: int, reply: bytes, deadline: float) -> Optional[int]:
    """Return the MTU to a host, 0 if unknown; None if there is no connection in time."""
    while time.monotonic() < deadline:
        for address in host["addresses"]:
            target: Tuple[str, int] = (address, host["port"])
            with contextlib.suppress(OSError):
                seconds = min(_PORT_CONNECT_SECONDS, max(0.01, deadline - time.monotonic()))
                with socket.create_connection(target, seconds) as connection:
                    connection.sendall(f"{rank:<8}".encode())
                    if connection.recv(len(reply)) == reply:
                        is_v4 = connection.family is socket.AF_INET
                        return connection.getsockopt(socket.IPPROTO_IP, _IP_MTU) if is_v4 else 0
        time.sleep(_PORT_RETRY_SECONDS)
    return None


_PROBE_SECONDS = 2.5
_STEP_BYTES = 4 * 2**20
_SLOW_BYTES = 16 * 2**20
_MIN_FREE = 64 * 2**20
_MIN_FILES = 4096
_MIN_SHM = 2**30
_SHM = "/dev/shm"  # noqa: S108
_XID = compile_lazily(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+),")
_FAULTY_XIDS = frozenset({48, 62, 64, 74, 79, 94, 95, 109, 119, 120, 140, 143})
"""Xids of hardware and firmware errors; others are often errors of the program."""

_RECENT_SECONDS = 24 * 3600.0
_RESET = "Reset the GPU or reboot the host, then release the node."


def xid_errors(path: str = "/dev/kmsg") -> Iterator[Finding]:
    """Find recent hardware errors of GPUs in the kernel's log, if readable."""
    found: Set[str] = set()
    oldest = time.clock_gettime(time.CLOCK_MONOTONIC) - _RECENT_SECONDS
    for line in _kernel_log(path):
        head, _, text = line.partition(";")
        fields, match = head.split(","), _XID.search(text)
        if match is None or len(fields) < 3 or int(match[2]) not in _FAULTY_XIDS:
            continue
        seconds = int(fields[2]) / 1e6
        if seconds >= oldest and match[1] not in found:
            found.add(match[1])
            summary = f"GPU at {match[1]} had Xid {match[2]}, {seconds:.0f} s after boot"
            yield make_finding("xid", FAULT, summary, _RESET)


def _kernel_log(path: str) -> Iterator[str]:
    """Yield records of kmsg; nothing without permission."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return
    with os.fdopen(descriptor, "rb", buffering=0) as log:
        while True:
            try:
                data = log.read(8192)
            except BrokenPipeError:  # the record was overwritten meanwhile
                continue
            except OSError:
                return
            if not data:
                return
            yield from data.decode(errors="replace").splitlines()


def disk_findings(request: DiskNeeds, layout: Layout) -> Iterator[Finding]:
    """Check that the data directory has the space for checkpoints, and write to its disk and the cache's.

    They are written to only if the run brings weights that the cache lacks.
    """
    trees, scratch = ListingTrees(layout), check_absolute(request["data"], "data")
    is_warm = all(trees.is_complete(listing) for listing in request["listings"])
    size, needed = 0 if is_warm else request["probe_bytes"], request["checkpoint_bytes"]
    free = free_space(str(scratch))
    if free is not None and free < max(needed, _MIN_FREE):
        use = f", {format_bytes(needed)} needed for checkpoints (volume_size_gib)" if needed else ""
        summary = f"{format_bytes(free)} free in {scratch}{use}"
        yield make_finding("space", ERROR, summary, "Free disk space.")
    disks: Dict[int, Path] = {}
    for directory in map(_existing, (scratch, layout.cache)):
        disks.setdefault(directory.stat().st_dev, directory)
    for directory in disks.values() if size else ():
        if (free_space(str(directory)) or 0) > size + _MIN_FREE:  # deliveries report a full cache
            finding = probe_disk(directory, size)
            if finding is not None:
                yield finding


def probe_disk(directory: Path, size: int) -> Optional[Finding]:
    """Write and sync a file that has no name afterwards; at most 2.5 s."""
    path = directory / f".preflight-{os.getpid()}"
    block, written, began = os.urandom(min(size, _STEP_BYTES)), 0, time.monotonic()
    try:
        descriptor = os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            path.unlink()
            while written < size and time.monotonic() - began < _PROBE_SECONDS:
                written += os.write(descriptor, block)
                os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        level = FAULT if error.errno in (errno.EIO, errno.EROFS) else ERROR
        summary = f"cannot write to {directory}: {error.strerror}"
        return make_finding("disk", level, summary, "Check the file system and its permissions.")
    rate = written / max(time.monotonic() - began, 1e-6)
    if rate >= _SLOW_BYTES or written < _STEP_BYTES:
        return None
    summary = f"{directory} is slow: {format_bytes(int(rate))}/s"
    return make_finding("disk", WARNING, summary, "Use a faster disk: cache: {node: {dir: …}}.")


def _existing(path: Path) -> Path:
    """Return the path or its nearest existing ancestor."""
    while not path.is_dir() and path != path.parent:
        path = path.parent
    return path
