"""``trainctl explain``."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from trainctl.cli.session import Session, session_of
from trainctl.errors import UsageError
from trainctl.manifest.fields import Field, Steps, fields, find, nearest_path
from trainctl.manifest.nearest import nearest
from trainctl.model.codes import explanations, page
from trainctl.spi import discovery
from trainctl.views.explained import code_lines, field_lines


class Form(StrEnum):
    """How explanations are printed."""

    TEXT = "text"
    MARKDOWN = "markdown"


def command(
    ctx: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[FIELD|CODE]", help="A field, such as jobs.*.runtime, or the code of an error."
        ),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every code of an error or warning.")] = False,
    format_: Annotated[
        Form, typer.Option("--format", help="How codes are printed; fields are text.")
    ] = Form.TEXT,
) -> int:
    """Say what a field of the manifest, or the code of an error or warning, means."""
    session = session_of(ctx)
    if all_ or name is None:
        _print_codes(session, whole=all_, form=format_)
        return 0
    known = explanations()
    if name in known:
        _print(session, code_lines(known[name], session.output))
        return 0
    _explain_field(session, name, list(known))
    return 0


def _print_codes(session: Session, *, whole: bool, form: Form) -> None:
    if whole and form is Form.MARKDOWN:
        session.output.print(page().rstrip())
        return
    for number, explanation in enumerate(explanations().values()):
        if whole:
            _print(session, [*([""] if number else []), *code_lines(explanation, session.output)])
        else:
            session.output.prose(f"{explanation.code}: {explanation.title}")


def _explain_field(session: Session, name: str, codes: list[str]) -> None:
    known = fields(_schema())
    found = find(name, known)
    if not found:
        meant = nearest(name, codes) or nearest_path(name, known)
        hint = (
            f"Did you mean {meant!r}?" if meant else "Sections are " + ", ".join(_sections(known))
        )
        raise UsageError(f"no field and no code is called {name!r}", hint)
    for number, field in enumerate(found):
        below = [one for one in (known.get((*field.steps, key)) for key in field.keys) if one]
        _print(session, [*([""] if number else []), *field_lines(field, below, session.output)])


def _sections(known: dict[Steps, Field]) -> list[str]:
    return [steps[0] for steps in known if len(steps) == 1]


def _schema() -> dict[str, Any]:
    """The manifest's schema, with the settings of clusters that installed providers know."""
    from trainctl_schemas import schema

    manifest = schema("manifest")
    settings = manifest["$defs"]["Cluster"]["properties"]
    for provider in discovery.names(discovery.PROVIDERS):
        own: Any = discovery.load_provider(provider).schema()
        for key, entry in own.get("properties", {}).items():
            settings.setdefault(key, {**entry, "description": _of_provider(entry, provider)})
    return manifest


def _of_provider(entry: dict[str, Any], provider: str) -> str:
    return f"{entry.get('description', '')} For the provider {provider}.".strip()


def _print(session: Session, lines: list[str]) -> None:
    for line in lines:
        session.output.prose(line)
