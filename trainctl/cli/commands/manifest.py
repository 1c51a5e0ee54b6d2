"""``trainctl init``, ``validate``, ``fmt``, ``explain`` and ``schema``."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from trainctl.cli import options
from trainctl.cli.options import OutputFormat, PlanningFlags, argument, option
from trainctl.cli.session import CliSession
from trainctl.cli.workspaces import open_workspace
from trainctl.errors import ManifestError, UsageError
from trainctl.manifest.fields import fields, find, nearest_path
from trainctl.model.diagnostics import Diagnostic, Severity, error_reference, explanations, nearest
from trainctl.plugin_api import discovery
from trainctl.views.problems import code_lines, counted_lines, field_lines


def init_command(
    session: CliSession,
    directory: Annotated[
        Path, argument("DIR", "Directory of the project [default: current directory]")
    ] = Path(),
    example: Annotated[str | None, option("--example NAME", "Copy a complete example")] = None,
    list_examples: Annotated[bool, option("--list-examples", "List the examples")] = False,
) -> int:
    """Create a project: a minimal manifest for this machine, or an example.

    Files that exist are kept.
    """
    from trainctl.operations.manifests.init import EXAMPLES, write_example, write_minimal
    from trainctl.views.terminal.text import table

    output = session.output
    if list_examples:
        output.prose(*table(("EXAMPLE", "SHOWS"), list(EXAMPLES.items())))
        return 0
    if example is not None and example not in EXAMPLES:
        raise UsageError(f"unknown example {example!r}", f"Use one of: {', '.join(EXAMPLES)}.")
    if example is None:
        result = write_minimal(directory, Path("~/.ssh/config").expanduser())
    else:
        result = write_example(example, directory)
    place = "" if directory == Path() else f"-C {shlex.quote(str(directory))} "
    for name in result.written:
        output.prose(f"Wrote {directory / name}.")
    for name in result.existing:
        output.prose(f"Kept {directory / name}: it exists already.")
    output.prose("", f"Next: edit {directory / 'trainctl.yaml'}, then run trainctl {place}plan.")
    return 0


def validate_command(session: CliSession, format_: options.FormatOption = OutputFormat.TEXT) -> int:
    """Check the manifest for errors. Doesn't read the state or use the network."""
    output = session.output
    with open_workspace(session, PlanningFlags(offline=True)) as workspace:
        try:
            diagnostics = list(workspace.desired.warnings)
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
        output.note(*counted_lines(diagnostics, output.error_style, output.error_width))
    if valid:
        output.print("The manifest is valid.")
    return 0 if valid else 1


def fmt_command(
    session: CliSession,
    check: Annotated[
        bool, option("--check", "Write nothing; exit with 1 if a file isn't formatted")
    ] = False,
    diff: Annotated[bool, option("--diff", "Show the differences")] = False,
) -> int:
    """Format the YAML files of the manifest: indentation, blank lines and line ends.

    Comments and values stay. Prints the names of the files that aren't formatted, and writes them.
    """
    from difflib import unified_diff

    from trainctl.operations.manifests.fmt import format_files

    files = list(format_files(session.directory))
    changed = [file for file in files if file.before != file.after]
    for file in changed:
        session.output.print(file.name)
        if diff:
            lines = file.before.splitlines(), file.after.splitlines()
            for line in unified_diff(*lines, file.name, f"{file.name} (formatted)", lineterm=""):
                session.output.print(line)
        if not check:
            (session.directory / file.name).write_bytes(file.after.encode())
    return 1 if check and changed else 0


class ExplainFormat(StrEnum):
    """Formats of explanations."""

    TEXT = "text"
    MARKDOWN = "markdown"


def explain_command(
    session: CliSession,
    name: Annotated[
        str | None, argument("FIELD|CODE", "Field, e.g. jobs.*.runtime, or error code")
    ] = None,
    all_: Annotated[bool, option("--all", "Explain all error codes")] = False,
    format_: Annotated[
        ExplainFormat,
        option("--format FORMAT", "Format of error codes: text or markdown", options.OUTPUT),
    ] = ExplainFormat.TEXT,
) -> int:
    """Explain a manifest field, or the code of an error or warning."""
    known = explanations()
    output = session.output
    if all_ and format_ is ExplainFormat.MARKDOWN:
        output.print(error_reference().rstrip())
    elif all_:
        for number, explanation in enumerate(known.values()):
            output.prose(*([""] if number else []), *code_lines(explanation, output))
    elif name is None:
        for explanation in known.values():
            output.prose(f"{explanation.code}: {explanation.title}")
    elif name in known:
        session.output.prose(*code_lines(known[name], session.output))
    else:
        _explain_field(session, name, list(known))
    return 0


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
    texts = [
        f"{text} For the provider{'s' if len(names) > 1 else ''} {' and '.join(names)}.".strip()
        for text, names in providers.items()
    ]
    merged = {**first, "description": " ".join(texts)}
    if any(entry.get("default") != first.get("default") for entry in entries.values()):
        merged.pop("default", None)
    return merged


def schema_command(
    session: CliSession,
    kind: Annotated[str, argument("KIND", "Document [default: manifest]")] = "manifest",
) -> int:
    """Print the JSON Schema of the manifest or of a JSON output."""
    from trainctl_schemas import names, schema

    if kind not in names():
        raise UsageError(f"unknown schema {kind!r}", f"Use one of: {', '.join(names())}.")
    session.output.json(schema(kind))
    return 0
