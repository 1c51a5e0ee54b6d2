"""Building the desired state: expand expressions, check types, create resources."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from trainctl.base.json import JsonObject, digest, hex_digest
from trainctl.base.lazy_dataclass import replace
from trainctl.desired import resources as make
from trainctl.desired.expand import Expander
from trainctl.desired.expression import OPEN
from trainctl.desired.jobs import JobBuilder
from trainctl.desired.names import DeclaredNames, find_cycles
from trainctl.desired.resources import CheckOf, ProviderSettings, accept_any
from trainctl.desired.values import (
    DesiredMoves,
    DesiredState,
    JobOverrides,
    SecretSpec,
)
from trainctl.desired.variables import read_variables, with_overrides
from trainctl.errors import ManifestError
from trainctl.ledger.renaming import RENAMEABLE
from trainctl.manifest.check import check, credential_problems
from trainctl.manifest.read import Documents
from trainctl.manifest.tree import ManifestNode, mapping_node, scalar_node, with_edits
from trainctl.manifest.tree import Path as TreePath
from trainctl.model.address import NAME, Address, Kind, slug
from trainctl.model.credentials import mask_credentials
from trainctl.model.diagnostics import Diagnostic, Position, Severity, error
from trainctl.model.json_codec import shared_json, to_json
from trainctl.model.specs.checks import LONGEST_NAME, converted
from trainctl.model.specs.document import ImportedRun, Manifest, MovedResource, RemovedResource
from trainctl.model.specs.location import CheckpointsLocation, Location, StoreLocation
from trainctl.model.specs.resource import DesiredResource

_SOURCE_KEYS = frozenset({"source", "allow_patterns", "ignore_patterns", "endpoint_url", "auth"})
"""Keys of weights that identify them in the lock file."""
_NAMED_SECTIONS = {"projects": "project", "jobs": "job"}
Problem = tuple[str, str] | None
"""Summary and detail."""


def build(
    documents: Documents,
    *,
    variables: Mapping[str, str] | None = None,
    overrides: JobOverrides = JobOverrides(),  # noqa: B008 - frozen
    var_files: Sequence[Path] = (),
    environ: Mapping[str, str] | None = None,
    provider_schema: Callable[[str], JsonObject | None],
    provider_check: CheckOf = accept_any,
    providers: Collection[str] = (),
    unchanged: DesiredState | None = None,
) -> DesiredState:
    """Build the desired state; raise ManifestError with all problems if invalid.

    ``variables`` are those of ``--var``, ``overrides`` of ``--set``, ``environ`` has others as ``TRAINCTL_VAR_name``. ``provider_schema`` returns
    the JSON Schema of a provider's settings, None if it is not installed; ``provider_check`` reports further problems.
    ``providers`` are the names for suggestions. ``unchanged`` has several projects that the documents lack.
    """
    problems: list[Diagnostic] = []
    root = with_overrides(with_slugs(documents.root, problems), overrides, problems)
    documents = replace(documents, root=root)
    known = read_variables(documents.root, variables or {}, var_files, problems, environ or {})
    others = {address.name for address in unchanged.resources} if unchanged else set()
    expander = Expander(known, None if others else directory_name(documents.directory), problems)
    root = expander.manifest(documents.root)
    problems += credential_problems(root)
    reported = frozenset(problem.where for problem in (*problems, *documents.problems))
    checked = check(root, reported)
    manifest = checked.manifest
    problems += [*documents.problems, *checked.problems]
    only = None if others else _only_project(manifest, root, documents.directory)
    projects = {**_keys(root, "projects"), **dict.fromkeys(others)} if only is None else [only]
    names = DeclaredNames(
        root=checked.root,
        text=root,
        projects=projects,
        clusters=_keys(root, "clusters") or ["local"],
        weights=_keys(root, "weights"),
        secrets=_keys(root, "secrets"),
        jobs=_keys(documents.root, "jobs"),
        reported=reported,
    )
    settings = ProviderSettings(provider_schema, provider_check, providers, names)
    secrets = make.secrets(manifest, names)
    _check_stores(manifest, names)
    resources = dict(unchanged.resources) if unchanged else {}
    declared = make.projects(manifest, only, names), make.clusters(manifest, settings, names)
    for resource in chain(*declared, make.declared_weights(manifest, names)):
        resources[resource.address] = resource
    store = manifest.checkpoints or CheckpointsLocation()
    jobs = JobBuilder(
        directory=documents.directory,
        names=names,
        secrets=secrets,
        store=store,
        resources=resources,
        instances=expander.instances,
        declared=manifest.jobs,
    )
    for name, cache in manifest.caches.items():
        jobs.cache(name, cache)
    for name, job in manifest.jobs.items():
        jobs.job(name, job)
    moved, cycles = moves(manifest, resources, names), find_cycles(manifest.jobs, names)
    problems += [*settings.warnings, *jobs.warnings, *cycles, *names.problems]
    if others and ("project" in root.entries or others & _keys(root, "projects").keys()):
        problems.append(error("repeated project", code="duplicate-key"))
    desired = _desired(documents, manifest, resources, secrets, store, moved, problems)
    return with_digests(desired, manifest, unchanged.digests if unchanged else {})


def _check_stores(manifest: Manifest, names: DeclaredNames) -> None:
    """Report secrets and clusters of stores that are not declared."""
    for section, auth in (
        ("checkpoints", manifest.checkpoints and manifest.checkpoints.auth),
        ("mirror", manifest.mirror and manifest.mirror.auth),
        ("state", manifest.state and manifest.state.auth),
    ):
        if auth:
            names.known("secret", auth.auth_secret_name, (section, "auth", "auth_secret_name"))
    for at, key in enumerate(manifest.state.keys if manifest.state else ()):
        names.known("secret", key.secret, ("state", "encryption", "keys", at, "secret"))
    if manifest.mirror and manifest.mirror.url.startswith("node://"):
        names.known("cluster", manifest.mirror.url.split("/")[2], ("mirror", "url"))


def directory_name(directory: Path) -> str:
    """Derive a project's name from its directory, with ``-`` for invalid characters."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", directory.resolve().name)
    name = re.sub(r"^[^A-Za-z0-9]+", "", name)[:64].rstrip("-")
    return name if NAME.fullmatch(name) else "project"


def _only_project(manifest: Manifest, root: ManifestNode, directory: Path) -> str | None:
    if _keys(root, "projects"):
        return None
    name = manifest.project.name if manifest.project else None
    return slug(name) if name else directory_name(directory)


def _keys(root: ManifestNode, section: str) -> dict[str, ManifestNode]:
    node = root.entries.get(section)
    return node.entries if node else {}


def _desired(
    documents: Documents,
    manifest: Manifest,
    resources: Mapping[Address, DesiredResource],
    secrets: Mapping[str, SecretSpec],
    store: CheckpointsLocation,
    moved: DesiredMoves,
    reported: list[Diagnostic],
) -> DesiredState:
    groups: dict[Diagnostic, list[Diagnostic]] = {}  # equal problems of the jobs of a matrix
    for problem in reported:
        name = (problem.address or "").partition("[")[0] or None
        groups.setdefault(replace(problem, address=name), []).append(problem)
    merged = (whole if len(set(group)) > 1 else group[0] for whole, group in groups.items())
    problems = sorted(set(map(mask_credentials, merged)), key=_sort_key)
    if any(problem.severity is Severity.ERROR for problem in problems):
        raise ManifestError(tuple(problems))
    used = _used(documents, manifest, resources)
    in_order = sorted(used, key=lambda address: address.rank()[:2])  # matrices keep their order
    ordered = {address: resources[address] for address in in_order}
    return DesiredState(
        directory=documents.directory,
        resources=ordered,
        secrets=secrets,
        clusters=tuple(
            name for name in manifest.clusters if Address(Kind.CLUSTER, name) in ordered
        ),
        mirror=_store(manifest.mirror),
        checkpoints=store,
        state=_store(manifest.state),
        reuse_from=manifest.reuse_from,
        manifest_files=documents.files,
        moves=moved,
        warnings=tuple(problems),
        extended=documents.extended,
        sources_vary=any(map(_has_expression, _weights_of(documents.root))),
    )


def _store(section: Location | None) -> StoreLocation:
    return converted(section, StoreLocation) if section else StoreLocation()


def _used(
    documents: Documents, manifest: Manifest, resources: Mapping[Address, DesiredResource]
) -> list[Address]:
    """Return the manifest's own resources and those of the extended file that these need."""
    kinds = {"clusters": Kind.CLUSTER, "weights": Kind.WEIGHTS, "caches": Kind.CACHE}
    shared = {Address(kinds[key], name) for key, name in documents.shared if key in kinds}
    if not shared:
        return [*resources]
    needed = [address for address in resources if address not in shared]
    if manifest.mirror and manifest.mirror.url.startswith("node://"):
        needed.append(Address(Kind.CLUSTER, manifest.mirror.url.split("/")[2]))
    used: set[Address] = set()
    while needed:
        address = needed.pop()
        if address in resources and address not in used:
            used.add(address)
            needed += resources[address].depends_on
    return [address for address in resources if address in used]


def _weights_of(root: ManifestNode) -> Iterator[ManifestNode]:
    """Yield the values that identify weights, as written."""
    listed = (job.entries.get("weights") for job in _keys(root, "jobs").values())
    inline = (item for section in listed if section for item in section.items)
    for weights in (*_keys(root, "weights").values(), *inline):
        if weights.entries:
            yield from (node for key, node in weights.entries.items() if key in _SOURCE_KEYS)
        else:
            yield weights


def _has_expression(node: ManifestNode) -> bool:
    if isinstance(node.value, str):
        return OPEN in node.value
    return any(map(_has_expression, (*node.entries.values(), *node.items)))


def _sort_key(problem: Diagnostic) -> tuple[str, int, int, str]:
    where = problem.where or Position("")
    return where.file, where.line or 0, where.column or 0, problem.summary


def with_digests(
    desired: DesiredState, manifest: Manifest, known: Mapping[Address, str]
) -> DesiredState:
    """Add the digests of all resources that aren't known, and of all values.

    They are independent of text, file names and directory.
    """
    digests = {
        address: known.get(address)
        or hex_digest(
            {
                "address": str(address),
                "provider": resource.provider,
                "attributes": resource.attributes,
                "depends_on": list(map(str, resource.depends_on)),
                "lifecycle": shared_json(resource.lifecycle),
            }
        )
        for address, resource in desired.resources.items()
    }
    whole = {
        **{name: to_json(getattr(manifest, name)) for name in ("mirror", "checkpoints", "state")},
        **({"moves": to_json(desired.moves)} if desired.moves != DesiredMoves() else {}),
        "resources": sorted(digests.values()),
        "secrets": {name: to_json(spec) for name, spec in desired.secrets.items()},
    }
    return replace(desired, digests=digests, manifest_digest=digest(whole))


def with_slugs(root: ManifestNode, problems: list[Diagnostic]) -> ManifestNode:
    """Return the tree with slugs as keys, and ``name`` in their sections; report equal slugs."""
    edits: dict[TreePath, ManifestNode | None] = {}
    for section, kind in _NAMED_SECTIONS.items():
        node = root.entries.get(section)
        if node is None or all(map(NAME.fullmatch, node.entries)):
            continue
        entries: dict[str, ManifestNode] = {}
        written: dict[str, str] = {}
        for text, entry in node.entries.items():
            valid = text.strip() and text.isprintable() and len(text) <= LONGEST_NAME
            valid = valid and OPEN not in text  # the expander reports it
            name = slug(text) if valid else text
            if name in written:
                problems.append(
                    error(
                        f"the names {written[name]!r} and {text!r} have the same address {kind}.{name}",
                        "Rename one of them.",
                        address=f"{kind}.{name}",
                        where=node.key_position(text),
                        code="duplicate-address",
                    )
                )
                continue
            written[name] = text
            if name != text and isinstance(entry.value, dict) and "name" not in entry.entries:
                named = {"name": scalar_node(text, entry.where), **entry.entries}
                entry = mapping_node(named, entry.keys, entry.where)
            entries[name] = entry
        keys = {name: node.key_position(text) for name, text in written.items()}
        edits[section,] = mapping_node(entries, keys, node.where)
    return with_edits(root, edits) if edits else root


def moves(manifest: Manifest, resources: Collection[Address], names: DeclaredNames) -> DesiredMoves:
    """Return renamed, removed and imported resources; chains of renames are resolved."""
    if not (manifest.moved or manifest.removed or manifest.imports):
        return DesiredMoves()
    declared = {*resources, *(address.group for address in resources)}
    sections: Iterable[tuple[str, str, Iterable[MovedResource | RemovedResource | ImportedRun]]] = (
        ("moved", "from", manifest.moved),
        ("removed", "from", manifest.removed),
        ("import", "to", manifest.imports),
    )
    valid = True
    for section, key, items in sections:
        for index, item in enumerate(items):
            if problem := _move_problem(item, section, declared):
                names.report_problem(*problem, (section, index, key), code="invalid-move")
                valid = False
    if not valid:
        return DesiredMoves()
    moved = {Address.parse(item.before): Address.parse(item.to) for item in manifest.moved}
    for old in moved:
        for _ in moved:  # at most, so that a circle ends
            moved[old] = moved.get(moved[old], moved[old])
    return DesiredMoves(
        moved,
        {Address.parse(item.before): item.destroy for item in manifest.removed},
        {Address.parse(item.to): item.id for item in manifest.imports},
    )


def _move_problem(
    item: MovedResource | RemovedResource | ImportedRun, section: str, declared: Collection[Address]
) -> Problem:
    if isinstance(item, ImportedRun):
        if Address.parse(item.to).kind is not Kind.JOB or Address.parse(item.to) not in declared:
            advice = "Declare the job. Clusters, weights and caches need no import: apply finds what exists."
            return f"import: {item.to} is not a declared job", advice
        if item.id.count("/") != 2:
            advice = "Name the node and the ID of the run, for example lab/gpu-01/nuui5lk."
            return f"import: {item.id!r} is not CLUSTER/NODE/RUN", advice
        return None
    old = Address.parse(item.before)
    if isinstance(item, MovedResource):
        new = Address.parse(item.to)
        if old.kind is not new.kind or old.kind not in RENAMEABLE or old == new:
            advice = f"Both must be of one of these kinds: {', '.join(RENAMEABLE)}."
            return f"{old} can't be moved to {new}", advice
    if old in declared:
        return f"{old} is declared, and listed under {section!r}", "Remove one of them."
    return None
