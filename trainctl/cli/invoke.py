"""Run a command: from its arguments to its exit code, with error reports."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Sequence

from typer import Abort, Exit, TyperException

from trainctl.cli.app import build
from trainctl.cli.arguments import normalize_arguments
from trainctl.cli.session import CliSession
from trainctl.errors import TrainctlError, UsageError, UserInterrupt


def invoke(arguments: Sequence[str]) -> int:
    """Run a command on the streams of this process."""
    session = CliSession.of_process()
    hide_tracebacks(session)
    try:
        code = _run(arguments, session)
        session.output.flush()
    except BrokenPipeError:
        _discard_output()
        return 1
    except OSError as error:
        _discard_output()
        return report_system(error, session)
    return code


def _run(arguments: Sequence[str], session: CliSession) -> int:
    try:
        root = build()
        words = normalize_arguments(arguments, root)
        with root.make_context("trainctl", words, obj=session) as ctx:
            code: int = root.invoke(ctx)
            return code
    except Exit as done:
        return done.exit_code
    except TrainctlError as error:
        return report(error, session)
    except TyperException as error:
        return report_usage(error, session)
    except (KeyboardInterrupt, Abort):
        return report_interrupt(session)
    except BrokenPipeError:
        raise
    except OSError as error:
        return report_system(error, session)


def _discard_output() -> None:
    """Redirect stdout to /dev/null, so that the flush at exit can't fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def report(error: TrainctlError, session: CliSession) -> int:
    """Print a TrainctlError; return its exit code."""

    from trainctl.views.problems import problem_lines

    output = session.output
    output.note(*problem_lines(error, output.error_style, output.error_width))
    if session.debug:
        output.note(_trace(error))
    return error.exit_code


def report_usage(error: TyperException, session: CliSession) -> int:
    """Print an error of the parser."""
    ctx = getattr(error, "ctx", None)
    path = ctx.command_path if ctx else "trainctl"
    text = " ".join(error.format_message().split()).rstrip(".")
    name = path.partition(" ")[2]
    summary = (f"{name}: " if name else "") + text[:1].lower() + text[1:]
    report(UsageError(summary, f"Run {path} --help for its arguments."), session)
    return UsageError.exit_code


def report_system(error: OSError, session: CliSession) -> int:
    """Print an OSError, such as a full disk."""
    where = f"{error.filename}: " if error.filename else ""
    report(TrainctlError(f"{where}{error.strerror or error}"), session)
    if session.debug:
        session.output.note(_trace(error))
    return 1


def report_interrupt(session: CliSession) -> int:
    """Report an interrupt at a prompt or by Ctrl-C."""
    echoed = session.output.error_is_terminal  # the terminal has written ^C
    session.output.note("\ninterrupted" if echoed else "interrupted")
    return UserInterrupt.exit_code


def hide_tracebacks(session: CliSession) -> None:
    """Print unexpected exceptions as short, redacted messages."""

    def crash(_: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, KeyboardInterrupt | Abort):
            report_interrupt(session)
        elif session.debug and error is not None:
            session.output.note(_trace(error))
        elif isinstance(error, OSError) and error.errno == errno.ENOSPC:
            report_system(error, session)
        elif error is not None:
            text = f"{type(error).__name__}: {error}".strip().splitlines()[0]
            hint = "Report this bug with the traceback that --log-level debug prints."
            report(TrainctlError(f"internal error: {text}", hint, code="internal-error"), session)

    sys.excepthook = crash
    threading.excepthook = lambda args: crash(*args[:3])


def _trace(error: BaseException) -> str:
    import traceback

    return "".join(traceback.format_exception(error)).rstrip()
