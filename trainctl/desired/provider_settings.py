"""Validation and defaults of cluster settings by the provider's JSON Schema."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainctl.base.json import JsonObject
from trainctl.desired.names import DeclaredNames
from trainctl.manifest.fields import TYPES
from trainctl.manifest.messages import DiagnosticText, displayable_value, known_keys, path_text
from trainctl.manifest.suggestions import did_you_mean, nearest
from trainctl.manifest.tree import Path, child
from trainctl.model.diagnostics import Diagnostic, warning
from trainctl.model.specs.resource import Cluster
from trainctl.plugin_api import provider as spi

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

SchemaOf = Callable[[str], JsonObject | None]
CheckOf = Callable[[str, spi.ClusterSettings], Sequence[spi.SettingsProblem]]


def accept_any(provider: str, cluster: spi.ClusterSettings) -> Sequence[spi.SettingsProblem]:
    """Report no problems."""
    return ()


class ProviderSettings:
    """Checks the settings of clusters, loading each provider's schema once."""

    def __init__(
        self,
        schema_of: SchemaOf,
        check_of: CheckOf,
        installed: Collection[str],
        names: DeclaredNames,
    ) -> None:
        self._schema_of = schema_of
        self._check_of = check_of
        self._installed = installed
        self._names = names
        self._schemas: dict[str, JsonObject | None] = {}
        self.warnings: list[Diagnostic] = []

    def complete(self, name: str, cluster: Cluster) -> dict[str, Any]:
        """Check the settings and return them with the provider's defaults."""
        path: Path = ("clusters", name)
        settings: dict[str, Any] = plain_json(cluster.settings)
        schema = self._schema(cluster.provider)
        if schema is None:
            self._not_installed(cluster.provider, (*path, "provider"))
            return settings
        errors = _validate(settings, schema)
        for error in errors:
            self._report_problem(error, path)
        if not errors:
            for problem in self._check_of(cluster.provider, spi.ClusterSettings(name, settings)):
                self._names.report_problem(
                    problem.summary, problem.detail, (*path, *problem.path), code="invalid-value"
                )
        return _with_defaults(settings, schema)

    def defaults(self, provider: str) -> dict[str, Any]:
        """Return the provider's defaults, for a cluster that isn't declared."""
        return _with_defaults({}, self._schema(provider) or {})

    def _schema(self, provider: str) -> JsonObject | None:
        if provider not in self._schemas:
            self._schemas[provider] = self._schema_of(provider)
        return self._schemas[provider]

    def _not_installed(self, provider: str, path: Path) -> None:
        meant = None if provider in self._installed else nearest(provider, self._installed)
        if meant is not None:
            self._names.report_problem(
                f"unknown provider {provider!r}",
                f"Did you mean {meant!r}?",
                path,
                code="missing-provider",
            )
            return
        self.warnings.append(
            warning(
                f"provider {provider!r} is not installed",
                f"Install it: pip install trainctl-{provider}. Without it, this cluster is not checked and can't be planned.",
                address=f"cluster.{path[1]}",
                where=self._names.place(path),
                code="missing-provider",
            )
        )

    def _report_problem(self, problem: ValidationError, cluster: Path) -> None:
        path = (*cluster, *problem.absolute_path)
        if problem.validator == "additionalProperties" and isinstance(problem.instance, dict):
            schema: Any = problem.schema
            known = [*schema.get("properties", {}), *(known_keys(path) if path == cluster else ())]
            for key in set(problem.instance) - set(known):
                hint = did_you_mean(key, known)
                self._names.report_problem(
                    f"unknown key {key!r}", hint, (*path, key), at_key=True, code="unknown-key"
                )
            return
        text = _describe(problem, path, self._describe_value(path))
        self._names.report_problem(text.summary, text.detail, path, code=text.code)

    def _describe_value(self, path: Path) -> str:
        node = self._names.root
        for step in path:
            below = child(node, step)
            if below is None:
                return ""
            node = below
        return f"Found {displayable_value(path, node)}."


def _validate(settings: dict[str, Any], schema: JsonObject) -> list[ValidationError]:
    from jsonschema import Draft202012Validator  # loading it takes 0.1 s

    errors = Draft202012Validator(schema).iter_errors(settings)
    return sorted(errors, key=lambda error: list(map(str, error.path)))


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
