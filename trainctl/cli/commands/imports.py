"""``trainctl import`` and ``import truss``."""

from __future__ import annotations

import sys
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

from trainctl.cli import options
from trainctl.cli.options import PlanFormat, argument, option
from trainctl.cli.plan_execution import execute_plan
from trainctl.cli.plans import ApplyFlags, show_plan
from trainctl.cli.session import CliSession
from trainctl.cli.workspaces import addresses, open_workspace
from trainctl.errors import UsageError
from trainctl.inputs.code import check_code
from trainctl.ledger.edits import edit
from trainctl.ledger.planned_edits import StateEdits
from trainctl.manifest.files import manifest_files
from trainctl.manifest.writer import to_toml, to_yaml
from trainctl.model.address import Address, Kind
from trainctl.operations.manifests.truss import ImportTarget, convert, note_refusals
from trainctl.operations.manifests.truss_config import parse_dump, read_config
from trainctl.operations.plan import adopt_run, create_plan
from trainctl.operations.survey import SurveyOptions
from trainctl.operations.workspace import Workspace
from trainctl.plan.values import PlanOptions
from trainctl.views.state import summary
from trainctl.views.truss import imported_lines


def import_command(
    session: CliSession,
    address: Annotated[str, argument("ADDRESS", "Declared resource, e.g. job.train")],
    id_: Annotated[str | None, argument("ID", "ID of the run, as --run")] = None,
    run: options.RunOption = None,
    on: Annotated[str | None, option("--on CLUSTER/NODE", "First node of the run")] = None,
) -> int:
    """Record an existing resource in the state, and what it needs.

    Clusters, weights and caches are found by what the manifest says. A job needs one of its runs.
    """
    run = run or id_
    named = addresses((address,), "ADDRESS")[0]
    is_job = named.kind is Kind.JOB
    if is_job is not bool(run and on):
        raise UsageError(
            f"{named} needs --run and --on" if is_job else "--run and --on are for jobs",
            "For example: trainctl import job.train --run nuui5lk --on lab/gpu-01",
        )
    with open_workspace(session) as workspace:
        resource, state = workspace.desired.resources.get(named), workspace.ledger.state()
        if resource is None or named in state.resources:
            where = "not in the manifest" if resource is None else "in the state already"
            raise UsageError(f"{named} is {where}", "Nothing was changed.")
        needed = resource.depends_on if is_job else (named,)
        missing = [item for item in needed if item not in state.resources]
        code = _adopt(session, workspace, missing) if missing else 0
        if code or not is_job:
            return code
        record = adopt_run(workspace, workspace.ledger.state(), named, str(on), str(run))
        edit(workspace.ledger, StateEdits(imports=(record,)))
    session.output.print(f"Imported {named}: {summary(record)}.")
    return 0


def _adopt(session: CliSession, workspace: Workspace, missing: list[Address]) -> int:
    """Record resources that are not in the state; creating them again changes nothing."""
    for address in missing:
        provider = workspace.desired.resources[address].provider
        if address.kind is Kind.JOB:
            raise UsageError(f"{address} is not in the state", f"Import it first: {address}.")
        if (
            address.kind is Kind.CLUSTER
            and workspace.provider(provider).capabilities.creates_machines
        ):
            raise UsageError(
                f"{address} can't be imported: its machines belong to the lost state",
                "End them: trainctl nodes reap --lineage ID. Then apply creates new ones.",
            )
    plan_options = PlanOptions(targets=tuple(missing), edits_state=False)
    plan = create_plan(workspace, plan_options, SurveyOptions(applies=True))
    if not plan.usable:
        show_plan(session, plan, PlanFormat.TEXT)
        return plan.exit_code
    return execute_plan(session, workspace, plan, ApplyFlags(auto_approve=True), 10)


class ManifestFormat(StrEnum):
    """Formats of a manifest."""

    YAML = "yaml"
    TOML = "toml"


_STANDARD = Path("-")


def import_truss_command(
    session: CliSession,
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
            "--out FILE",
            "Manifest; - is stdout [default: trainctl.yaml, by the config]",
            options.OUTPUT,
        ),
    ] = None,
    format_: Annotated[
        ManifestFormat | None,
        option("--format FORMAT", "yaml or toml [default: by the name of FILE]", options.OUTPUT),
    ] = None,
) -> int:
    """Write a manifest from a config of truss train.

    The config is run by the interpreter that has the SDK. Nothing else of its directory runs.
    """
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
