"""``trainctl schema``."""

from __future__ import annotations

from typing import Annotated

import typer

from trainctl.cli.session import session_of
from trainctl.errors import UsageError


def command(
    ctx: typer.Context,
    kind: Annotated[
        str, typer.Argument(metavar="[KIND]", help="Which document; the manifest by default.")
    ] = "manifest",
) -> int:
    """Print the JSON Schema of a document."""
    from trainctl_schemas import names, schema

    if kind not in names():
        raise UsageError(f"there is no schema {kind!r}", f"There are: {', '.join(names())}.")
    session_of(ctx).output.json(schema(kind))
    return 0
