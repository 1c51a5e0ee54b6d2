"""RPC methods of runs that a batch system starts. See resources/DESIGN.md, "Batch runs"."""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from trainctl.base.filesystem.files import make_directory, read_json, write_json
from trainctl.base.listing import Listing
from trainctl.base.network.addresses import addresses
from trainctl.base.protocol import runs as protocol
from trainctl.base.protocol.host import DiskNeeds, PreflightRequest
from trainctl.base.protocol.method import EmptyResponse, NodeCacheRequest, RunRequest
from trainctl.base.protocol.runs import WAITING_EXIT_CODE, RunGpus, RunSpec, rank_root
from trainctl.errors import NodeError, UnknownOnNode
from trainctl.node.cache.delivery import copy_listing
from trainctl.node.cache.listings import load_listing
from trainctl.node.cache.server import peer_server
from trainctl.node.runs import record as runs
from trainctl.node.runs.attempt import AWAITED_SIGNALS
from trainctl.node.runs.record import NodeRun, checkpoint_bytes, evaluated_run, gpus_of
from trainctl.node.supervision.preflight import check_allocation
from trainctl.node.supervision.run_methods import remove_containers
from trainctl.node.supervision.supervisor import LaunchRequest, run_in_foreground
from trainctl.node.system import layout as names
from trainctl.node.system.layout import Layout

Emit = Callable[[Dict[str, Any]], None]
_SHARED = ("agent", "cache", "caches", "code", "environments", "images", "queue", "training")
"""Directories that all ranks share with rank 0."""
_RENDEZVOUS_SECONDS = 600.0
_PEER_SECONDS = 30.0
_PROBE_BYTES = 64 * 2**20
_POLL_SECONDS = 0.2


def create_batch_run(request: protocol.CreateBatchRunRequest, emit: Emit) -> EmptyResponse:
    """Create the ranks' directories, with specifications and secrets."""
    for spec in request["runs"]:
        run = _rank_run(request["root"], request["key"], spec["rank"], spec)
        own = run.layout.root
        if spec["rank"]:
            make_directory(own)
        for name in _SHARED if spec["rank"] else ():
            shared = make_directory(Path(request["root"], name))
            if not (own / name).is_symlink():
                temporary = own / f".{name}.{os.getpid()}"
                temporary.symlink_to(shared)
                temporary.replace(own / name)
        run.create(spec)
        if request["secrets"] and run.record.get("status") not in runs.ENDED:
            run.store_secrets(request["secrets"])
    return {}


def run_rank(request: protocol.RunRankRequest, emit: Emit) -> protocol.RankResponse:
    """Supervise one rank in this process until its end; exit with its code."""
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED_SIGNALS)
    rank = int(os.environ[request["rank"]])
    restart = int(os.environ.get(request["restarts"]) or 0)
    run = _rank_run(request["root"], request["key"], rank)
    spec = run.spec
    if spec is None:
        raise UnknownOnNode(f"run {run.key} not found in {run.layout.root}")
    if request["node_cache"]:
        spec = {**spec, "cache": os.path.expandvars(request["node_cache"])}
    run = _rank_run(request["root"], request["key"], rank, spec)
    run.begin_batch_start(restart, os.environ.get(request["host"], ""))
    remove_containers(run.layout)
    rendezvous = None
    if spec["gang"] and rank:
        leader = _rank_run(request["root"], request["key"], 0)
        rendezvous = _wait_for_rendezvous(run, leader, restart)
    elif spec["gang"]:
        rendezvous = {"addresses": addresses() or ["127.0.0.1"], "restart": restart}
    wanted, spec = gpus_of(spec), _granted(spec, request, restart, rendezvous)
    data = names.check_absolute(request["data"], "data")
    secrets = run.stored_secrets or {}
    run.retains_secrets = True
    launch = LaunchRequest(run, spec, secrets, data, rendezvous)
    run_in_foreground(launch._replace(prepare=partial(_prepare, run, spec, wanted, request)))
    record = run.record
    status = str(record.get("status"))
    if status == runs.PENDING:  # interrupted
        sys.exit(WAITING_EXIT_CODE)
    run.retains_secrets = False
    run.discard_secrets()
    if status != runs.COMPLETED:
        code = int(record.get("exit_code") or 1)
        sys.exit(code if code > 0 else 128 - code)
    return {"status": status}


def expect_stop(request: protocol.ExpectStopRequest, emit: Emit) -> EmptyResponse:
    """Record a stop request in the ranks' directories, before the job is cancelled."""
    for run in _rank_runs(request, request["ranks"]):
        run.request_stop(grace_seconds=request["grace_seconds"])
    return {}


def end_batch_run(request: protocol.EndBatchRunRequest, emit: Emit) -> EmptyResponse:
    """Record the end of ranks without one, and remove their secrets."""
    for run in _rank_runs(request, request["ranks"]):
        run.discard_secrets()
        if run.record.get("status") not in runs.ENDED:
            outcome = {"status": request["status"], "error": request["error"]}
            run.write({**run.record, **outcome, "ended_at": time.time()})
    return {}


def _rank_runs(request: RunRequest, count: int) -> List[NodeRun]:
    ranks = (_rank_run(request["root"], request["key"], rank) for rank in range(count))
    return [run for run in ranks if run.spec is not None]


def _rank_run(root: str, key: str, rank: int, spec: Optional[RunSpec] = None) -> NodeRun:
    return NodeRun(Layout(rank_root(root, rank), spec["cache"] if spec else None), key)


def _granted(
    spec: RunSpec,
    request: protocol.RunRankRequest,
    restart: int,
    rendezvous: Optional[Mapping[str, Any]],
) -> RunSpec:
    """Return the specification with the resources that the batch system granted."""
    prefixes = tuple(request["forwarded"])
    variables = {name: value for name, value in os.environ.items() if name.startswith(prefixes)}
    granted = variables.get(request["gpus"], "")
    gpus = [number for number in granted.split(",") if number]
    if gpus:
        variables["BT_NUM_GPUS"] = str(len(gpus))
    retries = int(spec["environment"].get("BT_RETRY_COUNT", 0)) + restart
    changed: RunSpec = {
        **spec,
        "batch": {"variables": variables, "gpus": gpus},
        "follows": spec["follows"] if evaluated_run(spec) else [],
        "slots": None,
        "environment": {**spec["environment"], "BT_RETRY_COUNT": str(retries)},
    }
    if rendezvous and spec["gang"]:
        changed["gang"] = {**spec["gang"], "addresses": list(rendezvous["addresses"])}
    return changed


def _prepare(
    run: NodeRun, spec: RunSpec, wanted: RunGpus, request: protocol.RunRankRequest
) -> None:
    """Check the machine, then copy the run's weights to its own disk if it has a cache."""
    listings: Dict[str, Listing] = {}
    shared = Layout(str(run.layout.root))
    for address, digest in spec["listings"].items() if request["node_cache"] else ():
        listing = load_listing(shared.listing(digest))
        if listing is None:
            raise UnknownOnNode(f"{address} is not in {shared.cache}")
        listings[address] = listing
    disks: DiskNeeds = {
        "data": request["data"],
        "listings": [listing.id for listing in listings.values()],
        "probe_bytes": min(_PROBE_BYTES, sum(listing.size for listing in listings.values())),
        "checkpoint_bytes": checkpoint_bytes(spec) or 0,
    }
    node: NodeCacheRequest = {
        "root": str(run.layout.root),
        "cache": {"dir": str(run.layout.cache), "size": None},
    }
    check: PreflightRequest = {
        **node,
        **disks,
        "key": run.key,
        "gpus": wanted,
        "in_container": bool(spec.get("container")),
        "ports": None,
    }
    granted = (spec.get("batch") or {}).get("gpus", [])
    check_allocation(check, os.environ.get(request["host"], ""), granted)
    if listings:
        _copy_weights(run, spec, listings, _rank_run(request["root"], run.key, 0).directory)


def _copy_weights(
    run: NodeRun, spec: RunSpec, listings: Mapping[str, Listing], directory: Path
) -> None:
    """Copy weights from the shared directory; each byte leaves it once, the other ranks get it from peers.

    ``directory``: where the ranks exchange the addresses of their servers.
    """
    rank, ranks = spec["rank"], range(spec["group_size"])
    prefix = f"{run.batch_start['number']}-"
    done = [directory / f"copied-{prefix}{number}" for number in ranks]
    with peer_server(run.layout, [*listings.values()]) as own:
        peers: List[Any] = []
        if own and len(ranks) > 1:
            write_json(directory / f"peer-{prefix}{rank}.json", {**own, "node": str(rank)})
            _wait_for(
                [directory / f"peer-{prefix}{number}.json" for number in ranks], _PEER_SECONDS
            )
            known = (read_json(directory / f"peer-{prefix}{number}.json") for number in ranks)
            peers = [peer for peer in known if peer]
        request = {
            "root": str(run.layout.root),
            "lineage": spec["lineage"],
            "lease": run.key,
            "mirror": {"path": str(run.layout.root / "cache"), "is_cache": True},
            "node": str(rank),
            "peers": peers,
        }
        try:
            for name, listing in listings.items():
                moved = copy_listing(run.layout, listing, request)
                from_peers = moved["bytes_peers"]
                shared = sum(moved.values()) - from_peers
                sys.stderr.write(f"{name}: copied {shared} bytes, {from_peers} from peers\n")
        finally:
            done[rank].touch()
        if peers:
            _wait_for(done, _RENDEZVOUS_SECONDS)


def _wait_for(paths: Sequence[Path], seconds: float) -> None:
    """Wait until all files exist, a signal arrives, or the time is over."""
    deadline = time.monotonic() + seconds
    while not all(path.exists() for path in paths):
        if time.monotonic() > deadline or signal.SIGTERM in signal.sigpending():
            return
        time.sleep(_POLL_SECONDS)


def _wait_for_rendezvous(run: NodeRun, leader: NodeRun, restart: int) -> Mapping[str, Any]:
    """Wait until rank 0 of this start listens; return its addresses, port and token.

    If rank 0 has ended, the rank ends with its outcome.
    """
    deadline = time.monotonic() + _RENDEZVOUS_SECONDS
    while time.monotonic() < deadline and signal.SIGTERM not in signal.sigpending():
        rendezvous = read_json(leader.gang)
        if rendezvous and rendezvous.get("restart") == restart:
            return dict(rendezvous)
        outcome = leader.record
        if outcome.get("status") in runs.ENDED and leader.batch_start["number"] == restart:
            run.write({**outcome, "exit_code": None})
            sys.exit(1)
        time.sleep(_POLL_SECONDS)
    raise NodeError(f"rank 0 of run {leader.key} did not start")
