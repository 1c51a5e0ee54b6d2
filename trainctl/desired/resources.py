"""Projects, clusters with the settings of their providers, weights and secrets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainctl.base.json import JsonObject
from trainctl.base.lazy_dataclass import dataclass
from trainctl.desired.names import DeclaredNames
from trainctl.desired.values import SecretSpec
from trainctl.manifest.check import DiagnosticText, displayable_value, known_keys, path_text
from trainctl.manifest.fields import TYPES
from trainctl.manifest.tree import Path, node_at
from trainctl.model.address import Address, Kind
from trainctl.model.diagnostics import Diagnostic, did_you_mean, nearest, warning
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
from trainctl.plugin_api import provider as spi

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError


SchemaOf = Callable[[str], JsonObject | None]
CheckOf = Callable[[str, spi.ClusterSettings], Sequence[spi.SettingsProblem]]


def accept_any(provider: str, cluster: spi.ClusterSettings) -> Sequence[spi.SettingsProblem]:
    """Report no problems."""
    return ()


@dataclass
class ProviderSettings:
    """Checks the settings of clusters, loading each provider's schema once."""

    schema_of: SchemaOf
    check_of: CheckOf
    installed: Collection[str]
    names: DeclaredNames

    def __post_init__(self) -> None:
        self._schemas: dict[str, JsonObject | None] = {}
        self.warnings: list[Diagnostic] = []

    def complete(self, name: str, cluster: Cluster) -> dict[str, Any]:
        """Check the settings and return them with the provider's defaults."""
        path: Path = ("clusters", name)
        settings: dict[str, Any] = plain_json(cluster.settings)
        schema = self._schema(cluster.provider)
        if schema is None:
            provider, place = cluster.provider, (*path, "provider")
            meant = None if provider in self.installed else nearest(provider, self.installed)
            if meant is not None:
                self.names.report_problem(
                    f"unknown provider {provider!r}",
                    f"Did you mean {meant!r}?",
                    place,
                    code="missing-provider",
                )
                return settings
            self.warnings.append(
                warning(
                    f"provider {provider!r} is not installed",
                    f"Install it: pip install trainctl-{provider}. Without it, this cluster is not checked and can't be planned.",
                    address=f"cluster.{name}",
                    where=self.names.place(place),
                    code="missing-provider",
                )
            )
            return settings
        from jsonschema import Draft202012Validator  # loading it takes 0.1 s

        found = Draft202012Validator(schema).iter_errors(settings)
        errors = sorted(found, key=lambda error: list(map(str, error.path)))
        for error in errors:
            self._report_problem(error, path)
        if not errors:
            for problem in self.check_of(cluster.provider, spi.ClusterSettings(name, settings)):
                self.names.report_problem(
                    problem.summary, problem.detail, (*path, *problem.path), code="invalid-value"
                )
        return _with_defaults(settings, schema)

    def defaults(self, provider: str) -> dict[str, Any]:
        """Return the provider's defaults, for a cluster that isn't declared."""
        return _with_defaults({}, self._schema(provider) or {})

    def _schema(self, provider: str) -> JsonObject | None:
        if provider not in self._schemas:
            self._schemas[provider] = self.schema_of(provider)
        return self._schemas[provider]

    def _report_problem(self, problem: ValidationError, cluster: Path) -> None:
        path = (*cluster, *problem.absolute_path)
        if problem.validator == "additionalProperties" and isinstance(problem.instance, dict):
            schema: Any = problem.schema
            known = [*schema.get("properties", {}), *(known_keys(path) if path == cluster else ())]
            for key in set(problem.instance) - set(known):
                hint = did_you_mean(key, known)
                self.names.report_problem(
                    f"unknown key {key!r}", hint, (*path, key), at_key=True, code="unknown-key"
                )
            return
        node = node_at(self.names.root, path)
        value = f"Found {displayable_value(path, node)}." if node else ""
        text = _describe(problem, path, value)
        self.names.report_problem(text.summary, text.detail, path, code=text.code)


def _describe(problem: ValidationError, path: Path, value: str) -> DiagnosticText:
    where = path_text(path) if len(path) > 2 else "the cluster"
    expected: Any = problem.validator_value
    if problem.validator == "required":
        missing = problem.message.split("'")[1]
        return DiagnosticText(
            f"{missing} is missing", f"Add {missing}: … to {where}.", "missing-key"
        )
    if problem.validator == "type":
        names = [expected] if isinstance(expected, str) else expected
        types = " or ".join(_TYPES.get(name, name) for name in names)
        return DiagnosticText(f"{where}: expected {types}", value, "wrong-type")
    limit = _LIMITS.get(str(problem.validator))
    if limit is not None:
        return DiagnosticText(f"{where} must be {limit} {expected}", value, "out-of-range")
    if problem.validator == "enum":
        return DiagnosticText(
            f"{where}: expected {' or '.join(map(str, expected))}", value, "unknown-value"
        )
    description = problem.schema.get("description") if isinstance(problem.schema, Mapping) else None
    return DiagnosticText(
        f"{where} is not valid for the provider",
        f"{description or ''} {value}".strip(),
        "invalid-value",
    )


_TYPES = {**TYPES, "null": "nothing"}
_LIMITS = {"minimum": "at least", "maximum": "at most", "minItems": "at least of length"}


def plain_json(value: Any) -> Any:
    """Convert to plain JSON: floats without their spelling."""
    if isinstance(value, dict):
        return {key: plain_json(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [plain_json(item) for item in value]
    return float(value) if isinstance(value, float) else value


def _with_defaults(settings: dict[str, Any], schema: Any) -> dict[str, Any]:
    complete = dict(settings)
    properties = schema.get("properties", {}) if isinstance(schema, Mapping) else {}
    for key, entry in properties.items():
        if not isinstance(entry, Mapping):
            continue
        if key not in complete and "default" in entry:
            complete[key] = entry["default"]
        elif isinstance(complete.get(key), dict):
            complete[key] = _with_defaults(complete[key], entry)
    return complete


BUILTIN_PROVIDER = "trainctl"
"""Provider of resources that need no cluster."""


def build_resource(
    address: Address,
    provider: str,
    attributes: Mapping[str, Any],
    section: Lifecycle,
    path: Path,
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


def _project(name: str, section: Project, path: Path, names: DeclaredNames) -> DesiredResource:
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
    path: Path = ("clusters", name)
    tiers = {"node": section.cache.node, "cluster": section.cache.cluster} if section.cache else {}
    for tier_name, tier in tiers.items():
        directory = tier.dir if tier else None
        if directory and (not directory.startswith("/") or ".." in directory.split("/")):
            names.report_problem(
                "dir: expected an absolute directory without '..'",
                "Use for example /nvme/trainctl.",
                (*path, "cache", tier_name, "dir"),
                code="invalid-path",
            )
    attributes = {
        **settings,
        "provider": section.provider,
        "cache": to_json(section.cache),
        "price_per_hour": plain_json(section.price_per_hour),
    }
    address = Address(Kind.CLUSTER, name)
    return build_resource(address, section.provider, attributes, section.lifecycle, path, names)


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
    path: Path,
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
