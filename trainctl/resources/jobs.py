"""Jobs: each creation or replacement is one run, delivered to its node and started there exactly once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from trainctl.apply.step import Deferred, Lookup, Step, StepFailed
from trainctl.errors import (
    Busy,
    Interrupted,
    NodeError,
    NodeUnreachable,
    StalePlan,
    TrainctlError,
)
from trainctl.jobs.checkpoints import CheckpointAccess, references
from trainctl.jobs.code import Code, packed, scan
from trainctl.jobs.environment import RunPlaces, places, secret_environment
from trainctl.jobs.secrets import Secrets
from trainctl.ledger.state import Intent, Recorded
from trainctl.model.action import Action
from trainctl.model.address import Address, Kind
from trainctl.model.run import RankRecord, RunRecord, RunStatus, run_id
from trainctl.plan.values import Change, Observation
from trainctl.remote.agent import NodeAgent
from trainctl.resources.agents import Agents, nodes_of
from trainctl.resources.archives import fetched, ship
from trainctl.resources.beginnings import Beginning, begin
from trainctl.resources.caches import scope_of
from trainctl.resources.checkpoints import Checkpoints, checkpoint_store_error
from trainctl.resources.delivery import Delivery, Seat, listings_of
from trainctl.resources.following import ahead, seat
from trainctl.resources.home import Home
from trainctl.resources.images import PulledImage, pulled_image
from trainctl.resources.node_cache import at, cache_settings
from trainctl.resources.origins import Origins
from trainctl.resources.run_control import STOP_GRACE_SECONDS, RunControl, runs_of
from trainctl.resources.runs import order, specification, with_status
from trainctl.spi.provider import Node, Presence
from trainctl.weights.mirror.directory import DirectoryMirror

_NEW_RUN = frozenset({Action.CREATE, Action.REPLACE})


@dataclass(frozen=True, slots=True)
class _Rank:
    """One rank on its node."""

    seat: Seat
    where: RunPlaces

    @property
    def node(self) -> Node:
        """The node."""
        return self.seat.node

    @property
    def agent(self) -> NodeAgent:
        """How it is asked."""
        return self.seat.agent


class JobHandler:
    """Runs jobs."""

    def __init__(
        self,
        agents: Agents,
        mirror: DirectoryMirror,
        secrets: Secrets,
        home: Home,
        checkpoints: CheckpointAccess,
        *,
        delete_checkpoints: bool = False,
    ) -> None:
        self._agents = agents
        self._mirror = mirror
        self._secrets = secrets
        self._home = home
        self._checkpoints = checkpoints
        self._delete_checkpoints = delete_checkpoints
        self._lock = threading.Lock()
        self._locks: dict[tuple[str, str], threading.Lock] = {}
        self._delivery = Delivery(mirror, home, Origins(agents, mirror.root, secrets.register))

    def carry_out(self, step: Step) -> Mapping[str, Any]:
        """One new run; for an update the record alone. A run that could not be deployed is recorded as such."""
        earlier = runs_of(step.recorded)
        if step.action is Action.UPDATE:
            if earlier and earlier[-1].status.live:
                control = RunControl(self._agents, step.lookup)
                control.reorder(
                    earlier[-1], order(step.address, step.attributes, self._home.lineage)
                )
            return _outputs(*earlier)
        if earlier and earlier[-1].status.live:
            earlier = (*earlier[:-1], RunControl(self._agents, step.lookup).stop(earlier[-1]))
        run = RunRecord(run_id(step.key), len(earlier) + 1, step.key, created_at=time.time())
        project = str(step.attributes["project"])
        run = replace(run, store=self._checkpoints.place(step.address, project, run))
        try:
            begun = begin(RunControl(self._agents, step.lookup), self._mirror, step, earlier)
            self._checkpoint_secrets(begun.step, run)  # before anything moves
            run = self._deploy(begun, begun.mark(run))
        except (NodeUnreachable, Interrupted):
            raise  # nobody knows whether it was started: the intent stays open, and the next apply finds out
        except TrainctlError as error:
            failed = replace(
                run, status=RunStatus.DEPLOY_FAILED, error=error.summary, ended_at=time.time()
            )
            raise StepFailed(error, _outputs(*earlier, failed)) from error
        if run.status is RunStatus.DEPLOY_FAILED:
            raise StepFailed(_why_not_started(run), _outputs(*earlier, run))
        return _outputs(*earlier, run)

    def delete(self, step: Step) -> None:
        """Stop what runs and remove every run's directory. Checkpoints stay, unless the user said otherwise."""
        control = RunControl(self._agents, step.lookup)
        for run in runs_of(step.recorded):
            if run.status.live:
                control.stop(run)
            control.remove(run)
            if self._delete_checkpoints:
                project = str(step.attributes["project"])
                Checkpoints(control, self._checkpoints, step.address, project, run).remove()

    def abandon(self, intent: Intent, lookup: Lookup) -> None:
        """Stop and remove the run that an interrupted attempt may have started."""
        cluster = lookup(Address(Kind.CLUSTER, str(intent.inputs.get("cluster"))))
        if cluster is None:
            return
        for node in nodes_of(cluster):
            agent = self._agents.of(cluster.provider, node)
            agent.call(
                "stop", {"root": node.root, "key": intent.key, "grace_seconds": STOP_GRACE_SECONDS}
            )
            agent.call("remove", {**at(node, cluster.attributes), "key": intent.key})

    def read(self, recorded: Recorded, lookup: Lookup) -> Observation:
        """The newest run as its nodes tell it; nobody is asked about a run that has ended."""
        return observed(RunControl(self._agents, lookup), [recorded])[recorded.address]

    def _deploy(self, begun: Beginning, run: RunRecord) -> RunRecord:
        """Deliver weights and code to the rank's node and start it; the record of the run that then runs."""
        step = begun.step
        rank = self._place(step, run)
        listings = listings_of(step)
        began = time.monotonic()
        archive = self._ship_code(begun, rank)
        venv = self._environment(step, rank)
        image = pulled_image(step, rank.agent, rank.node.root, self._home.lineage, self._secrets)
        moved = self._delivery.deliver(step, [rank.seat], listings)
        run = replace(
            run,
            image_digest=image.digest if image else None,
            code=step.attributes["code"]["digest"],
            code_archive=archive,
            delivered=sum(one.moved for one in moved),
            deliveries=tuple(one.to_json() for one in moved),
            ranks=(RankRecord(0, rank.node.id, RunStatus.DEPLOYING),),
            phases={
                "mirroring": max(
                    (step.seconds_of(Address.parse(address)) for address in listings), default=0.0
                ),
                "provisioning": step.seconds_of(
                    Address(Kind.CLUSTER, str(step.attributes["cluster"]))
                ),
                "delivering": round(time.monotonic() - began, 3),
            },
        )
        step.stop_if_cancelled()
        return self._start(begun.step, rank, run, listings, venv, image)

    def _checkpoint_secrets(self, step: Step, run: RunRecord) -> Mapping[str, str]:
        """What opens the store, if the run has to do with it."""
        keeps = step.attributes["runtime"]["checkpointing_config"].get("enabled")
        if not keeps and not references(step.attributes):
            return {}
        return self._checkpoints.values(run.store or {})

    def _place(self, step: Step, run: RunRecord) -> _Rank:
        cluster = step.needed(Address(Kind.CLUSTER, str(step.attributes["cluster"])))
        node = seat(cluster)
        if node is None:
            raise TrainctlError(f"{cluster.address} has no node", code="not-applied-yet")
        project = str(step.attributes["project"])
        used = (step.lookup(address) for address in step.depends_on if address.kind is Kind.CACHE)
        caches = {scope_of(cache): cache.outputs["directory"] for cache in used if cache}
        where = places(
            node,
            step.address,
            project,
            run,
            0,
            cache=caches.get("project"),
            team=caches.get("team"),
        )
        agent = self._agents.of(cluster.provider, node)
        return _Rank(Seat(node, agent, cluster.attributes), where)

    def _ship_code(self, begun: Beginning, rank: _Rank) -> str:
        """Have the code on the node; the sha256 of the archive there. Jobs that share it don't send it at the same time."""
        step, repeated = begun.step, begun.repeats
        digest = step.attributes["code"]["digest"]

        def archive() -> AbstractContextManager[Iterator[bytes]]:
            if repeated is not None:
                return fetched(RunControl(self._agents, step.lookup), repeated, digest)
            return self._packed(step)

        with self._shipping(rank.node.id, digest):
            return ship(rank.agent, rank.node.root, digest, self._home.lineage, archive)

    def _shipping(self, node: str, digest: str) -> threading.Lock:
        with self._lock:
            return self._locks.setdefault((node, digest), threading.Lock())

    @contextmanager
    def _packed(self, step: Step) -> Iterator[Iterator[bytes]]:
        with packed(self._planned_code(step)) as tar:
            self._planned_code(step)  # nobody wrote to it while it was packed
            yield tar

    def _planned_code(self, step: Step) -> Code:
        planned = step.attributes["code"]
        code = scan(self._home.directory, planned["path"], self._secrets.files())
        if code.tree.digest != planned["digest"]:
            raise StalePlan(
                "the code changed after it was planned", "Plan again.", address=str(step.address)
            )
        return code

    def _environment(self, step: Step, rank: _Rank) -> str | None:
        """The environment that the job's requirements make on the node, if it has any: built before anything large moves."""
        requirements = step.attributes["runtime"].get("requirements")
        if not requirements:
            return None

        def on_event(event: Mapping[str, Any]) -> None:
            step.progress(f"installing {requirements}", 0, 0)

        request = {
            "root": rank.node.root,
            "code": step.attributes["code"]["digest"],
            "requirements": requirements,
        }
        return str(rank.agent.call("build_environment", request, on_event=on_event)["venv"])

    def _start(
        self,
        step: Step,
        rank: _Rank,
        run: RunRecord,
        listings: Mapping[str, str],
        venv: str | None,
        image: PulledImage | None,
    ) -> RunRecord:
        control = RunControl(self._agents, step.lookup)
        before = ahead(control, step.lookup, step.depends_on, rank.node)
        if before.why_not:
            raise Deferred(before.why_not, "Apply again once it has completed.")
        spec = specification(
            step.address,
            step.attributes,
            run,
            rank.where,
            self._home.lineage,
            listings,
            gpus=rank.node.gpus,
            venv=venv,
            checkpoints=self._checkpoints.specification(step.attributes, run.store or {}),
            container=image.container if image else None,
        )
        spec["follows"] = [{"key": one.key, "address": str(job)} for job, one in before.follows]
        spec["cache"] = cache_settings(rank.seat.cluster)["dir"]
        names = set(secret_environment(step.attributes).values())
        opened = self._checkpoint_secrets(step, run)
        request = {
            "root": rank.node.root,
            "data": rank.node.data,
            "run": spec,
            "secrets": {**{name: self._secrets.value(name) for name in sorted(names)}, **opened},
        }

        def on_event(event: Mapping[str, Any]) -> None:
            if event.get("waiting"):
                step.progress(str(event["waiting"]), 0, 0)

        try:
            return with_status(run, [rank.agent.call("start", request, on_event=on_event)])
        except (NodeUnreachable, Busy):
            raise  # nobody can be asked; or a newer attempt has the run, and what it started is its own
        except TrainctlError:
            _make_sure_it_ended(rank, run)
            raise


def _make_sure_it_ended(rank: _Rank, run: RunRecord) -> None:
    """Whoever reads that a run could not be deployed starts another; this one may have been started before the error."""
    request = {"root": rank.node.root, "key": run.key, "grace_seconds": 0}
    try:
        rank.agent.call("stop", request)
    except TrainctlError as error:
        raise NodeUnreachable(
            f"nobody can tell whether run {run.id} was started", error.summary
        ) from error


def why_not_yet(change: Change, agents: Agents, lookup: Lookup) -> str:
    """Why a change has to wait for other runs, of which only a later apply can know the end; empty if it hasn't to."""
    if change.address.kind is not Kind.JOB or change.action not in _NEW_RUN:
        return ""
    cluster = lookup(Address(Kind.CLUSTER, str((change.after or {})["cluster"])))
    return ahead(RunControl(agents, lookup), lookup, change.depends_on, seat(cluster)).why_not


def observed(control: RunControl, jobs: Sequence[Recorded]) -> dict[Address, Observation]:
    """The newest run of each job as its nodes tell it, each node asked once; nobody is asked about one that has ended."""
    newest = {job.address: runs[-1] for job in jobs if (runs := runs_of(job))}
    live = {address: run for address, run in newest.items() if run.status.live}
    now = control.statuses(list(live.values()))
    found = {job.address: Observation(Presence.PRESENT) for job in jobs}
    for address, run in live.items():
        seen = now[run.key]
        if isinstance(seen, NodeError):
            found[address] = Observation(Presence.UNREACHABLE, detail=seen.summary)
        else:
            found[address] = Observation(Presence.PRESENT, {"run": seen.to_json()})
    return found


def _outputs(*runs: RunRecord) -> dict[str, Any]:
    return {"runs": [run.to_json() for run in runs]}


def _why_not_started(run: RunRecord) -> TrainctlError:
    said = run.error or "the run could not be started"
    return checkpoint_store_error(said) if run.cause == "checkpoints" else NodeError(said)
