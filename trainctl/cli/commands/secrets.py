"""``trainctl secrets``."""

from __future__ import annotations

import getpass
import os
from typing import Annotated

from trainctl.cli import options
from trainctl.cli.options import (
    NO_FLAGS,
    OptionSelection,
    PlanningFlags,
    TableFormat,
    argument,
    option,
    print_result,
)
from trainctl.cli.session import CliSession
from trainctl.cli.workspaces import approve, open_with_trust
from trainctl.errors import UsageError
from trainctl.operations.runs.control import runs_waiting_for_secrets, send_secrets
from trainctl.operations.secrets import check_secrets, exit_code, push_secret, require_storable
from trainctl.secrets.sources import MAX_BYTES
from trainctl.views.events import TextEventPrinter
from trainctl.views.problems import diagnostic_lines, explain_hint_lines
from trainctl.views.secrets import (
    SECRET_COLUMNS,
    pushed_lines,
    secret_lines,
    secret_rows,
    secrets_json,
)
from trainctl.views.terminal.progress import ProgressDisplay


def check_command(
    session: CliSession,
    format_: options.TableFormatOption = TableFormat.TEXT,
    flags: Annotated[PlanningFlags, OptionSelection("trust variables var_files")] = NO_FLAGS,
) -> int:
    """Show sources, recipients and permissions of secrets. Sends no secret to a node."""
    with open_with_trust(session, flags) as workspace:
        checks = check_secrets(workspace)
    output = session.output
    lines = secret_lines(checks, output.width)
    print_result(
        output,
        format_,
        secrets_json(checks),
        lines,
        (SECRET_COLUMNS, secret_rows(checks)),
    )
    problems = [problem for check in checks for problem in check.problems]
    if format_ is not TableFormat.JSON:
        output.note(
            *diagnostic_lines(problems, output.error_style, output.error_width),
            *explain_hint_lines(problems, output.error_style),
        )
    return exit_code(checks)


def push_command(
    session: CliSession,
    name: Annotated[
        str | None, argument("NAME", "Secret to store, as declared in the manifest")
    ] = None,
    from_env: Annotated[
        str | None,
        option(
            "--from-env VARIABLE",
            "Read the value from this environment variable instead of standard input",
        ),
    ] = None,
    auto_approve: options.AutoApprove = False,
    flags: Annotated[PlanningFlags, OptionSelection("variables var_files trust")] = NO_FLAGS,
) -> int:
    """Send secrets to runs that wait for them, e.g. after a reboot of the node.

    With NAME, first store its value where the manifest keeps it: a keyring or AWS Secrets Manager.
    """

    def confirm(place: str) -> bool:
        if not auto_approve and not session.stdin.isatty():
            raise UsageError(
                f"{place} already has a different value, and standard input is not a terminal",
                "Use --auto-approve to replace the value.",
                code="no-terminal",
            )
        return auto_approve or approve(session, f"Replace the value in {place}?")

    if name is None and from_env is not None:
        raise UsageError(
            "--from-env needs NAME", "Use trainctl secrets push NAME --from-env VARIABLE."
        )
    with open_with_trust(session, flags) as workspace:
        if name is not None:
            spec = require_storable(workspace, name)
            pushed = push_secret(workspace, spec, _read_value(session, name, from_env), confirm)
            if pushed is None:
                session.output.note("Nothing was changed.")
                return 1
            session.output.prose(*pushed_lines(pushed))
        waiting = runs_waiting_for_secrets(workspace, name)
        if not waiting and name is None:
            session.output.print("No runs wait for secrets.")
        with ProgressDisplay(session.output) as progress:
            sent = send_secrets(workspace, waiting, TextEventPrinter(session.output, progress))
    return 0 if len(sent) == len(waiting) else 1


def _read_value(session: CliSession, name: str, variable: str | None) -> str:
    """Read a value from the environment, a prompt, or stdin without newline."""
    if variable is not None:
        value = os.environ.get(variable, "")
        source = f"environment variable {variable}"
    elif session.stdin.isatty():
        value = getpass.getpass(f"Value of {name} (not shown): ")
        source = "typed value"
    else:
        value = session.stdin.read(MAX_BYTES + 3).removesuffix("\n").removesuffix("\r")
        source = "standard input"
    if not value:
        raise UsageError(
            f"value of secret {name} is empty ({source})",
            f"Pipe the value: trainctl secrets push {name} < FILE",
        )
    if len(value.encode()) > MAX_BYTES:
        raise UsageError(
            f"value of secret {name} is longer than {MAX_BYTES // 2**10} KiB ({source})",
            "Use a shorter value.",
        )
    return value
