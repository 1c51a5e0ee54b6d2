"""Find unsupported settings, leaked secrets, sources inside the mirror."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.buckets.location import parse_bucket_location
from trainctl.desired.values import DesiredState
from trainctl.errors import SourceError
from trainctl.inputs.environment import weights_variable
from trainctl.model.address import Address, Kind
from trainctl.model.diagnostics import Diagnostic, error
from trainctl.model.specs.resource import DesiredResource
from trainctl.operations.directories import directory_of
from trainctl.operations.mirrors import mirror_url
from trainctl.operations.workspace import Workspace
from trainctl.plan.values import WeightsFacts
from trainctl.plugin_api import discovery
from trainctl.resources.weights import source_request_of
from trainctl.store import keys
from trainctl.weights.patterns import select
from trainctl.weights.resolution import SourceRequest


def unsupported(desired: DesiredState) -> list[Diagnostic]:
    """Return an error for each unsupported setting."""
    providers = frozenset(discovery.plugin_names(discovery.PROVIDERS))
    errors: list[Diagnostic] = []
    url = desired.checkpoints.url
    if url is not None and not url.startswith(("file:", "s3:")):
        errors.append(
            error(
                f"checkpoints: {url.partition(':')[0]}:// is not supported by this version",
                "Use file:///DIRECTORY or s3://BUCKET/PREFIX (with endpoint_url for other S3-compatible servers).",
                code="unsupported",
            )
        )
    for resource in desired.resources.values():
        if resource.address.kind is Kind.CLUSTER:
            errors += _check_cluster(resource, providers)
        elif resource.address.kind is Kind.JOB:
            errors += _check_job(resource)
    return errors


def _check_cluster(cluster: DesiredResource, providers: frozenset[str]) -> Iterator[Diagnostic]:
    if cluster.provider not in providers:
        yield _resource_error(
            cluster,
            f"unknown provider {cluster.provider!r}",
            f"Installed: {', '.join(sorted(providers))}. {discovery.installation_hint(cluster.provider)}",
            code="missing-provider",
        )
    shared = cluster.cluster_spec.cache.cluster
    if shared and not shared.dir:
        yield _resource_error(
            cluster,
            "`cache.cluster` has no directory",
            "Use `cluster: {dir: /DIRECTORY}` with a directory that all nodes of the cluster share, or remove it.",
            code="unsupported",
        )


def _check_job(job: DesiredResource) -> Iterator[Diagnostic]:
    spec = job.job_spec
    if spec.in_container and (spec.runtime.venv or spec.runtime.requirements):
        detail = "Install the packages in the image, or set runtime.engine: host."
        summary = "runtime.venv and runtime.requirements are only supported without a container"
        yield _resource_error(job, summary, detail, code="host-only")
    first: dict[str, Address] = {}
    for address in (weights.address for weights in spec.weights):
        other = first.setdefault(weights_variable(address), address)
        if other != address:
            yield _resource_error(
                job,
                f"{other} and {address} would both be {weights_variable(address)}",
                "Rename one of them: names must differ in letters or digits, not only in punctuation.",
                code="shared-variable",
            )


def _resource_error(
    resource: DesiredResource, summary: str, detail: str, *, code: str
) -> Diagnostic:
    return error(summary, detail, address=str(resource.address), code=code)


def secret_leaks(
    workspace: Workspace, weights: Mapping[Address, WeightsFacts]
) -> Iterator[Diagnostic]:
    """Find known secret values in attributes and upstream file names.

    State, plan files and listings contain both, and cannot redact them.
    """
    redact = workspace.settings.redactor.redact
    for address, resource in workspace.desired.resources.items():
        text = json.dumps([str(address), dict(resource.attributes)], ensure_ascii=False)
        if redact(text) != text:
            yield error(
                "the manifest contains the value of a secret",
                "Refer to the secret instead: `environment_variables: {NAME: {secret: …}}`, or `auth` of a source. If the text only looks like it, change the secret.",
                address=redact(str(address)),
                where=resource.where,
                code="secret-in-manifest",
            )
        facts = weights.get(address)
        resolved = facts.resolved if facts else None
        if resolved and any(redact(text) != text for text in _file_names(resolved)):
            yield error(
                "a file name upstream contains the value of a secret",
                "Exclude the file with ignore_patterns, and change the secret: it is visible upstream.",
                address=str(address),
                code="secret-in-file-name",
            )


def _file_names(resolved: ResolvedSource) -> Iterator[str]:
    """Yield the revision and the paths, in batches, as there may be millions."""
    yield resolved.revision
    paths = (file.path for file in resolved.files)
    while batch := "\n".join(islice(paths, 1000)):
        yield batch


_SAMPLE_OBJECTS = (keys.blob("0" * 64), keys.listing("0" * 64))
"""Keys of a mirror's objects, to test whether a source's patterns exclude them."""


def mirror_overlaps(workspace: Workspace) -> Iterator[Diagnostic]:
    """Find sources that contain the mirror or are inside it. Makes no request."""
    desired, environ = workspace.desired, workspace.settings.environ
    url = mirror_url(desired, workspace.provider, environ)
    if url.startswith("file:"):
        mirror: str | None = _directory_prefix(directory_of(url, "mirror"))
    else:
        mirror = _bucket_prefix(url, desired.mirror.endpoint_url, environ)
    for address, resource in desired.resources.items():
        if mirror is None or address.kind is not Kind.WEIGHTS:
            continue
        request = source_request_of(resource.weights_spec, workspace.settings.directory)
        source = _source_prefix(request, environ)
        if source is None:
            continue
        relation, advice = "is inside the mirror", "Name"
        if not source.startswith(mirror):
            inside = mirror[len(source) :]
            objects = [SourceFile(f"{inside}{key}", 0, "") for key in _SAMPLE_OBJECTS]
            overlaps = mirror.startswith(source)
            if not overlaps or not select(objects, request.allow, request.ignore)[0]:
                continue
            relation = "contains the mirror"
            advice = (
                f"Exclude the mirror with ignore_patterns: [{json.dumps(f'/{inside}')}], or use"
            )
        yield error(
            f"{request.source} {relation} {url}, so that mirroring changes the source",
            f"{advice} another location in mirror: {{url: …}}.",
            address=str(address),
            where=resource.where,
            code="mirror-in-source",
        )


def _source_prefix(request: SourceRequest, environ: Mapping[str, str]) -> str | None:
    """Return a prefix of the source's files; None for invalid sources."""
    try:
        uri = request.uri
    except SourceError:
        return None
    if uri.is_local:
        return _directory_prefix(Path(uri.location))
    return _bucket_prefix(uri.text, request.endpoint_url, environ)


def _directory_prefix(path: Path) -> str:
    """Return the prefix of all paths in a directory, with symlinks resolved."""
    return os.path.join(os.path.realpath(path), "")  # noqa: PTH118


def _bucket_prefix(url: str, endpoint: str | None, environ: Mapping[str, str]) -> str | None:
    """Return server and key prefix of a bucket's URL; None for other URLs."""
    try:
        place = parse_bucket_location(url, endpoint, environ)
    except (SourceError, ValueError):
        return None
    server = place.endpoint if place.endpoint and not place.is_own(place.endpoint) else ""
    return f"{server} {place.url}/"
