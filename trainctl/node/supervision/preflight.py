"""Check a host before a run: GPUs, disks, clock, limits. Leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import sys
import time
from itertools import chain
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from trainctl.base.failure import Failure
from trainctl.base.network.addresses import addresses
from trainctl.base.parallel import each
from trainctl.base.protocol.preflight import (
    ERROR,
    FAULT,
    WARNING,
    Finding,
    PreflightRequest,
    PreflightResponse,
    make_finding,
)
from trainctl.base.protocol.spec import RunGpus
from trainctl.node.cache.trees import ListingTrees
from trainctl.node.runs.record import NodeRun
from trainctl.node.scheduling.claims import is_held
from trainctl.node.scheduling.gpus import usable_gpus
from trainctl.node.system.gang_ports import free_port
from trainctl.node.system.gpus import (
    GpuDevice,
    ListGpusFn,
    ToolTimeout,
    list_gpus,
    nvidia_health,
    nvidia_users,
    visible_gpus,
)
from trainctl.node.system.health import (
    clock_findings,
    disk_findings,
    gpu_errors,
    limit_findings,
    xid_errors,
)
from trainctl.node.system.layout import Layout, check_absolute, layout_of

_TOOL_SECONDS = 2.5
_MAX_NAMED = 2
_GpuReport = Tuple[Optional[str], List[Finding]]


def preflight(
    request: PreflightRequest, emit: Callable[[Dict[str, Any]], None]
) -> PreflightResponse:
    """Check this host; a run that has started here needs no check."""
    now, layout = time.time(), layout_of(request)
    response: PreflightResponse = {
        "time": now,
        "started": NodeRun(layout, request["key"]).spec is not None,
        "driver": None,
        "findings": [],
        "addresses": [],
        "port": None,
    }
    if response["started"]:
        return response
    response["driver"], response["findings"] = _check(request, layout)
    if request["ports"] is not None:
        response["addresses"] = addresses()
        try:
            response["port"] = free_port(request["ports"])
        except Failure as error:
            finding = make_finding("port", ERROR, error.summary, error.detail)
            response["findings"].append(finding)
    return response


def check_allocation(request: PreflightRequest, host: str, granted: Sequence[str]) -> None:
    """Check a machine of a batch system before a rank's gang starts; Failure if the rank can't run there.

    ``granted``: numbers of its GPUs. GPUs that no tool reports are not checked. Warnings are printed.
    """
    gpus = request["gpus"]
    has_tool = any(map(shutil.which, ("nvidia-smi", "rocm-smi")))
    gpus = {"count": gpus["count"] if has_tool else 0, "kind": "", "declared": None}
    _, findings = _check({**request, "gpus": gpus}, layout_of(request), _granted_gpus)
    wanted = request["gpus"]["count"] or 0
    if 0 < len(granted) < wanted:
        summary = f"{len(granted)} of {wanted} GPUs that the run needs were granted"
        findings.append(
            make_finding("gpus", ERROR, summary, "Check the GPUs of the node in the batch system.")
        )
    for finding in [*findings, *clock_findings(Path(request["root"]))]:
        if finding["level"] != WARNING:
            raise Failure("failed", f"node {host}: {finding['summary']}", finding["remedy"])
        sys.stderr.write(f"warning: node {host}: {finding['summary']}\n")


def _granted_gpus() -> List[GpuDevice]:
    return visible_gpus(_host_gpus(), os.environ)


def _host_gpus() -> List[GpuDevice]:
    return list_gpus(_TOOL_SECONDS)


def _check(
    request: PreflightRequest, layout: Layout, gpu_source: ListGpusFn = _host_gpus
) -> _GpuReport:
    """Check GPUs, disks and limits; return the driver's version, too."""
    uses_gpus = request["gpus"]["count"] != 0 and request["gpus"]["declared"] != 0
    gpus: Callable[[], _GpuReport] = lambda: _gpus(request["gpus"], gpu_source)  # noqa: E731
    disks: Callable[[], _GpuReport] = lambda: (None, _disks(request, layout))  # noqa: E731
    reports = each(lambda check: check(), [gpus, disks] if uses_gpus else [disks], 2)
    driver = reports[0][0]
    has_gpus = uses_gpus and (bool(request["gpus"]["count"]) or driver is not None)
    limits = limit_findings(has_gpus and not request["in_container"])
    return driver, [*chain.from_iterable(found for _, found in reports), *limits]


def _disks(request: PreflightRequest, layout: Layout) -> List[Finding]:
    """Check the disks; write to them only if the run brings weights that the cache lacks."""
    trees = ListingTrees(layout)
    is_warm = all(trees.is_complete(listing) for listing in request["listings"])
    size = 0 if is_warm else request["probe_bytes"]
    data = check_absolute(request["data"], "data")
    return [*disk_findings(layout.cache, data, size, request["checkpoint_bytes"])]


def _gpus(wanted: RunGpus, gpu_source: ListGpusFn) -> _GpuReport:
    """Compare the GPUs with those that the run needs; return the driver's version, too."""
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
        return None, [make_finding("driver", WARNING, error.summary, remedy)]
    except Failure as error:
        remedy = "Check nvidia-smi on the host: repair the driver, or reboot."
        level = FAULT if required else WARNING
        return None, [make_finding("driver", level, error.summary, remedy)]
    matching = [gpu for gpu in gpus if gpu.matches_kind(wanted["kind"])]
    findings = [*gpu_errors({gpu.id: gpu.number for gpu in matching}, health)]
    findings += xid_errors() if matching and matching[0].vendor else ()
    if required is not None and len(matching) < required:
        kind = f"{wanted['kind']} " if wanted["kind"] else ""
        summary = f"{len(matching)} of {required} {kind}GPUs that the run needs"
        remedy = "Check nvidia-smi on the host, or change compute.accelerator."
        findings.append(make_finding("gpus", FAULT, summary, remedy))
    else:
        findings += _foreign(matching, users, len(matching) if required is None else required)
    driver = next((status.driver for status in health.values()), None)
    return driver, findings


def _foreign(gpus: List[GpuDevice], users: Mapping[str, str], required: int) -> List[Finding]:
    """Find programs on GPUs for which the run would wait."""
    unclaimed = [gpu for gpu in gpus if not is_held(gpu.claim)]
    taken = [gpu for gpu in unclaimed if gpu.id in users]
    if not taken or len(unclaimed) - len(taken) >= required:
        return []
    pids = list(dict.fromkeys(f"PID {users[gpu.id]}" for gpu in taken))
    named = ", ".join(pids[:_MAX_NAMED])
    more = f" and {len(pids) - _MAX_NAMED} more" if len(pids) > _MAX_NAMED else ""
    summary = f"{named}{more} computes on GPU {', '.join(str(gpu.number) for gpu in taken)}"
    return [make_finding("processes", WARNING, summary, "Stop the program, or the run waits.")]
