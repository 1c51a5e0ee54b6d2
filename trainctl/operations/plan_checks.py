"""Find unsupported settings, leaked secrets, clusters without an offer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from trainctl.desired.values import DesiredState
from trainctl.inputs.environment import weights_variable
from trainctl.model.address import Address, Kind
from trainctl.model.diagnostics import Diagnostic, error
from trainctl.model.json_text import json_text
from trainctl.model.specs.job_spec import JobSpec
from trainctl.model.specs.resource import DesiredResource
from trainctl.operations.workspace import Workspace
from trainctl.plugin_api import discovery

if TYPE_CHECKING:
    from trainctl.plugin_api.machines import Offer


def find_problems(
    workspace: Workspace, offers: Mapping[Address, Sequence[Offer]]
) -> Iterator[Diagnostic]:
    """Yield all problems that make a plan unusable."""
    yield from unsupported(workspace.desired)
    for address in (cluster for cluster, offered in offers.items() if not offered):
        yield error(
            f"no machine is offered for {address}",
            "Change its machine types, zones or price limit.",
            address=str(address),
            code="machine-capacity",
        )
    yield from secret_leaks(workspace)


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
    for resource in desired.external.values():
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


def secret_leaks(workspace: Workspace) -> Iterator[Diagnostic]:
    """Find known secret values in attributes, which state and plan files contain and cannot redact."""
    redact = workspace.settings.redactor.redact
    for resource in _with_secrets(workspace.desired.resources.values(), redact):
        yield error(
            "the manifest contains the value of a secret",
            "Refer to the secret instead: `environment_variables: {NAME: {secret: …}}`, or `auth` of a source. If the text only looks like it, change the secret.",
            address=redact(str(resource.address)),
            where=resource.where,
            code="secret-in-manifest",
        )


_CHECKED_AT_ONCE = 1000
"""Resources whose texts are searched together, which is faster."""


def _with_secrets(
    resources: Iterable[DesiredResource], redact: Callable[[str], str]
) -> Iterator[DesiredResource]:
    """Yield the resources that contain the value of a secret."""
    remaining = iter(resources)
    while batch := list(islice(remaining, _CHECKED_AT_ONCE)):
        texts = ((item.address, json_text(item.attributes)) for item in batch)
        text = "\n".join(f"{address.name} {address.key} {values}" for address, values in texts)
        if redact(text) == text:
            continue
        if len(batch) == 1:
            yield batch[0]
            continue
        for resource in batch:
            yield from _with_secrets([resource], redact)
