"""Inspect the nodes of clusters that jobs are for: mounts, space, GPUs, images, cached bytes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainctl.base.parallel import each
from trainctl.base.protocol import host
from trainctl.base.protocol.host import (
    FACTS,
    Facts,
    FactsRequest,
    FreeResourcesRequest,
    MissingHostRequirements,
)
from trainctl.base.protocol.weights import CacheQueryResponse
from trainctl.errors import NodeError, TrainctlError
from trainctl.jobs.checkout import is_from_checkout
from trainctl.jobs.host_requirements import HostRequirements
from trainctl.ledger.state import RecordedResource, State
from trainctl.model.address import Address, Kind
from trainctl.model.delivery import HOPS, DeliveryRecord, ServingCapability
from trainctl.model.diagnostics import Diagnostic, error, warning
from trainctl.model.specs.job_spec import JobSpec
from trainctl.model.specs.resource import ClusterSpec, DesiredResource
from trainctl.operations.survey.gpus import gpu_problems, machine_problems, usable_gpus
from trainctl.operations.survey.mirror import MirrorSurveyResult
from trainctl.operations.survey.tiers import TierQuery
from trainctl.operations.survey.weights import WeightsSurveyResult
from trainctl.operations.workspace import Workspace
from trainctl.plan.transfers.weights import mirroring_rate, transfer_rate
from trainctl.plan.validation.hosts import image_of
from trainctl.plan.values import (
    GpuFacts,
    ImageFacts,
    ImageSelection,
    NodeCapacity,
    NodeFacts,
)
from trainctl.plugin_api import discovery
from trainctl.plugin_api.provider import Node
from trainctl.resources.agents import recorded_or_planned
from trainctl.resources.clusters import cache_target, provider_cluster
from trainctl.resources.run_control import QUERY_SECONDS, runs_of
from trainctl.store.maintenance.survey import SourceSurvey


class _MirrorProximity:
    """Where the mirror is, as seen from nodes."""

    def __init__(self, workspace: Workspace, seen: MirrorSurveyResult) -> None:
        self._agents = workspace.agents
        self._mirror = workspace.mirror
        self._seen = seen

    def of(self, provider: str, node: Node, serving: ServingCapability) -> dict[str, Any]:
        """The facts about the mirror as seen from a node; one in a bucket, or that can't be located, is near to no node."""
        if self._mirror.in_a_bucket:
            return {"sees_mirror": False, "mirror_on": self._mirror.url}
        try:
            place = self._mirror.place
        except NodeError:
            return {"sees_mirror": False, "mirror_on": "the mirror's host"}
        near = self._agents.sees(provider, node, place)
        on = place.node.id if place else ""
        if near:
            return {"sees_mirror": True, "mirror_on": on}
        unserved = self._seen.serving.blocked_reason(serving)
        tls = self._seen.serving.tls
        return {
            "sees_mirror": False,
            "mirror_on": on,
            "unserved_reason": unserved,
            "mirror_tls": tls,
        }


@dataclass(slots=True)
class NodesSurveyResult:
    """Of each cluster the nodes that its provider plans, and what those that could be asked said."""

    names: dict[Address, tuple[str, ...]] = field(default_factory=dict)
    prices: dict[str, float] = field(default_factory=dict)
    facts: dict[Address, tuple[NodeFacts, ...]] = field(default_factory=dict)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    unreachable_nodes: set[str] = field(default_factory=set)
    """The ids of the others, of which a diagnostic each says why."""


@dataclass(frozen=True, slots=True)
class _JobRequirements:
    """What one job wants of a host: mounts at absolute places, directories to mount, (venv, program), kind of GPU, image."""

    mounts: tuple[str, ...]
    sources: tuple[str, ...]
    host: tuple[str | None, str] | None
    accelerator: str
    image: ImageSelection | None


@dataclass(frozen=True, slots=True)
class _NodeQuery:
    """What is asked of one node."""

    provider: str
    node: Node
    jobs: Mapping[Address, _JobRequirements]
    weights: Mapping[Address, SourceSurvey]
    rates: Mapping[str, float]
    cluster: ClusterSpec
    one_of_several: bool


def survey_nodes(
    workspace: Workspace,
    state: State,
    weights: WeightsSurveyResult,
    needs: Mapping[Address, HostRequirements],
    *,
    asked: Callable[[str], bool],
    parallelism: int,
) -> NodesSurveyResult:
    """Ask the nodes of every cluster that jobs are for, those that don't exist yet through their provider's preview of them; ``asked``: of a provider, whether its nodes are."""
    seen = NodesSurveyResult()
    near = _MirrorProximity(workspace, weights.mirror)
    questions: list[tuple[Address, _NodeQuery]] = []
    installed = frozenset(discovery.plugin_names(discovery.PROVIDERS))
    directory = workspace.settings.directory
    for address, resource in workspace.desired.resources.items():
        if address.kind is Kind.CLUSTER and resource.provider in installed:
            planned = _planned_nodes(workspace, resource)
            nodes = _current_nodes(state, resource, planned)
            seen.names[address] = tuple(node.name for node in nodes)
            prices = {node.id: node.price_per_hour for node in planned}
            seen.prices |= {node: price for node, price in prices.items() if price is not None}
            jobs = {one.address: one.job_spec for one in workspace.desired.jobs_on(address)}
            wanted = {
                job: _job_requirements(found, needs.get(job), directory)
                for job, found in jobs.items()
            }
            weights_there, rates = (
                _needed_surveys(jobs.values(), weights.surveys),
                _transfer_rates(state, address),
            )
            questions += [
                (
                    address,
                    _NodeQuery(
                        resource.provider,
                        node,
                        wanted,
                        weights_there,
                        rates,
                        resource.cluster_spec,
                        one_of_several=len(nodes) > 1,
                    ),
                )
                for node in (nodes if jobs else ())
            ]
    reached = [(cluster, one) for cluster, one in questions if asked(one.provider)]
    _query_nodes(workspace, reached, near, seen, parallelism)
    for address in seen.names:
        mine = [question.node for cluster, question in questions if cluster == address]
        said = seen.facts.get(address, ())
        seen.diagnostics += gpu_problems(workspace.desired, address, mine, said)
        seen.diagnostics += machine_problems(workspace.desired, address, len(mine), said)
    return seen


def _query_nodes(
    workspace: Workspace,
    questions: list[tuple[Address, _NodeQuery]],
    near: _MirrorProximity,
    seen: NodesSurveyResult,
    parallelism: int,
) -> None:
    answers = each(lambda one: _query_node(workspace, one[1], near), questions, parallelism)
    for (address, question), answer in zip(questions, answers, strict=True):
        if isinstance(answer, NodeFacts):
            seen.facts[address] = (*seen.facts.get(address, ()), answer)
            seen.diagnostics += _unusable_diagnostics(answer, address, question.node)
        else:
            seen.unreachable_nodes.add(question.node.id)
            seen.diagnostics.append(_unqueried_warning(answer, address, question.node))


def _unusable_diagnostics(facts: NodeFacts, cluster: Address, node: Node) -> list[Diagnostic]:
    """Of a node that is there already its runs tell what went wrong."""
    if node.key or not facts.unusable:
        return []
    summary = f"cannot create node {node.id}: {facts.unusable}"
    advice = (
        "Make the directory writable, or use another: dir: of the host, or cache: {node: {dir: …}}."
    )
    return [error(summary, advice, address=str(cluster), code=NodeError.default_code)]


def _unqueried_warning(why: TrainctlError, cluster: Address, node: Node) -> Diagnostic:
    made = "The plan uses the recorded state." if node.root else ""
    detail = f"{why.detail} {made}".strip()
    return warning(why.summary, detail, address=str(cluster), code=why.code)


def _planned_nodes(workspace: Workspace, cluster: DesiredResource) -> tuple[Node, ...]:
    wish = provider_cluster(cluster.address.name, cluster.cluster_spec)
    return tuple(workspace.provider(cluster.provider).plan(wish))


def _current_nodes(
    state: State, cluster: DesiredResource, planned: Iterable[Node]
) -> tuple[Node, ...]:
    recorded = state.resources.get(cluster.address)
    return tuple(recorded_or_planned(node, recorded) for node in planned)


def _job_requirements(
    job: JobSpec, needs: HostRequirements | None, directory: Path
) -> _JobRequirements:
    host, image = None, image_of(job)
    if needs is not None and not job.runtime.requirements:
        venv = job.runtime.venv
        own = venv and is_from_checkout(Path(venv).expanduser(), directory)
        # An interpreter that came with the manifest is not run to be asked.
        host = (venv, "" if own else needs.program)
    return _JobRequirements(
        tuple(place for place in job.mount_locations if place.startswith("/") and image is None),
        tuple(mount.host_path for mount in job.mounts),
        host,
        job.compute.gpu_kind,
        image,
    )


def _needed_surveys(
    jobs: Iterable[JobSpec], known: Mapping[Address, SourceSurvey]
) -> dict[Address, SourceSurvey]:
    addresses = {weights.address for job in jobs for weights in job.weights}
    return {address: known[address] for address in sorted(addresses) if address in known}


def _transfer_rates(state: State, cluster: Address) -> dict[str, float]:
    """Bytes a second into the mirror and onto the cluster's nodes, as the largest transfers on record showed."""
    runs = [run for job in _recorded_jobs(state, cluster) for run in runs_of(job)]
    onto_nodes = [(run.delivered, run.phases.get("delivering", 0.0)) for run in runs]
    rates = {"upstream": mirroring_rate(state), "mirror": transfer_rate(onto_nodes)}
    rows = [DeliveryRecord.from_json(row) for run in runs for row in run.deliveries]
    for path, hop in HOPS.items():
        measured = transfer_rate((row.moved, row.seconds) for row in rows if row.path == path)
        rates[hop] = measured or rates.get(hop)
    return {hop: rate for hop, rate in rates.items() if rate}


def _recorded_jobs(state: State, cluster: Address) -> list[RecordedResource]:
    return [
        recorded
        for address, recorded in state.resources.items()
        if address.kind is Kind.JOB and recorded.job_spec.cluster == cluster.name
    ]


def _query_node(
    workspace: Workspace, question: _NodeQuery, near: _MirrorProximity
) -> NodeFacts | TrainctlError:
    try:
        node = _locate(workspace, question)
    except NodeError as error:
        return error
    agent = workspace.agents.ephemeral_agent(question.provider, node)
    jobs = question.jobs.values()
    hosts = sorted({job.host for job in jobs if job.host}, key=repr)
    images = list(dict.fromkeys(job.image for job in jobs if job.image))
    where = cache_target(node, question.cluster)
    cached = TierQuery(where, question.weights)
    kinds = sorted({job.accelerator for job in jobs} - {""})
    free_resources = FreeResourcesRequest(root=node.root, declared=node.gpus, accelerators=kinds)
    request = FactsRequest(
        **where,
        data=node.data,
        mounts=sorted({place for job in jobs for place in job.mounts}),
        sources=sorted({path for job in jobs for path in job.sources}),
        accelerators=kinds,
        images=[{"image": wish.image, "engine": wish.engine} for wish in images],
        hosts=[{"venv": venv, "program": program} for venv, program in hosts],
        cached=cached.request,
        free_resources=free_resources if question.one_of_several else None,
    )
    try:
        facts = agent.call(FACTS, request, timeout=QUERY_SECONDS)
        seen = facts["cached"] or CacheQueryResponse(trees=[], blobs=[])
        counted = cached.counted(seen)
    except NodeError as error:
        return error
    gpus = tuple(GpuFacts(one["name"], tuple(one["is"])) for one in facts["gpus"])
    problem = facts["gpus_problem"] or ""
    serving = ServingCapability(**facts["serving"])
    return NodeFacts(
        id=node.id,
        mount=facts["mount"],
        disk_free=sys.maxsize if facts["disk_free"] is None else facts["disk_free"],
        unusable=facts["unusable"],
        cpus=facts["cpus"],
        memory=facts["memory"],
        tiers={address: one.tiers for address, one in counted.items()},
        rates=question.rates,
        weights_space=seen.get("room"),
        weights_space_max=seen.get("most"),
        limit=where["cache"]["size"],
        shared_cache="shared" in where,
        **(near.of(question.provider, node, serving) if question.weights else {}),
        max_rate=where.get("max_rate"),
        serving=serving,
        claims={address: one.claim for address, one in counted.items()},
        detail="; ".join(f"{one['path']}: {one['why']}" for one in facts["blocked"]),
        missing_requirements=_missing_requirements(
            question.jobs, facts, dict(zip(hosts, facts["hosts"], strict=True))
        ),
        logout="" if facts["logout"]["survives"] else "{why}. {fix}".format(**facts["logout"]),
        gpus=gpus,
        gpus_problem=problem,
        usable_gpus=usable_gpus(node, gpus, problem),
        images={
            wish: ImageFacts(one["engine"], one["present"], one["why"])
            for wish, one in zip(images, facts["images"], strict=True)
        },
        free_resources=_node_vacancy(facts["free_resources"]),
    )


def _locate(workspace: Workspace, question: _NodeQuery) -> Node:
    node = question.node
    if node.key:
        return node
    cluster = provider_cluster(node.cluster, question.cluster)
    return workspace.provider(question.provider).locate(cluster, node)


def _node_vacancy(found: host.FreeResources | None) -> NodeCapacity | None:
    """What counts when a run gets one of several nodes."""
    if found is None:
        return None
    gpus = tuple(GpuFacts(one["name"], tuple(one["is"]), one["free"]) for one in found["gpus"])
    return NodeCapacity(gpus, len(found["live"]))


def _missing_requirements(
    jobs: Mapping[Address, _JobRequirements],
    facts: Facts,
    hosts: Mapping[Any, MissingHostRequirements],
) -> dict[Address, tuple[str, ...]]:
    absent = frozenset(facts["absent"])
    found = {
        address: (
            *(f"directory {path} to mount not found" for path in wanted.sources if path in absent),
            *(hosts[wanted.host]["lacks"] if wanted.host else ()),
        )
        for address, wanted in jobs.items()
    }
    return {
        address: missing_requirements
        for address, missing_requirements in found.items()
        if missing_requirements
    }
