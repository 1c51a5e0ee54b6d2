"""Documents to the whole wish: the order in which everything is expanded, checked and filled in."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from trainctl.base.json import JsonObject, JsonValue, digest
from trainctl.desired import resources as make
from trainctl.desired.expand import Expander
from trainctl.desired.expression import OPEN
from trainctl.desired.jobs import JobBuilder
from trainctl.desired.names import DeclaredNames
from trainctl.desired.provider_settings import CheckOf, ProviderSettings, accept_any
from trainctl.desired.references import find_cycles
from trainctl.desired.values import CheckpointStoreSettings, DesiredState, SecretSpec
from trainctl.desired.variables import values
from trainctl.errors import ManifestError
from trainctl.manifest.check import check, credential_problems
from trainctl.manifest.credentials import mask_credentials
from trainctl.manifest.read import Documents
from trainctl.manifest.tree import ManifestNode
from trainctl.manifest.types.document import Manifest
from trainctl.model.address import NAME, Address
from trainctl.model.diagnostics import Diagnostic, Position, Severity
from trainctl.model.json_codec import to_json
from trainctl.model.specs.resource import DesiredResource

_SOURCE_KEYS = frozenset({"source", "allow_patterns", "ignore_patterns", "endpoint_url", "auth"})
"""What of weights the lock file knows them by."""


def build(
    documents: Documents,
    *,
    variables: Mapping[str, str] | None = None,
    var_files: Sequence[Path] = (),
    provider_schema: Callable[[str], JsonObject | None],
    provider_check: CheckOf = accept_any,
    providers: Collection[str] = (),
) -> DesiredState:
    """What the documents ask for, complete. ManifestError holds everything that is wrong with them.

    ``variables`` are those of ``--var``. ``provider_schema`` gives the JSON Schema of a provider's settings, None
    where it is not installed, ``provider_check`` what else is wrong with them; ``providers`` are the installed ones, for suggestions.
    """
    found: list[Diagnostic] = []
    expander = _expander(documents, variables or {}, var_files, found)
    root = expander.manifest(documents.root)
    found += credential_problems(root)
    told = frozenset(one.where for one in (*found, *documents.problems))
    checked = check(root, told)
    manifest = checked.manifest
    found += [*documents.problems, *checked.problems]
    only = _only_project(manifest, root, documents.directory)
    names = DeclaredNames(
        checked.root,
        root,
        [only] if only is not None else _keys(root, "projects"),
        _keys(root, "clusters") or ["local"],
        _keys(root, "weights"),
        _keys(root, "secrets"),
        _keys(documents.root, "jobs"),
        told,
    )
    settings = ProviderSettings(provider_schema, provider_check, providers, names)
    secrets = make.secrets(manifest, names)
    if manifest.checkpoints and manifest.checkpoints.auth:
        place = ("checkpoints", "auth", "auth_secret_name")
        names.known("secret", manifest.checkpoints.auth.auth_secret_name, place)
    if manifest.mirror and manifest.mirror.auth:
        place = ("mirror", "auth", "auth_secret_name")
        names.known("secret", manifest.mirror.auth.auth_secret_name, place)
    if manifest.mirror and manifest.mirror.url.startswith("node://"):
        names.known("cluster", manifest.mirror.url.split("/")[2], ("mirror", "url"))
    resources: dict[Address, DesiredResource] = {}
    for resource in (
        *make.projects(manifest, only, names),
        *make.clusters(manifest, settings, names),
        *make.declared_weights(manifest, names),
    ):
        resources[resource.address] = resource
    store = make.checkpoint_store(manifest)
    jobs = JobBuilder(
        documents.directory, names, secrets, store, resources, expander.instances, manifest.jobs
    )
    for name, cache in manifest.caches.items():
        jobs.cache(name, cache)
    for name, job in manifest.jobs.items():
        jobs.job(name, job)
    found += [*names.problems, *settings.warnings, *jobs.warnings]
    found += find_cycles(manifest.jobs, names)
    return _desired(documents, manifest, resources, secrets, store, found)


def _expander(
    documents: Documents,
    variables: Mapping[str, str],
    var_files: Sequence[Path],
    found: list[Diagnostic],
) -> Expander:
    known = values(documents.root, variables, var_files, found)
    return Expander(known, directory_name(documents.directory), found)


def directory_name(directory: Path) -> str:
    """The name a directory gives its project: what no name may hold becomes ``-``."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", directory.resolve().name)
    name = re.sub(r"^[^A-Za-z0-9]+", "", name)[:64].rstrip("-")
    return name if NAME.fullmatch(name) else "project"


def _group_key(address: Address) -> tuple[int, str]:
    """What is sorted by: the jobs of a matrix stay in the order in which it was written."""
    kind, name, _ = address.rank()
    return kind, name


def _only_project(manifest: Manifest, root: ManifestNode, directory: Path) -> str | None:
    if _keys(root, "projects"):
        return None
    return (manifest.project.name if manifest.project else None) or directory_name(directory)


def _keys(root: ManifestNode, section: str) -> dict[str, ManifestNode]:
    node = root.entries.get(section)
    return node.entries if node else {}


def _desired(
    documents: Documents,
    manifest: Manifest,
    resources: Mapping[Address, DesiredResource],
    secrets: Mapping[str, SecretSpec],
    store: CheckpointStoreSettings,
    found: list[Diagnostic],
) -> DesiredState:
    found = sorted(
        {
            mask_credentials(deduplicate_matrix_problem)
            for deduplicate_matrix_problem in _deduplicate_matrix_problems(found)
        },
        key=_in_order,
    )
    if any(one.severity is Severity.ERROR for one in found):
        raise ManifestError(tuple(found))
    ordered = {address: resources[address] for address in sorted(resources, key=_group_key)}
    return DesiredState(
        directory=documents.directory,
        resources=ordered,
        secrets=secrets,
        clusters=tuple(manifest.clusters),
        mirror=make.store_location(manifest.mirror),
        checkpoints=store,
        state_url=manifest.state.url if manifest.state else None,
        manifest_files=documents.files,
        manifest_digest=_digest(manifest, ordered, secrets),
        warnings=tuple(found),
        sources_vary=any(map(_has_expression, _weights_of(documents.root))),
    )


def _weights_of(root: ManifestNode) -> Iterator[ManifestNode]:
    """What says which weights are meant, as it is written."""
    listed = (job.entries.get("weights") for job in _keys(root, "jobs").values())
    inline = (item for each in listed if each for item in each.items)
    for weights in (*_keys(root, "weights").values(), *inline):
        if weights.entries:
            yield from (one for name, one in weights.entries.items() if name in _SOURCE_KEYS)
        else:
            yield weights


def _has_expression(node: ManifestNode) -> bool:
    """Whether there is an expression in it."""
    if isinstance(node.value, str):
        return OPEN in node.value
    return any(map(_has_expression, (*node.entries.values(), *node.items)))


def _deduplicate_matrix_problems(found: list[Diagnostic]) -> list[Diagnostic]:
    """What is wrong with all jobs of a matrix alike is wrong with the job that has it."""
    alike: dict[Diagnostic, list[Diagnostic]] = {}
    for one in found:
        name = (one.address or "").partition("[")[0] or None
        alike.setdefault(replace(one, address=name), []).append(one)
    return [name if len(set(ones)) > 1 else ones[0] for name, ones in alike.items()]


def _in_order(one: Diagnostic) -> tuple[str, int, int, str]:
    where = one.where or Position("")
    return where.file, where.line or 0, where.column or 0, one.summary


def _digest(
    manifest: Manifest,
    resources: Mapping[Address, DesiredResource],
    secrets: Mapping[str, SecretSpec],
) -> str:
    """Over values alone: of no text, file name or place on this machine."""
    kept = manifest.model_dump(mode="json", include={"mirror", "checkpoints", "state"})
    return digest(
        {
            **kept,
            "resources": {
                str(address): {
                    "provider": resource.provider,
                    "attributes": resource.attributes,
                    "depends_on": [str(one) for one in resource.depends_on],
                    "lifecycle": to_json(resource.lifecycle),
                }
                for address, resource in resources.items()
            },
            "secrets": {
                name: [
                    spec.origin,
                    spec.source,
                    spec.version,
                    spec.redact,
                    *_optional_secret_fields(spec),
                ]
                for name, spec in secrets.items()
            },
        }
    )


def _optional_secret_fields(spec: SecretSpec) -> list[JsonValue]:
    """What only some origins have, and what few secrets say; nothing for the others, whose digests stay as they were."""
    more: list[JsonValue] = [list(spec.command), spec.region, spec.key, spec.service]
    return [*(more if any(more) else []), *(["persist"] if spec.persist else [])]
