"""Conversion of sections to projects, clusters, weights and secrets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trainctl.desired.names import DeclaredNames
from trainctl.desired.provider_settings import ProviderSettings, plain_json
from trainctl.desired.values import SecretSpec
from trainctl.manifest.suggestions import did_you_mean
from trainctl.manifest.tree import Path as ManifestPath
from trainctl.model.address import Address, Kind
from trainctl.model.json_codec import to_json
from trainctl.model.specs.checks import JobLifecycle, Lifecycle, SecretReference, converted
from trainctl.model.specs.document import Manifest, Project, SingleProject
from trainctl.model.specs.job_spec import Job
from trainctl.model.specs.location import CheckpointsLocation
from trainctl.model.specs.resource import (
    Cluster,
    DesiredResource,
    WeightsSpec,
)
from trainctl.model.specs.weights import InlineWeights, Weights

BUILTIN_PROVIDER = "trainctl"
"""Provider of resources that need no cluster."""


def build_resource(
    address: Address,
    provider: str,
    attributes: Mapping[str, Any],
    section: Lifecycle,
    path: ManifestPath,
    names: DeclaredNames,
    depends_on: Iterable[Address] = (),
) -> DesiredResource:
    """Create a resource, checking that ``ignore_changes`` names attributes."""
    for index, ignored in enumerate(section.ignore_changes):
        if ignored.partition(".")[0] not in attributes:
            names.report_problem(
                f"ignore_changes: unknown attribute {ignored!r}",
                did_you_mean(ignored.partition(".")[0], attributes),
                (*path, "lifecycle", "ignore_changes", index),
                code="unknown-attribute",
            )
    lifecycle = (
        section
        if isinstance(section, JobLifecycle)
        else JobLifecycle(section.prevent_destroy, section.ignore_changes)
    )
    return DesiredResource(
        address, provider, attributes, tuple(sorted(depends_on)), lifecycle, names.place(path)
    )


def projects(manifest: Manifest, only: str | None, names: DeclaredNames) -> list[DesiredResource]:
    """Return the projects; ``only`` is the name of a single project."""
    if only is None:
        return [
            _project(name, project, ("projects", name), names)
            for name, project in manifest.projects.items()
        ]
    return [_project(only, manifest.project or SingleProject(), ("project",), names)]


def _project(
    name: str, section: Project, path: ManifestPath, names: DeclaredNames
) -> DesiredResource:
    attributes = {
        "name": section.name or name,
        "description": section.description,
        "labels": dict(section.labels),
    }
    address = Address(Kind.PROJECT, name)
    return build_resource(address, BUILTIN_PROVIDER, attributes, section.lifecycle, path, names)


def clusters(
    manifest: Manifest, settings: ProviderSettings, names: DeclaredNames
) -> list[DesiredResource]:
    """Return the clusters; ``local`` if none is declared."""
    declared = names.text.entries.get("clusters")
    if declared is None or not declared.entries:
        section = Cluster(provider="local")
        return [_cluster("local", section, settings.defaults("local"), names)]
    return [
        _cluster(name, section, settings.complete(name, section), names)
        for name, section in manifest.clusters.items()
    ]


def _cluster(
    name: str, section: Cluster, settings: Mapping[str, Any], names: DeclaredNames
) -> DesiredResource:
    path: ManifestPath = ("clusters", name)
    _check_cache(section, path, names)
    attributes = {
        **settings,
        "provider": section.provider,
        "cache": to_json(section.cache),
        "price_per_hour": plain_json(section.price_per_hour),
    }
    address = Address(Kind.CLUSTER, name)
    return build_resource(address, section.provider, attributes, section.lifecycle, path, names)


def _check_cache(section: Cluster, path: ManifestPath, names: DeclaredNames) -> None:
    tiers = {"node": section.cache.node, "cluster": section.cache.cluster} if section.cache else {}
    for name, tier in tiers.items():
        directory = tier.dir if tier else None
        if directory and (not directory.startswith("/") or ".." in directory.split("/")):
            names.report_problem(
                "dir: expected an absolute directory without '..'",
                "Use for example /nvme/trainctl.",
                (*path, "cache", name, "dir"),
                code="invalid-path",
            )


def declared_weights(manifest: Manifest, names: DeclaredNames) -> list[DesiredResource]:
    """Return the weights declared in ``weights``."""
    resources = []
    for name, entry in manifest.weights.items():
        section = Weights(source=entry) if isinstance(entry, str) else entry
        address = Address(Kind.WEIGHTS, name)
        resources.append(weights(address, section, section.lifecycle, ("weights", name), names))
    return resources


def weights(
    address: Address,
    section: InlineWeights,
    lifecycle: Lifecycle,
    path: ManifestPath,
    names: DeclaredNames,
) -> DesiredResource:
    """Convert declared or inline weights."""
    secret = section.secret
    if secret is not None:
        inner = ("auth", "auth_secret_name") if section.auth else ("auth_secret_name",)
        names.known("secret", secret, (*path, *inner))
    spec = converted(section, WeightsSpec, auth=section.effective_auth)
    attributes = spec.to_attributes()
    return build_resource(address, BUILTIN_PROVIDER, attributes, lifecycle, path, names)


def secrets(manifest: Manifest, names: DeclaredNames) -> dict[str, SecretSpec]:
    """Return the sources of all secrets."""
    return {
        name: converted(
            section,
            SecretSpec,
            name=name,
            source=section.path or (section.command or [section.name or name])[0],
            version=None if section.version is None else str(section.version),
            where=names.place(("secrets", name)),
            command=section.command or (),
        )
        for name, section in manifest.secrets.items()
    }


def persisted_secrets(
    section: Job, secrets: Mapping[str, SecretSpec], store: CheckpointsLocation
) -> list[str]:
    """Return the secrets to persist on the node: all that the run needs, or none.

    All of them must be declared with ``persist``, or the run would have to wait anyway. Runs on several nodes persist
    none: after the loss of a rank the run is replaced.
    """
    if section.compute.node_count > 1:
        return []
    values = section.runtime.environment_variables.values()
    needed = {value.secret for value in values if isinstance(value, SecretReference)}
    loading = section.runtime.load_checkpoint_config
    in_bucket = store.url is not None and not store.url.startswith("file:")
    if in_bucket and (
        section.runtime.checkpointing_config.enabled or (loading and loading.enabled)
    ):
        if store.secret is None:
            return []  # credentials from the environment can't be declared with persist
        needed.add(store.secret)
    persist = all(name in secrets and secrets[name].persist for name in needed)
    return sorted(needed) if persist else []
