"""Run a command: from its arguments to its exit code, with error reports."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from trainctl import __version__
from trainctl.cli.app import GLOBAL, ROOT, CliCommand
from trainctl.cli.arguments import CommandLine, read_arguments, values_of
from trainctl.cli.options import GlobalOptions
from trainctl.cli.session import CliSession, CommandExit
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
        line = read_arguments(arguments, ROOT)
        with contextlib.ExitStack() as stack:
            return _run_command(line, session, stack)
    except CommandExit as done:
        return done.code
    except TrainctlError as error:
        return report(error, session)
    except KeyboardInterrupt:
        return report_interrupt(session)
    except BrokenPipeError:
        raise
    except OSError as error:
        return report_system(error, session)


def _run_command(line: CommandLine, session: CliSession, stack: contextlib.ExitStack) -> int:
    if line.help is None or line.help[0] is not ROOT:
        options = GlobalOptions(**values_of(GLOBAL, line.global_options, (), ()))
        _use_options(options, session, stack)
        if options.install_completion:
            from trainctl.cli.install_completion import install

            shell, path = install()
            session.output.print(f"Wrote {path}. Start a new {shell} to use it.")
            return 0
        if options.version:
            session.output.print(f"trainctl {__version__}")
            return 0
        if line.help is None and isinstance(line.target, CliCommand):
            values = values_of(line.target.parameters, line.options, line.arguments, line.path)
            return line.target.run(session, values)
    from trainctl.cli.help import help_page

    session.output.print(help_page(*(line.help or (ROOT, [])), session.output.columns))
    return 0


def _use_options(options: GlobalOptions, session: CliSession, stack: contextlib.ExitStack) -> None:
    """Apply the global options to the session; the directory is left with the stack."""
    session.set_log_level(options.log_level)
    session.state_url = options.state or os.environ.get("TRAINCTL_STATE") or None
    session.environment = options.env
    if options.no_color:
        session.output.color = False
    try:
        if options.chdir is not None:
            if not options.chdir.is_dir():
                raise UsageError(f"-C {options.chdir}: no such directory")
            stack.enter_context(contextlib.chdir(options.chdir))
        session.directory = Path.cwd()
    except FileNotFoundError:
        raise UsageError(
            "the working directory no longer exists", "Change to a directory that exists."
        ) from None


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
        if isinstance(error, KeyboardInterrupt):
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
