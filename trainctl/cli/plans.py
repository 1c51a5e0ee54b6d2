"""Create, print, save and load plans."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from trainctl import __version__
from trainctl.base.filesystem.files import write_atomic
from trainctl.base.lazy_dataclass import dataclass
from trainctl.cli import options
from trainctl.cli.options import OutputFormat, PlanFormat, PlanningFlags, option
from trainctl.cli.session import CliSession
from trainctl.cli.workspaces import addresses, require_terminal
from trainctl.desired.values import DesiredState
from trainctl.errors import PermissionDenied, StorageError, UsageError
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
class ApplyFlags:
    """Approval and other options of an apply, as typed; a command has those that its ``OptionSelection`` names."""

    auto_approve: options.AutoApprove = False
    wait: Annotated[
        bool, option("--wait", "Wait until all runs have ended; start jobs that depend on them")
    ] = False
    stop_running: Annotated[bool, option("--stop-running", "Allow stopping live runs")] = False
    expect: Annotated[
        str | None, option("--expect DIGEST", "Fail unless the plan has this digest")
    ] = None
    expect_check: Annotated[
        bool, option("--expect-check", "Fail unless the plan has the digest of the approved check")
    ] = False
    expect_comment: Annotated[
        bool, option("--expect-comment", "As --expect-check, with the digest of the comment")
    ] = False
    allow_unresolved_images: Annotated[
        bool,
        option("--allow-unresolved-images", "With --expect, accept images without a known digest"),
    ] = False
    require_signature: Annotated[
        Path | None,
        option("--require-signature FILE", "Apply PLANFILE only if a signer in FILE has signed it"),
    ] = None
    lockfile: Annotated[
        str | None, option("--lockfile MODE", "readonly: don't write trainctl.lock")
    ] = None
    lock_timeout: Annotated[
        str | None,
        option("--lock-timeout DURATION", "Wait this long in total for locks [default: 0s]"),
    ] = None
    format: options.FormatOption = OutputFormat.TEXT
    follows: bool = False
    named_runs: frozenset[str] = frozenset()
    """Live runs that a saved plan names, and so may stop."""

    def __post_init__(self) -> None:
        if self.lockfile not in (None, "readonly"):
            raise UsageError(f"--lockfile={self.lockfile}: must be readonly")
        _ = self.lock_seconds  # refuses a wrong duration before anything is planned

    @property
    def lock_seconds(self) -> float | None:
        """``--lock-timeout`` in seconds; UsageError if it isn't a duration."""
        text = self.lock_timeout
        return None if text is None else options.duration("--lock-timeout", text)

    def require_approval(self, session: CliSession) -> None:
        """Raise UsageError if confirmation is needed and there is no terminal."""
        if not self.auto_approve:
            require_terminal(session, ", or apply a plan saved by trainctl plan --out")

    def require_images(self, plan: Plan) -> None:
        """Raise PermissionDenied if a reviewed plan has images by name, unless they are allowed."""
        unresolved = sorted({row.image for row in plan.images if row.digest is None})
        if unresolved and not self.allow_unresolved_images:
            raise PermissionDenied(
                f"the digest of {unresolved[0]} is unknown, so another image may run than the reviewed one",
                "Name the image by digest (NAME@sha256:…), make its registry reachable from here, or pass --allow-unresolved-images.",
                code="unresolved-images",
            )

    def approved_digest(self, session: CliSession, state_url: str) -> str | None:
        """Return the digest that the plan must have, if any; StalePlan if none is approved."""
        if not (self.expect_check or self.expect_comment):
            return self.expect
        if self.expect or (self.expect_check and self.expect_comment):
            raise UsageError("use only one of --expect, --expect-check and --expect-comment")
        from trainctl.operations import review

        server = review.review_server(os.environ, session.redactor, session.output.note)
        name = review.review_name(session.directory, state_url)
        return review.approved_digest(server, name, from_comment=self.expect_comment)


DEFAULT_APPLY = ApplyFlags()


def plan_from_flags(
    workspace: Workspace, flags: PlanningFlags, *, writes_lock: bool | None = None
) -> Plan:
    """Create the plan of the options.

    ``writes_lock`` is whether applying it writes the lock file; None if it isn't applied now.
    """
    plan_options = PlanOptions(
        destroy=flags.destroy,
        refresh_only=flags.refresh_only,
        targets=addresses(flags.targets, "--target"),
        excludes=addresses(flags.excludes, "--exclude"),
        replace=addresses(flags.replaces, "--replace"),
        upgrade=flags.upgrade,
        run=addresses(flags.runs, "ADDRESS"),
        delete_checkpoints=flags.delete_checkpoints,
        reuse=not flags.no_reuse,
        overrides=tuple(f"{path}={value}" for path, value in flags.overrides.items()),
    )
    if flags.untrusted:
        from trainctl.operations.untrusted import create_untrusted_plan

        return create_untrusted_plan(workspace, plan_options, flags.parallelism)
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
        return plan_rerun(workspace, plan_options.run[0], flags.repeat, survey)
    resumes = flags.resume or flags.by
    starts = resume_starts(workspace, plan_options.run, by=flags.by) if resumes else {}
    return plan_with_resumes(workspace, plan_options, survey, starts)


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
        from trainctl.views.plan.html import plan_html

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
