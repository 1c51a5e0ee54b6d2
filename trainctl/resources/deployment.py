"""Deploy a run: choose nodes, deliver its inputs, start the ranks."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any

from trainctl.apply.step import ApplyStep, DeferredStep
from trainctl.base.lazy_dataclass import replace
from trainctl.base.listing import Listing
from trainctl.base.parallel import each
from trainctl.base.protocol.host import ADDRESSES, BUILD_ENVIRONMENT, EnvironmentRequest
from trainctl.base.protocol.method import RootRequest
from trainctl.base.protocol.runs import DeploymentSpec, GangSpec, StartRequest
from trainctl.errors import InsufficientSpace, NodeError, NodeUnreachable, StalePlan, TrainctlError
from trainctl.inputs.code import CodeSource, pack, scan_code
from trainctl.inputs.environment import run_paths
from trainctl.ledger.state import RecordedResource
from trainctl.model.address import Address, Kind
from trainctl.model.delivery import DeliveryRecord, MirroringRecord
from trainctl.model.run import RankRecord, RunRecord, RunStatus
from trainctl.resources.agents import Services, nodes_of
from trainctl.resources.caches import directory_on, ensure_cache_on
from trainctl.resources.delivery import Delivery, PlacedRank, listings_of
from trainctl.resources.loading import CheckpointLoader
from trainctl.resources.mirror_access import mirror_access
from trainctl.resources.placement import PreflightChecker, RunPlacer, leader_addresses
from trainctl.resources.runs.batch_runs import BatchCluster, rank_node
from trainctl.resources.runs.launch import (
    PreparedRank,
    build_run_spec,
    fetch_code,
    pull_image,
    queue_order,
    send_code,
    start_together,
)
from trainctl.resources.runs.previous_runs import (
    BlockingRuns,
    ReplacedRun,
    RunStart,
    find_blocking_runs,
)
from trainctl.resources.runs.run_control import RunControl

_RECHECK_SECONDS = 30.0
"""A gang that took longer to stage is checked again before its start."""


class _PreflightFailed(Exception):
    """Nodes failed the preflight; ``errors`` by node id."""

    def __init__(self, errors: Mapping[str, NodeError]) -> None:
        super().__init__()
        self.errors = errors


class Deployment:
    """Deploys the runs of one apply; thread-safe."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._agents = services.agents
        self._secrets = services.secrets
        self._context = services.context
        self._deliver_from = partial(Delivery, services.mirror.store, services.context)
        access = mirror_access(services.agents, services.mirror, services.secrets.register)
        self._delivery = self._deliver_from(access)
        self._placer = RunPlacer(services.agents, services.mirror.store, services.planned)
        self._preflight = PreflightChecker(services.agents, services.quarantine)
        self._lock = threading.Lock()
        self._locks: dict[tuple[str, str], threading.Lock] = {}
        self._apply = uuid.uuid4().hex
        self._queue_positions = {address: index for index, address in enumerate(services.planned)}
        self._reordered: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)

    def deploy(self, start: RunStart, run: RunRecord, replaced: ReplacedRun) -> RunRecord:
        """Deliver weights and code to the ranks' nodes and start the ranks.

        The replaced live run is stopped as soon as everything is delivered, or to free disk space.
        NodeUnreachable if they may have started; NodeError if not and other nodes are left.
        """
        step = start.step
        failed: dict[str, NodeError] = {}
        while True:
            try:
                prepared_run, ranks, requests = self._prepare_on(start, run, replaced, failed)
                break
            except _PreflightFailed as error:
                failed |= error.errors
            except NodeUnreachable as error:
                node_count = step.job_spec.compute.node_count
                if step.resumed or len(nodes_of(self._cluster(step))) <= node_count:
                    raise
                raise NodeError(error.summary, error.detail, code=error.code) from error
        replaced.stop()
        control = RunControl(self._agents, step.lookup)
        loader = CheckpointLoader(
            step, control, self._services.checkpoints, self._deliver_from, self._secrets.register
        )
        run = loader.add_checkpoints(prepared_run, list(zip(ranks, requests, strict=True)))
        batch = BatchCluster.of(self._agents, self._cluster(step))
        if batch is not None:
            follows = [request["key"] for request in requests[0]["run"]["follows"]]
            slot = self.slot(step)
            batch.submit(step.address, step.job_spec, run, requests, after=follows, slot=slot)
            return control.status(run)
        return start_together(step, control, run, ranks, requests, self._secrets.register)

    def _prepare_on(
        self,
        start: RunStart,
        run: RunRecord,
        replaced: ReplacedRun,
        failed: Mapping[str, NodeError],
    ) -> tuple[RunRecord, list[PlacedRank], list[StartRequest]]:
        """Deliver the ranks' inputs on the nodes; return the requests that start the ranks.

        Avoids ``failed`` nodes. After a long delivery the nodes of a gang are checked again.
        """
        step = start.step
        self._checkpoint_secrets(step, run)  # fail before any transfer
        listings = listings_of(step)
        control = RunControl(self._agents, step.lookup)
        blocking = find_blocking_runs(control, step.lookup, step.depends_on, step.job_spec)
        if blocking.blocked_reason:
            raise DeferredStep(blocking.blocked_reason, "Apply again when it has completed.")
        ranks = self._place(step, run, list(listings.values()), blocking, replaced, failed)
        start_time = time.monotonic()
        with ThreadPoolExecutor(2, thread_name_prefix="listings") as pool:
            loading = pool.submit(self._delivery.listings, listings)  # the mirror may be remote
            checking = pool.submit(self._check, step, run, ranks, listings)
            # An image or an environment may take minutes, so nodes are checked first.
            if step.job_spec.in_container or step.job_spec.runtime.requirements:
                checking.result()
            try:
                shares_files = len({rank.node.id for rank in ranks}) < len(ranks)
                staged = ranks[:1] if shares_files else ranks
                prepared = each(lambda rank: self._prepare_rank(start, rank), staged, len(staged))
                if shares_files:
                    prepared = [replace(prepared[0], rank=rank) for rank in ranks]
            except TrainctlError:
                checking.result()  # a failed check has the cause
                raise
            checking.result()
        hosts = list({rank.node.id: rank for rank in ranks[::-1]}.values())[::-1]
        deliveries = self._deliver(step, hosts, loading.result(), replaced)
        if len(ranks) > 1 and time.monotonic() - start_time > _RECHECK_SECONDS:
            self._check(step, run, ranks, listings)
        image = prepared[0].image
        run = replace(
            run,
            image_digest=image["digest"] if image else None,
            code=step.job_spec.code.digest,
            code_archive=prepared[0].archive,
            delivered=sum(delivery.moved for delivery in deliveries),
            deliveries=tuple(delivery.to_json() for delivery in deliveries),
            mirrored=tuple(_mirrored(step, listings)),
            ranks=tuple(
                RankRecord(rank.number, rank.node.id, RunStatus.DEPLOYING) for rank in ranks
            ),
            phases={
                "mirroring": max(
                    (step.seconds_of(Address.parse(address)) for address in listings), default=0.0
                ),
                "provisioning": step.seconds_of(step.job_spec.cluster_address),
                "delivering": round(time.monotonic() - start_time, 3),
            },
        )
        step.stop_if_cancelled()
        return run, ranks, self._requests(step, run, prepared, listings, blocking)

    def _deliver(
        self,
        step: ApplyStep,
        ranks: Sequence[PlacedRank],
        listings: Mapping[str, Listing],
        replaced: ReplacedRun,
    ) -> tuple[DeliveryRecord, ...]:
        """Deliver the weights; DeferredStep if there is no disk space until other runs end."""
        try:
            return self._delivery.deliver(step, ranks, listings)
        except InsufficientSpace as error:
            if replaced.stop():
                return self._deliver(step, ranks, listings, replaced)
            raise DeferredStep(f"waits: {error.summary}", error.detail, code=error.code) from error

    def _cluster(self, step: ApplyStep) -> RecordedResource:
        return step.needed(step.job_spec.cluster_address)

    def _place(
        self,
        step: ApplyStep,
        run: RunRecord,
        listings: Sequence[str],
        blocking: BlockingRuns,
        replaced: ReplacedRun,
        failed: Mapping[str, NodeError],
    ) -> list[PlacedRank]:
        cluster = self._cluster(step)
        batch = BatchCluster.of(self._agents, cluster)
        count = step.job_spec.compute.node_count
        try:
            nodes = (
                tuple(rank_node(batch.node, rank) for rank in range(count))
                if batch is not None
                else self._placer.place_run(
                    cluster,
                    step.address,
                    run.key,
                    step.job_spec.compute,
                    listings,
                    [blocking.node] if blocking.node else None,
                    excluded=failed.keys(),
                    replaced_key=replaced.live.key if replaced.live else None,
                    resumed=step.resumed,
                )
            )
        except TrainctlError as error:
            raise next(iter(failed.values()), error) from None
        project = step.job_spec.project
        used = (step.lookup(address) for address in step.depends_on if address.kind is Kind.CACHE)
        caches = {cache.cache_spec.scope: cache for cache in used if cache}
        ranks = []
        for number, node in enumerate(nodes):
            for cache in caches.values():
                ensure_cache_on(self._agents, self._context.lineage, cache, cluster.provider, node)
            paths = run_paths(
                node,
                project,
                run,
                number,
                cache=directory_on(node, caches.get("project")),
                team=directory_on(node, caches.get("team")),
            )
            agent = self._agents.of(cluster.provider, nodes[0] if batch is not None else node)
            ranks.append(PlacedRank(number, node, agent, cluster.cluster_spec, paths))
        return ranks

    def slot(self, step: ApplyStep) -> str | None:
        """Return the name of the sweep's slot for the run of a batch system; None without a limit."""
        slots = queue_order(step.address, step.job_spec, self._context.lineage)["slots"]
        if slots is None:
            return None
        number = self._queue_positions.get(step.address)
        if number is None:  # it was submitted by an earlier apply
            number = next(self._reordered[step.address.name])
        return f"{self._context.lineage[:8]}-{step.address.name}-{number % slots['count']}"

    def _check(
        self,
        step: ApplyStep,
        run: RunRecord,
        ranks: Sequence[PlacedRank],
        listings: Mapping[str, str],
    ) -> None:
        """Check the nodes; if some fail, free all for another choice and raise."""
        if BatchCluster.of(self._agents, self._cluster(step)) is not None:
            return  # the batch system checks its nodes
        errors = self._preflight.check(
            step, run.key, self._cluster(step), [rank.node for rank in ranks], [*listings.values()]
        )
        if errors:
            for error in errors.values():
                step.notify(f"avoids {error.summary}")
            self._placer.withdraw(run.key)
            raise _PreflightFailed(errors)

    def _prepare_rank(self, start: RunStart, rank: PlacedRank) -> PreparedRank:
        """Prepare code, environment and image on a rank's node."""
        step = start.step
        digest = step.job_spec.code.digest or ""

        def archive() -> AbstractContextManager[Iterator[bytes]]:
            if start.repeated_run is not None:
                control = RunControl(self._agents, step.lookup)
                return fetch_code(control, start.repeated_run, digest)
            return self._packed(step)

        with self._lock:  # once per node
            lock = self._locks.setdefault((rank.node.id, digest), threading.Lock())
        with lock:
            archive_digest = send_code(
                rank.agent, rank.node.root, digest, self._context.lineage, archive
            )
        requirements, venv = step.job_spec.runtime.requirements, None
        if requirements:
            request = EnvironmentRequest(
                root=rank.node.root, code=digest, requirements=requirements
            )
            venv = rank.agent.call(
                BUILD_ENVIRONMENT,
                request,
                on_event=lambda _: step.progress(f"installing {requirements}", 0, 0),
            )["venv"]
        planned = self._services.planned.get(step.address)
        image = pull_image(
            step,
            rank.agent,
            rank.node.root,
            self._context.lineage,
            self._secrets,
            planned.image_digest if planned else None,
        )
        return PreparedRank(rank, archive_digest, venv, image)

    @contextmanager
    def _packed(self, step: ApplyStep) -> Iterator[Iterator[bytes]]:
        with pack(self._planned_code(step)) as tar:
            self._planned_code(step)  # detect changes while packing
            yield tar

    def _planned_code(self, step: ApplyStep) -> CodeSource:
        planned = step.job_spec.code
        code = scan_code(self._context.directory, planned, self._context.excluded_paths)
        if code.tree.digest != planned.digest:
            times = {}
            for file in code.files:
                with suppress(OSError):  # deleted meanwhile
                    times[file.path] = code.locate(file.path).lstat().st_mtime
            newest = max(times, key=times.__getitem__, default="no file")
            raise StalePlan(
                "the code has changed since the plan was made",
                f"Last modified: {newest}. Plan again; exclude files that are not code with .trainctlignore.",
                address=str(step.address),
            )
        return code

    def _checkpoint_secrets(self, step: ApplyStep, run: RunRecord) -> Mapping[str, str]:
        """Return the credentials of the checkpoint store if the run uses it."""
        runtime = step.job_spec.runtime
        if not runtime.checkpointing_config.enabled and not runtime.loads:
            return {}
        return self._services.checkpoints.values(run.store or {})

    def _requests(
        self,
        step: ApplyStep,
        run: RunRecord,
        prepared: Sequence[PreparedRank],
        listings: Mapping[str, str],
        blocking: BlockingRuns,
    ) -> list[StartRequest]:
        """Return the request that starts each rank."""
        batch = BatchCluster.of(self._agents, self._cluster(step)) is not None
        gang: GangSpec | None = None
        if len(prepared) > 1:  # addresses of rank 0, preferred first, and the ports open there
            leader, node = prepared[0].rank.agent, prepared[0].rank.node
            addresses = leader.call(ADDRESSES, RootRequest(root=node.root))["addresses"]
            gang = {"addresses": leader_addresses(node, addresses), "ports": node.ports}
        names = sorted(set(step.job_spec.runtime.secret_environment.values()))
        values = {name: self._secrets.value(name) for name in names}
        values |= self._checkpoint_secrets(step, run)
        deployment: DeploymentSpec = {
            "checkpoints": self._services.checkpoints.settings,
            "follows": [{"key": run.key, "address": str(job)} for job, run in blocking.follows],
            "turn": {"apply": self._apply, "index": self._queue_positions.get(step.address, 0)},
            "gang": gang,
        }
        lineage = self._context.lineage
        requests: list[StartRequest] = []
        for rank in prepared:
            spec = build_run_spec(step, run, rank, lineage, listings, deployment, in_batch=batch)
            node = rank.rank.node
            requests.append({"root": node.root, "data": node.data, "run": spec, "secrets": values})
        return requests


def _mirrored(step: ApplyStep, listings: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield bytes and seconds of the weights mirrored in this apply."""
    for address in map(Address.parse, listings):
        fetched = step.needed(address).outputs.get("fetched")
        if fetched and step.seconds_of(address):
            yield {"weights": str(address), **MirroringRecord.from_json(fetched).to_json()}
