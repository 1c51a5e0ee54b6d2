"""Problems that make a plan unusable: unsupported settings, secrets in the manifest, sources that overlap the mirror."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.desired.values import Desired
from trainctl.errors import SourceError
from trainctl.jobs.environment import weights_variable
from trainctl.model.address import Address, Kind
from trainctl.model.diagnostics import Diagnostic, error
from trainctl.model.resource import Resource
from trainctl.objects.location import SCHEMES, location_of
from trainctl.operations.mirrors import is_in_a_bucket, is_on_a_host, mirror_url
from trainctl.operations.places import directory_of
from trainctl.operations.workspace import Workspace
from trainctl.plan.values import WeightsFacts
from trainctl.resources.weights import wanted_of
from trainctl.spi import discovery
from trainctl.store import keys
from trainctl.weights.patterns import select
from trainctl.weights.resolve import Wanted


def unsupported(desired: Desired) -> list[Diagnostic]:
    """An error for each thing that can't be done, at the resource that asks for it."""
    providers = frozenset(discovery.names(discovery.PROVIDERS))
    found = list(_of_the_whole(desired))
    for resource in desired.resources.values():
        if resource.address.kind is Kind.CLUSTER:
            found += _of_cluster(resource, providers)
        elif resource.address.kind is Kind.JOB:
            found += _of_job(resource)
    return found


def _of_the_whole(desired: Desired) -> Iterator[Diagnostic]:
    url = desired.checkpoints.url
    if url is not None and not url.startswith(("file:", "s3:")):
        scheme = url.partition(":")[0]
        yield error(
            f"checkpoints can't be kept at {scheme}:// by this version",
            "Write file:///DIRECTORY or s3://BUCKET/PREFIX (with endpoint_url for other servers of S3's kind).",
            code="unsupported",
        )


def _of_cluster(cluster: Resource, providers: frozenset[str]) -> Iterator[Diagnostic]:
    if cluster.provider not in providers:
        detail = f"Installed: {', '.join(sorted(providers))}."
        yield _at(
            cluster,
            f"no provider plugin is called {cluster.provider!r}",
            detail,
            code="missing-provider",
        )
    shared = cluster.cluster_spec.cache.cluster
    if shared and not shared.dir:
        yield _at(
            cluster,
            "`cache.cluster` names no directory",
            "Write `cluster: {dir: /DIRECTORY}`, one that all nodes of the cluster see, or leave it out.",
            code="unsupported",
        )


def _of_job(job: Resource) -> Iterator[Diagnostic]:
    spec = job.job_spec
    if spec.in_container and (spec.runtime.venv or spec.runtime.requirements):
        detail = "Install what the job needs in its image, or set runtime.engine: host."
        summary = "runtime.venv and runtime.requirements are for jobs on the host"
        yield _at(job, summary, detail, code="host-only")
    yield from _shared_variables(job)


def _shared_variables(job: Resource) -> Iterator[Diagnostic]:
    """Names that differ in punctuation only would be one environment variable."""
    first: dict[str, Address] = {}
    for address in (weights.address for weights in job.job_spec.weights):
        other = first.setdefault(weights_variable(address), address)
        if other != address:
            detail = "Rename one of them: letters and digits tell them apart, punctuation does not."
            yield _at(
                job,
                f"{other} and {address} would both be {weights_variable(address)}",
                detail,
                code="shared-variable",
            )


def _at(resource: Resource, summary: str, detail: str, *, code: str) -> Diagnostic:
    return error(summary, detail, address=str(resource.address), where=resource.where, code=code)


def leaks(workspace: Workspace, weights: Mapping[Address, WeightsFacts]) -> Iterator[Diagnostic]:
    """An error for each resource whose attributes, or whose upstream file names, hold the value of a known secret.

    State, plan files and listings must keep both as they are, so masking them is no way out.
    """
    redact = workspace.setting.redactor.redact
    for address, resource in workspace.desired.resources.items():
        text = json.dumps([str(address), dict(resource.attributes)], ensure_ascii=False)
        if redact(text) != text:
            yield error(
                "the value of a secret stands in the manifest",
                "Refer to it instead: `environment_variables: {NAME: {secret: …}}`, or `auth` for a source. "
                "If it only looks like one, give the secret another value.",
                address=redact(str(address)),
                where=resource.where,
                code="secret-in-manifest",
            )
        facts = weights.get(address)
        if (
            facts
            and facts.resolved
            and any(redact(name) != name for name in _file_names(facts.resolved))
        ):
            yield error(
                "upstream names a file with the value of a secret",
                "Leave it out with ignore_patterns, and change the secret: upstream shows it.",
                address=str(address),
                where=resource.where,
                code="secret-in-file-name",
            )


def _file_names(resolved: ResolvedSource) -> Iterator[str]:
    """Some hundreds at once: there may be millions."""
    yield resolved.revision
    paths = (file.path for file in resolved.files)
    while some := "\n".join(islice(paths, 1000)):
        yield some


_HEX = "0123456789abcdef" * 4
_KEYS = (
    keys.blob(_HEX),
    keys.chunked(_HEX),
    keys.slices(_HEX),
    keys.listing(_HEX),
    keys.incomplete(_HEX),
    keys.packs(_HEX),
    f"{keys.RECORDS}/{_HEX}/{_HEX}.json",
    f"{keys.PARTIAL}/{_HEX}/pack.{_HEX}",
    keys.reference("lineage", "weights.name"),
    keys.GC_LEASE,
)
"""An example of each kind of object in a mirror, to test whether patterns leave all of them out."""


@dataclass(frozen=True, slots=True)
class _Spot:
    """A directory or a prefix: what it is in, and the way to it from there."""

    owner: tuple[str | None, ...]
    path: tuple[str, ...]

    def way_to(self, other: _Spot) -> str | None:
        """The name below this of what lies in it, empty for this itself; None for what doesn't."""
        inside = self.owner == other.owner and other.path[: len(self.path)] == self.path
        return "/".join(other.path[len(self.path) :]) if inside else None


def entangled(workspace: Workspace) -> Iterator[Diagnostic]:
    """An error for each source that contains the mirror or lies in it. Makes no request."""
    desired, setting = workspace.desired, workspace.setting
    url = mirror_url(desired, workspace.provider, setting.environ)
    mirror = _mirror_spot(url, desired.mirror.endpoint_url, setting.environ)
    for address, resource in desired.resources.items():
        if mirror is None or address.kind is not Kind.WEIGHTS:
            continue
        wanted = wanted_of(resource.weights_spec, setting.directory)
        problem = _problem(wanted, mirror, setting.environ)
        if problem is not None:
            yield error(
                f"{wanted.source} {problem[0]} {url}, which would change it whenever it is mirrored",
                f"{problem[1]}ame another place in mirror: {{url: …}}.",
                address=str(address),
                where=resource.where,
                code="mirror-in-source",
            )


def _problem(wanted: Wanted, mirror: _Spot, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """How they are in each other, and the beginning of what to do; None where they aren't, or the source's patterns see to it."""
    source = _source_spot(wanted, environ)
    if source is None:
        return None
    if mirror.way_to(source) is not None:
        return "lies in the mirror", "N"
    way = source.way_to(mirror)
    if way is None:
        return None
    files = [SourceFile(f"{way}/{key}", 0, "") for key in _KEYS]
    if not select(files, wanted.allow, wanted.ignore)[0]:
        return None
    return "holds the mirror", f"Leave it out by ignore_patterns: [{json.dumps(f'/{way}/')}], or n"


def _mirror_spot(url: str, endpoint: str | None, environ: Mapping[str, str]) -> _Spot | None:
    if is_on_a_host(url):
        return None
    return (
        _bucket_spot(url, endpoint, environ)
        if is_in_a_bucket(url)
        else _directory_spot(directory_of(url, "mirror"))
    )


def _source_spot(wanted: Wanted, environ: Mapping[str, str]) -> _Spot | None:
    """None for what can't be in a mirror, and for invalid sources, which resolving reports."""
    try:
        uri = wanted.uri
    except SourceError:
        return None
    if uri.scheme == "file":
        return _directory_spot(Path(uri.location))
    return _bucket_spot(uri.text, wanted.endpoint_url, environ) if uri.scheme in SCHEMES else None


def _directory_spot(path: Path) -> _Spot:
    return _Spot(("file",), Path(os.path.realpath(path)).parts)


def _bucket_spot(url: str, endpoint: str | None, environ: Mapping[str, str]) -> _Spot | None:
    """Of Amazon's it is the same bucket in whatever region."""
    try:
        place = location_of(url, endpoint, environ)
    except SourceError:
        return None
    server = place.endpoint if place.endpoint and not place.is_own(place.endpoint) else None
    return _Spot(
        (place.scheme, server, place.account, place.bucket),
        tuple(filter(None, place.prefix.split("/"))),
    )
