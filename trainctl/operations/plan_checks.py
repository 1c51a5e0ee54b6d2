"""Find unsupported settings, leaked secrets, sources inside the mirror, clusters without an offer."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.desired.values import DesiredState
from trainctl.errors import SourceError
from trainctl.inputs.environment import weights_variable
from trainctl.model.address import Address, Kind
from trainctl.model.diagnostics import Diagnostic, error
from trainctl.model.json_text import json_text
from trainctl.model.specs.job_spec import JobSpec
from trainctl.model.specs.resource import DesiredResource
from trainctl.operations.directories import directory_of
from trainctl.operations.mirrors import mirror_url
from trainctl.operations.workspace import Workspace
from trainctl.plan.values import WeightsFacts
from trainctl.plugin_api import discovery
from trainctl.store import keys
from trainctl.weights.patterns import select

if TYPE_CHECKING:
    from trainctl.plugin_api.machines import Offer


def find_problems(
    workspace: Workspace,
    weights: Mapping[Address, WeightsFacts],
    offers: Mapping[Address, Sequence[Offer]],
) -> Iterator[Diagnostic]:
    """Yield all problems that make a plan unusable."""
    yield from unsupported(workspace.desired)
    yield from mirror_overlaps(workspace)
    for address in (cluster for cluster, offered in offers.items() if not offered):
        yield error(
            f"no machine is offered for {address}",
            "Change its machine types, zones or price limit.",
            address=str(address),
            code="machine-capacity",
        )
    yield from secret_leaks(workspace, weights)


def unsupported(desired: DesiredState) -> Iterator[Diagnostic]:
    """Yield an error for each unsupported setting."""
    providers = frozenset(discovery.plugin_names(discovery.PROVIDERS))
    url = desired.checkpoints.url
    if url is not None and not url.startswith(("file:", "s3:")):
        yield error(
            f"checkpoints: {url.partition(':')[0]}:// is not supported by this version",
            "Use file:///DIRECTORY or s3://BUCKET/PREFIX (with endpoint_url for other S3-compatible servers).",
            code="unsupported",
        )
    for resource in desired.resources.values():
        if resource.address.kind is Kind.CLUSTER:
            if resource.provider not in providers:
                yield error(
                    f"unknown provider {resource.provider!r}",
                    f"Installed: {', '.join(sorted(providers))}. {discovery.installation_hint(resource.provider)}",
                    address=str(resource.address),
                    code="missing-provider",
                )
            shared = resource.cluster_spec.cache.cluster
            if shared and not shared.dir:
                yield error(
                    "`cache.cluster` has no directory",
                    "Use `cluster: {dir: /DIRECTORY}` with a directory that all nodes of the cluster share, or remove it.",
                    address=str(resource.address),
                    code="unsupported",
                )
        elif resource.address.kind is Kind.JOB:
            yield from _unsupported_in_job(resource.address, resource.job_spec)


def _unsupported_in_job(job: Address, spec: JobSpec) -> Iterator[Diagnostic]:
    if spec.in_container and (spec.runtime.venv or spec.runtime.requirements):
        yield error(
            "runtime.venv and runtime.requirements are only supported without a container",
            "Install the packages in the image, or set runtime.engine: host.",
            address=str(job),
            code="host-only",
        )
    first: dict[str, Address] = {}
    for address in (weights.address for weights in spec.weights):
        other = first.setdefault(weights_variable(address), address)
        if other != address:
            yield error(
                f"{other} and {address} would both be {weights_variable(address)}",
                "Rename one of them: names must differ in letters or digits, not only in punctuation.",
                address=str(job),
                code="shared-variable",
            )


def secret_leaks(
    workspace: Workspace, weights: Mapping[Address, WeightsFacts]
) -> Iterator[Diagnostic]:
    """Find known secret values in attributes and upstream file names.

    State, plan files and listings contain both, and cannot redact them.
    """
    redact = workspace.settings.redactor.redact
    for resource in _with_secrets(workspace.desired.resources.values(), redact):
        yield error(
            "the manifest contains the value of a secret",
            "Refer to the secret instead: `environment_variables: {NAME: {secret: …}}`, or `auth` of a source. If the text only looks like it, change the secret.",
            address=redact(str(resource.address)),
            where=resource.where,
            code="secret-in-manifest",
        )
    for address, facts in weights.items():
        resolved = facts.resolved if address in workspace.desired.resources else None
        if resolved and any(redact(text) != text for text in _file_names(resolved)):
            yield error(
                "a file name upstream contains the value of a secret",
                "Exclude the file with ignore_patterns, and change the secret: it is visible upstream.",
                address=str(address),
                code="secret-in-file-name",
            )


_CHECKED_AT_ONCE = 1000
"""Resources whose texts are searched together, which is faster."""


def _with_secrets(
    resources: Iterable[DesiredResource], redact: Callable[[str], str]
) -> Iterator[DesiredResource]:
    """Yield the resources that contain the value of a secret."""
    remaining = iter(resources)
    while batch := list(islice(remaining, _CHECKED_AT_ONCE)):
        text = "\n".join(f"{item.address} {json_text(item.attributes)}" for item in batch)
        if redact(text) == text:
            continue
        if len(batch) == 1:
            yield batch[0]
            continue
        for resource in batch:
            yield from _with_secrets([resource], redact)


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
    directory = directory_of(url, "mirror") if url.startswith("file:") else None
    mirror = _prefix(directory, url, desired.mirror.endpoint_url, environ)
    for address, request in workspace.source_requests.items() if mirror is not None else ():
        try:
            uri = request.uri
        except SourceError:
            continue
        directory = Path(uri.location) if uri.is_local else None
        weights = request.weights
        source = _prefix(directory, uri.text, weights.endpoint_url, environ)
        if mirror is None or source is None:
            continue
        relation, advice = "is inside the mirror", "Name"
        if not source.startswith(mirror):
            inside = mirror[len(source) :]
            objects = [SourceFile(f"{inside}{key}", 0, "") for key in _SAMPLE_OBJECTS]
            overlaps = mirror.startswith(source)
            if (
                not overlaps
                or not select(objects, weights.allow_patterns or None, weights.ignore_patterns)[0]
            ):
                continue
            relation = "contains the mirror"
            advice = (
                f"Exclude the mirror with ignore_patterns: [{json.dumps(f'/{inside}')}], or use"
            )
        yield error(
            f"{request.source} {relation} {url}, so that mirroring changes the source",
            f"{advice} another location in mirror: {{url: …}}.",
            address=str(address),
            where=desired.resources[address].where,
            code="mirror-in-source",
        )


def _prefix(
    directory: Path | None, url: str, endpoint: str | None, environ: Mapping[str, str]
) -> str | None:
    """Return the prefix of all paths in a directory, or server and key prefix of a bucket; None for other URLs."""
    from trainctl.buckets.location import parse_bucket_location

    if directory is not None:
        return os.path.join(os.path.realpath(directory), "")  # noqa: PTH118
    try:
        place = parse_bucket_location(url, endpoint, environ)
    except (SourceError, ValueError):
        return None
    server = place.endpoint if place.endpoint and not place.is_own(place.endpoint) else ""
    return f"{server} {place.url}/"
