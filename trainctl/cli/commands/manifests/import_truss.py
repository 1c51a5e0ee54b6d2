"""``trainctl import truss``."""

from __future__ import annotations

import sys
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from trainctl.cli.options import OUTPUT, argument, option
from trainctl.cli.session import CliSession, session_of
from trainctl.errors import UsageError
from trainctl.inputs.workspace_code import check_code
from trainctl.manifest.files import manifest_files
from trainctl.manifest.writer import to_toml, to_yaml
from trainctl.operations.truss.convert import ImportTarget, convert, note_refusals
from trainctl.operations.truss.reader import parse_dump, read_config
from trainctl.views.truss import imported_lines


class ManifestFormat(StrEnum):
    """Formats of a manifest."""

    YAML = "yaml"
    TOML = "toml"


_STANDARD = Path("-")


def import_truss_command(
    ctx: typer.Context,
    config: Annotated[Path | None, argument("CONFIG.py", "Config of truss train push")] = None,
    from_json: Annotated[
        Path | None,
        option("--from-json FILE", "JSON dump of the config, instead of running it; - is stdin"),
    ] = None,
    python: Annotated[
        str | None,
        option("--python PYTHON", "Interpreter with the package truss [default: trainctl's]"),
    ] = None,
    hosts: Annotated[
        str | None, option("--hosts HOST,…", "Run on these hosts, an ssh cluster")
    ] = None,
    cluster: Annotated[
        str | None, option("--cluster CLUSTER", "Run on a cluster that another file declares")
    ] = None,
    out: Annotated[
        Path | None,
        option(
            "--out FILE", "Manifest; - is stdout [default: trainctl.yaml, by the config]", OUTPUT
        ),
    ] = None,
    format_: Annotated[
        ManifestFormat | None,
        option("--format FORMAT", "yaml or toml [default: by the name of FILE]", OUTPUT),
    ] = None,
) -> int:
    """Write a manifest from a config of truss train.

    The config is run by the interpreter that has the SDK. Nothing else of its directory runs.
    """
    session = session_of(ctx)
    if config is None and from_json is None:
        raise UsageError("missing CONFIG.py", "Name a config, or a dump with --from-json.")
    format_ = format_ or ManifestFormat(
        "toml" if out is not None and out.suffix == ".toml" else "yaml"
    )
    folder = config.parent if config else Path()
    path = out if out is not None else folder / f"trainctl.{format_}"
    if path != _STANDARD and path.exists():
        raise UsageError(
            f"{path} exists already", "Name another file with --out.", code="target-exists"
        )
    if from_json is not None:
        dump = parse_dump(_read(session, from_json))
    else:
        dump = read_config(config or Path(), python or sys.executable)
    source = folder.resolve()
    directory = (Path() if path == _STANDARD else path.parent).resolve()
    names = [name.strip() for name in (hosts or "").split(",") if name.strip()]
    check = partial(check_code, directory)
    target = ImportTarget(str(source), str(directory), cluster, names, check)
    result = convert(dump, target)
    text = (to_toml if format_ is ManifestFormat.TOML else to_yaml)(result.tree, result.comments)
    note_refusals(result, target, f"trainctl.{format_}" if path == _STANDARD else path.name, text)
    output = session.output
    if path == _STANDARD:
        output.print(text.removesuffix("\n"))
        output.note(*imported_lines(result, str(Path()), output.error_style))
    else:
        path.write_text(text, encoding="utf-8")
        output.prose(f"Wrote {path}.", "", *imported_lines(result, str(path.parent), output.style))
        if path.name not in manifest_files(path.parent):
            output.note(
                f"Rename {path.name}: manifests are called trainctl.{format_} or *.trainctl.{format_}."
            )
    return 0 if result.runs_alike else 1


def _read(session: CliSession, path: Path) -> bytes:
    if path == _STANDARD:
        return session.stdin.read().encode()
    if not path.is_file():
        raise UsageError(f"--from-json {path}: no such file")
    return path.read_bytes()
