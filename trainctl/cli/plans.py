"""Create, print, save and load plans."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainctl import __version__
from trainctl.base.filesystem.files import write_atomic
from trainctl.cli.options import PlanFormat, PlanningFlags
from trainctl.cli.session import CliSession
from trainctl.cli.workspaces import addresses
from trainctl.desired.values import DesiredState
from trainctl.errors import StorageError, UsageError
from trainctl.operations.preconnect import connect_early
from trainctl.operations.review import require_signature, sign, signature_of
from trainctl.operations.survey import SurveyOptions
from trainctl.operations.workspace import Workspace
from trainctl.plan.values import OUTPUT_MARK, Plan, PlanOptions
from trainctl.views.problems import diagnostic_lines, explain_hint_lines

if TYPE_CHECKING:
    from trainctl.encryption.keys import EncryptionKeys
    from trainctl.plan.plan_file import SavedPlan


@dataclass(frozen=True, slots=True)
class ApprovalFlags:
    """``--expect``, or whether to read the approved digest from the review server."""

    expect: str | None = None
    check: bool = False
    comment: bool = False

    def digest(self, session: CliSession, state_url: str) -> str | None:
        """Return the digest that the plan must have, if any; StalePlan if none is approved."""
        if not (self.check or self.comment):
            return self.expect
        if self.expect or (self.check and self.comment):
            raise UsageError("use only one of --expect, --expect-check and --expect-comment")
        from trainctl.operations.review import (
            approved_digest,
            review_name,
            review_server,
        )

        server = review_server(os.environ, session.redactor, session.output.note)
        name = review_name(session.directory, state_url)
        return approved_digest(server, name, from_comment=self.comment)


def plan_from_flags(
    workspace: Workspace, flags: PlanningFlags, *, writes_lock: bool | None = None
) -> Plan:
    """Create the plan of the options.

    ``writes_lock`` is whether applying it writes the lock file; None if it isn't applied now.
    """
    options = PlanOptions(
        destroy=flags.destroy,
        refresh_only=flags.refresh_only,
        upgrade=flags.upgrade,
        targets=addresses(flags.targets, "--target"),
        excludes=addresses(flags.excludes, "--exclude"),
        replace=addresses(flags.replaces, "--replace"),
        run=addresses(flags.runs, "ADDRESS"),
        delete_checkpoints=flags.delete_checkpoints,
        reuse=not flags.no_reuse,
        overrides=tuple(f"{path}={value}" for path, value in flags.overrides.items()),
    )
    if flags.untrusted:
        from trainctl.operations.untrusted import create_untrusted_plan

        return create_untrusted_plan(workspace, options, flags.parallelism)
    survey = SurveyOptions(
        flags.refresh,
        flags.offline,
        flags.upgrade,
        flags.parallelism,
        writes_lock,
        applies=writes_lock is not None,
    )
    if not flags.destroy:
        connect_early(workspace, survey)
    # Import most of the program while the connections to nodes are being opened.
    from trainctl.operations.runs.resume import plan_rerun, plan_with_resumes, resume_starts

    if flags.repeat is not None:
        return plan_rerun(workspace, options.run[0], flags.repeat, survey)
    starts = resume_starts(workspace, options.run) if flags.resume else {}
    return plan_with_resumes(workspace, options, survey, starts)


def show_plan(
    session: CliSession,
    plan: Plan,
    format_: PlanFormat,
    *,
    concise: bool = False,
    saved: Path | None = None,
    shown: Path | None = None,
) -> None:
    """Print a plan as the result of the command; ``saved`` is the new file with it, ``shown`` an old one."""
    output = session.output
    if format_ is PlanFormat.JSON:
        from trainctl.views.plan.json import plan_json

        output.json(plan_json(plan))
        return
    if format_ is PlanFormat.MARKDOWN:
        from trainctl.views.plan.pages import plan_markdown

        rest = rest_command(saved or shown)
        lines = plan_markdown(plan, now=time.time(), concise=concise, rest=rest)
    elif format_ is PlanFormat.HTML:
        from trainctl.views.plan.pages import plan_html

        lines = plan_html(plan, now=time.time(), concise=concise)
    else:
        from trainctl.views.plan.text import plan_text

        width = shutil.get_terminal_size().columns
        lines = plan_text(plan, style=output.style, width=width, now=time.time(), concise=concise)
        if output.is_file_in(session.directory):
            lines = [f"# {OUTPUT_MARK}", *lines]
    text = "\n".join(lines)
    if format_ is PlanFormat.TEXT:
        output.prose(text)
    else:
        output.print(text)
    problems = diagnostic_lines(plan.diagnostics, output.error_style, output.error_width)
    if problems and output.error_is_terminal:
        output.note("")
    output.note(*problems, *explain_hint_lines(plan.diagnostics, output.error_style))
    if saved is not None:
        act = "show" if plan.options.untrusted else "apply"
        output.note(f"Saved the plan to {saved}. To {act} it, run: trainctl {act} {saved}")


def rest_command(planfile: Path | None) -> str:
    """Return the command that shows what a comment leaves out."""
    return f"trainctl show {shlex.quote(str(planfile))}" if planfile else "trainctl plan"


def save_plan(
    path: Path,
    plan: Plan,
    desired: DesiredState,
    keys: EncryptionKeys | None = None,
    signing_key: Path | None = None,
) -> None:
    """Write a plan file, encrypted if there are keys, and its signature if there is a key to sign."""
    from trainctl.plan import plan_file

    text = plan_file.write_plan(plan, desired, __version__, keys)
    signature = None if signing_key is None else sign(text.encode(), signing_key)
    write_file(path, text)
    if signature is not None:
        write_file(signature_of(path), signature)


def write_file(path: Path, text: str) -> None:
    """Write a file that is complete or absent, and readable by its owner only."""
    try:
        write_atomic(path, text.encode())
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error


def load_plan(
    path: Path,
    keys: Callable[[], EncryptionKeys | None] = lambda: None,
    signers: Path | None = None,
) -> SavedPlan:
    """Read a plan file, an encrypted one with these keys, signed by one of the file ``signers`` if given."""
    from trainctl.plan import plan_file

    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise UsageError(
            f"plan file {path} not found",
            "Save a plan with trainctl plan --out FILE.",
            code="plan-file-not-found",
        ) from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    if signers is not None:  # before anything of the plan is used
        require_signature(data, signature_of(path), signers)
    return plan_file.read_plan(data.decode(errors="replace"), str(path), keys)


@contextmanager
def values_of(path: Path | None) -> Iterator[None]:
    """Report values of wrong types while a plan is shown: a hostile author may have written its file."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as problem:
        if path is None:
            raise
        from trainctl.plan.plan_file import invalid_plan_file

        raise invalid_plan_file(str(path), "corrupt") from problem
