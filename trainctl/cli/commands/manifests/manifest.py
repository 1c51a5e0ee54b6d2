"""``trainctl validate``, ``explain`` and ``schema``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from trainctl.cli.options import (
    OUTPUT,
    FormatOption,
    OutputFormat,
    PlanningFlags,
    argument,
    option,
)
from trainctl.cli.session import CliSession, session_of
from trainctl.cli.workspaces import open_workspace
from trainctl.errors import ManifestError, UsageError
from trainctl.manifest.fields import fields, find, nearest_path
from trainctl.model.address import Kind
from trainctl.model.diagnostics import Diagnostic, Severity, error_reference, explanations, nearest
from trainctl.operations.workspace import Workspace
from trainctl.plugin_api import discovery
from trainctl.views.problems import (
    code_lines,
    count_line,
    diagnostic_lines,
    explain_hint_lines,
    field_lines,
)


def validate_command(ctx: typer.Context, format_: FormatOption = OutputFormat.TEXT) -> int:
    """Check the manifest for errors. Doesn't read the state or use the network."""
    session = session_of(ctx)
    output = session.output
    with open_workspace(session, PlanningFlags(offline=True)) as workspace:
        try:
            diagnostics = [*workspace.desired.warnings, *_mirror_overlaps(workspace)]
        except ManifestError as error:
            diagnostics = [
                diagnostic for diagnostic in error.diagnostics if isinstance(diagnostic, Diagnostic)
            ]
    valid = all(diagnostic.severity is not Severity.ERROR for diagnostic in diagnostics)
    if format_ is OutputFormat.JSON:
        output.json(
            {"valid": valid, "diagnostics": [diagnostic.to_json() for diagnostic in diagnostics]}
        )
        return 0 if valid else 1
    if diagnostics:
        style = output.error_style
        output.note(
            *diagnostic_lines(diagnostics, style, output.error_width),
            count_line(diagnostics),
            *explain_hint_lines(diagnostics, style),
        )
    if valid:
        output.print("The manifest is valid.")
    return 0 if valid else 1


def _mirror_overlaps(workspace: Workspace) -> Iterable[Diagnostic]:
    """Find sources that overlap the mirror; imports mirror code on demand."""
    if all(address.kind is not Kind.WEIGHTS for address in workspace.desired.resources):
        return ()
    from trainctl.operations.survey.checks import mirror_overlaps

    return mirror_overlaps(workspace)


class ExplainFormat(StrEnum):
    """Formats of explanations."""

    TEXT = "text"
    MARKDOWN = "markdown"


def explain_command(
    ctx: typer.Context,
    name: Annotated[
        str | None, argument("FIELD|CODE", "Field, e.g. jobs.*.runtime, or error code")
    ] = None,
    all_: Annotated[bool, option("--all", "Explain all error codes")] = False,
    format_: Annotated[
        ExplainFormat, option("--format FORMAT", "Format of error codes: text or markdown", OUTPUT)
    ] = ExplainFormat.TEXT,
) -> int:
    """Explain a manifest field, or the code of an error or warning."""
    session = session_of(ctx)
    known = explanations()
    if all_ or name is None:
        _print_codes(session, in_full=all_, form=format_)
    elif name in known:
        session.output.prose(*code_lines(known[name], session.output))
    else:
        _explain_field(session, name, list(known))
    return 0


def _print_codes(session: CliSession, *, in_full: bool, form: ExplainFormat) -> None:
    output = session.output
    if in_full and form is ExplainFormat.MARKDOWN:
        output.print(error_reference().rstrip())
        return
    for number, explanation in enumerate(explanations().values()):
        if in_full:
            output.prose(*([""] if number else []), *code_lines(explanation, output))
        else:
            output.prose(f"{explanation.code}: {explanation.title}")


def _explain_field(session: CliSession, name: str, codes: list[str]) -> None:
    known = fields(manifest_schema())
    matches = find(name, known)
    if not matches:
        suggestion = nearest(name, codes) or nearest_path(name, known)
        sections = ", ".join(steps[0] for steps in known if len(steps) == 1)
        hint = f"Did you mean {suggestion!r}?" if suggestion else f"Manifest sections: {sections}."
        raise UsageError(f"unknown field or error code {name!r}", hint)
    for number, field in enumerate(matches):
        children = [
            child for child in (known.get((*field.steps, key)) for key in field.keys) if child
        ]
        lines = field_lines(field, children, session.output)
        session.output.prose(*([""] if number else []), *lines)


def manifest_schema() -> dict[str, Any]:
    """Return the manifest's schema with the settings of installed providers."""
    from trainctl_schemas import schema

    manifest = schema("manifest")
    common = manifest["$defs"]["Cluster"]["properties"]
    own: dict[str, dict[str, Any]] = {}
    for provider in discovery.plugin_names(discovery.PROVIDERS):
        properties: Any = discovery.load_provider(provider).schema().get("properties", {})
        for key, entry in properties.items():
            own.setdefault(key, {})[provider] = entry
    merged = {key: _merged_entry(entries) for key, entries in own.items() if key not in common}
    common.update(merged)
    return manifest


def _merged_entry(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the schemas of one key by provider: the first form, and each meaning with its providers."""
    first = next(iter(entries.values()))
    providers: dict[str, list[str]] = {}
    for provider, entry in entries.items():
        providers.setdefault(entry.get("description", ""), []).append(provider)
    texts = [f"{text} For {_provider_list(names)}.".strip() for text, names in providers.items()]
    merged = {**first, "description": " ".join(texts)}
    if any(entry.get("default") != first.get("default") for entry in entries.values()):
        merged.pop("default", None)
    return merged


def _provider_list(names: Sequence[str]) -> str:
    return f"the provider{'s' if len(names) > 1 else ''} {' and '.join(names)}"


def schema_command(
    ctx: typer.Context,
    kind: Annotated[str, argument("KIND", "Document [default: manifest]")] = "manifest",
) -> int:
    """Print the JSON Schema of the manifest or of a JSON output."""
    from trainctl_schemas import names, schema

    if kind not in names():
        raise UsageError(f"unknown schema {kind!r}", f"Use one of: {', '.join(names())}.")
    session_of(ctx).output.json(schema(kind))
    return 0
