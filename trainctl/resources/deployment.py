"""Deploying a run: choosing its nodes, and having on all of them, at once, what its ranks need."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

from trainctl.apply.step import ApplyStep, DeferredStep
from trainctl.base.listing import Listing
from trainctl.base.parallel import each
from trainctl.base.protocol.code import BUILD_ENVIRONMENT, EnvironmentRequest
from trainctl.base.protocol.host import ADDRESSES
from trainctl.base.protocol.method import RootRequest
from trainctl.base.protocol.runs import StartRequest
from trainctl.base.protocol.spec import DeploymentSpec, GangSpec
from trainctl.errors import InsufficientSpace, NodeError, NodeUnreachable, StalePlan
from trainctl.jobs.checkpoints import CheckpointAccess, references
from trainctl.jobs.code import CodeSource, pack, scan
from trainctl.jobs.environment import run_paths
from trainctl.jobs.secrets import SecretResolver
from trainctl.ledger.state import RecordedResource
from trainctl.model.address import Address, Kind
from trainctl.model.delivery import DeliveryRecord, MirroringRecord
from trainctl.model.run import RankRecord, RunRecord, RunStatus
from trainctl.plan.placement import PlannedRun
from trainctl.resources.agents import Agents, ProjectContext, nodes_of
from trainctl.resources.blocking_runs import (
    BlockingRuns,
    ReplacedRun,
    find_blocking_runs,
    possible_nodes,
)
from trainctl.resources.caches import directory_on, ensure_cache_on
from trainctl.resources.clusters import cache_settings
from trainctl.resources.delivery import Delivery, RankAssignment, listings_of
from trainctl.resources.launch import (
    PlacedRank,
    PreparedRank,
    build_run_spec,
    fetch_code,
    pull_image,
    send_code,
    start_together,
)
from trainctl.resources.mirror.origins import origins_of
from trainctl.resources.placement import RunPlacer, leader_addresses
from trainctl.resources.previous_runs import RunStart
from trainctl.resources.run_control import RunControl
from trainctl.weights.mirrors import Mirror

T = TypeVar("T")


class Deployment:
    """Deploys the runs of one apply; safe to use from many threads."""

    def __init__(
        self,
        agents: Agents,
        mirror: Mirror,
        secrets: SecretResolver,
        context: ProjectContext,
        checkpoints: CheckpointAccess,
        planned: Mapping[Address, PlannedRun],
    ) -> None:
        self._agents = agents
        self._secrets = secrets
        self._context = context
        self._checkpoints = checkpoints
        self._delivery = Delivery(
            mirror.store, context, origins_of(agents, mirror, secrets.register)
        )
        self._placer = RunPlacer(agents, mirror.store, planned)
        self._lock = threading.Lock()
        self._locks: dict[tuple[str, str], threading.Lock] = {}
        self._apply = uuid.uuid4().hex
        self._queue_positions = {address: index for index, address in enumerate(planned)}

    def deploy(self, begun: RunStart, run: RunRecord, replaced: ReplacedRun) -> RunRecord:
        """Deliver weights and code to the nodes of the ranks and start them; the record of the run that then runs.

        The live run that it replaces is stopped when all is there, or where there is no room before.

        NodeUnreachable if nobody can tell whether it was started; where nothing can have been, and there are other nodes for it, NodeError.
        """
        step = begun.step
        try:
            run, ranks, requests = self._prepare(begun, run, replaced)
        except NodeUnreachable as error:
            wanted = step.job_spec.compute.node_count
            if step.resumed or len(nodes_of(self._cluster(step))) <= wanted:
                raise
            raise NodeError(error.summary, error.detail, code=error.code) from error
        replaced.stop()
        control = RunControl(self._agents, step.lookup)
        return start_together(step, control, run, ranks, requests, self._secrets.register)

    def _prepare(
        self, begun: RunStart, run: RunRecord, replaced: ReplacedRun
    ) -> tuple[RunRecord, list[PlacedRank], list[StartRequest]]:
        """Have on the nodes what the ranks need, and say what starts them."""
        step = begun.step
        self._checkpoint_secrets(step, run)  # before anything moves
        listings = listings_of(step)
        before = self._find_blocking_runs(step)
        ranks = self._place(step, run, list(listings.values()), before, replaced)
        began = time.monotonic()
        with ThreadPoolExecutor(1, thread_name_prefix="listings") as pool:
            found = pool.submit(self._delivery.listings, listings)  # a mirror may be far away
            prepared = each(lambda rank: self._prepare_rank(begun, rank), ranks, len(ranks))
        moved = self._deliver(step, ranks, found.result(), replaced)
        image = prepared[0].image
        run = replace(
            run,
            image_digest=image.digest if image else None,
            code=step.job_spec.code.digest,
            code_archive=prepared[0].archive,
            delivered=sum(one.moved for one in moved),
            deliveries=tuple(one.to_json() for one in moved),
            mirrored=tuple(_mirrored(step, listings)),
            ranks=tuple(
                RankRecord(rank.number, rank.node.id, RunStatus.DEPLOYING) for rank in ranks
            ),
            phases={
                "mirroring": max(
                    (step.seconds_of(Address.parse(address)) for address in listings), default=0.0
                ),
                "provisioning": step.seconds_of(step.job_spec.cluster_address),
                "delivering": round(time.monotonic() - began, 3),
            },
        )
        step.stop_if_cancelled()
        return run, ranks, self._requests(step, run, prepared, listings, before)

    def _find_blocking_runs(self, step: ApplyStep) -> BlockingRuns:
        """What the run has to follow. Deferred if nobody could wait for it."""
        nodes = possible_nodes(self._cluster(step), step.job_spec)
        before = find_blocking_runs(
            RunControl(self._agents, step.lookup), step.lookup, step.depends_on, nodes
        )
        if before.blocked_reason:
            raise DeferredStep(before.blocked_reason, "Apply again once it has completed.")
        return before

    def _deliver(
        self,
        step: ApplyStep,
        ranks: Sequence[PlacedRank],
        listings: Mapping[str, Listing],
        replaced: ReplacedRun,
    ) -> tuple[DeliveryRecord, ...]:
        """Have the weights on the nodes; what moved. Deferred if there is no room before other runs have ended."""
        try:
            return self._delivery.deliver(step, [rank.assignment for rank in ranks], listings)
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
        before: BlockingRuns,
        replaced: ReplacedRun,
    ) -> list[PlacedRank]:
        cluster = self._cluster(step)
        among = [before.node] if before.node else None
        nodes = self._placer.place_run(
            cluster,
            step.address,
            run.key,
            step.job_spec.compute,
            listings,
            among,
            replaced_key=replaced.key,
            resumed=step.resumed,
        )
        project = step.job_spec.project
        used = (step.lookup(address) for address in step.depends_on if address.kind is Kind.CACHE)
        caches = {cache.cache_spec.scope: cache for cache in used if cache}
        found = []
        for number, node in enumerate(nodes):
            for cache in caches.values():
                ensure_cache_on(self._agents, self._context.lineage, cache, cluster.provider, node)
            where = run_paths(
                node,
                step.address,
                project,
                run,
                number,
                cache=directory_on(node, caches.get("project")),
                team=directory_on(node, caches.get("team")),
            )
            agent = self._agents.of(cluster.provider, node)
            found.append(
                PlacedRank(number, RankAssignment(node, agent, cluster.cluster_spec), where)
            )
        return found

    def _prepare_rank(self, begun: RunStart, rank: PlacedRank) -> PreparedRank:
        """Have on a rank's node what it needs but weights."""
        step = begun.step
        archive = self._ship_code(begun, rank)
        venv = self._environment(step, rank)
        image = pull_image(step, rank.agent, rank.node.root, self._context.lineage, self._secrets)
        return PreparedRank(rank, archive, venv, image)

    def _ship_code(self, begun: RunStart, rank: PlacedRank) -> str:
        """Have the code on the node; the sha256 of the archive there. Jobs that share it don't send it at the same time."""
        step, repeated = begun.step, begun.repeated_run
        digest = step.job_spec.code.digest or ""

        def archive() -> AbstractContextManager[Iterator[bytes]]:
            if repeated is not None:
                return fetch_code(RunControl(self._agents, step.lookup), repeated, digest)
            return self._packed(step)

        with self._shipping(rank.node.id, digest):
            return send_code(rank.agent, rank.node.root, digest, self._context.lineage, archive)

    def _shipping(self, node: str, digest: str) -> threading.Lock:
        with self._lock:
            return self._locks.setdefault((node, digest), threading.Lock())

    @contextmanager
    def _packed(self, step: ApplyStep) -> Iterator[Iterator[bytes]]:
        with pack(self._planned_code(step)) as tar:
            self._planned_code(step)  # nobody wrote to it while it was packed
            yield tar

    def _planned_code(self, step: ApplyStep) -> CodeSource:
        planned = step.job_spec.code
        code = scan(self._context.directory, planned.path, self._context.withheld)
        if code.tree.digest != planned.digest:
            raise StalePlan(
                "the code has changed since the plan was made",
                f"Last modified: {_newest(code)}. Plan again; exclude files that are not code with .trainctlignore.",
                address=str(step.address),
            )
        return code

    def _environment(self, step: ApplyStep, rank: PlacedRank) -> str | None:
        """The environment that the job's requirements make on the node, if it has any: built before anything large moves."""
        requirements = step.job_spec.runtime.requirements
        if not requirements:
            return None

        def on_event(event: Mapping[str, Any]) -> None:
            step.progress(f"installing {requirements}", 0, 0)

        request = EnvironmentRequest(
            root=rank.node.root,
            code=step.job_spec.code.digest or "",
            requirements=requirements,
        )
        return rank.agent.call(BUILD_ENVIRONMENT, request, on_event=on_event)["venv"]

    def _checkpoint_secrets(self, step: ApplyStep, run: RunRecord) -> Mapping[str, str]:
        """What opens the store, if the run has to do with it."""
        runtime = step.job_spec.runtime
        if not runtime.checkpointing_config.enabled and not runtime.loads:
            return {}
        return self._checkpoints.values(run.store or {})

    def _requests(
        self,
        step: ApplyStep,
        run: RunRecord,
        prepared: Sequence[PreparedRank],
        listings: Mapping[str, str],
        before: BlockingRuns,
    ) -> list[StartRequest]:
        """What starts each rank."""
        gang = self._gang(prepared[0].rank) if len(prepared) > 1 else None
        names = sorted(set(step.job_spec.runtime.secret_environment.values()))
        values = {name: self._secrets.value(name) for name in names}
        values |= self._checkpoint_secrets(step, run)
        found: list[StartRequest] = []
        for one in prepared:
            surroundings: DeploymentSpec = {
                "follows": [{"key": run.key, "address": str(job)} for job, run in before.follows],
                "turn": {"apply": self._apply, "index": self._queue_positions.get(step.address, 0)},
                "cache": cache_settings(one.rank.assignment.cluster)["dir"],
                "store": self._checkpoints.store(step.job_spec, run.store or {}),
                "load": references(step.job_spec),
                "gang": gang,
                "container": one.image.container if one.image else None,
            }
            spec = build_run_spec(step, run, one, self._context.lineage, listings, surroundings)
            node = one.rank.node
            found.append({"root": node.root, "data": node.data, "run": spec, "secrets": values})
        return found

    def _gang(self, leader: PlacedRank) -> GangSpec:
        """How rank 0 is reached: its addresses, the preferred first, and the ports that others may connect to there."""
        node = leader.node
        addresses = leader.agent.call(ADDRESSES, RootRequest(root=node.root))["addresses"]
        return {"addresses": leader_addresses(node, addresses), "ports": node.ports}


def _newest(code: CodeSource) -> str:
    """The file that was written last."""
    times = {}
    for file in code.files:
        with suppress(OSError):  # it may be gone again
            times[file.path] = (code.root / file.path).lstat().st_mtime
    return max(times, key=times.__getitem__, default="none of its files")


def _mirrored(step: ApplyStep, listings: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Of the weights that were mirrored in this apply, what it took."""
    for address in map(Address.parse, listings):
        fetched = step.needed(address).outputs.get("fetched")
        if fetched and step.seconds_of(address):
            yield {"weights": str(address), **MirroringRecord.from_json(fetched).to_json()}
