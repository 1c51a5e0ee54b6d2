"""One command from its arguments to its exit code, whatever happens on the way."""

from __future__ import annotations

import os
from collections.abc import Sequence

from typer import Abort, Exit, TyperException

from trainctl.cli.aliases import arrange
from trainctl.cli.app import build
from trainctl.cli.failures import (
    hide_tracebacks,
    report,
    report_interrupt,
    report_system,
    report_usage,
)
from trainctl.cli.session import Session
from trainctl.errors import TrainctlError


def invoke(arguments: Sequence[str]) -> int:
    """Run the command on this process's streams."""
    session = Session.of_process()
    hide_tracebacks(session)
    try:
        code = _guarded(arguments, session)
        session.output.flush()
    except BrokenPipeError:
        _drop_output()
        return 1
    except OSError as error:
        _drop_output()
        return report_system(error, session)
    return code


def _guarded(arguments: Sequence[str], session: Session) -> int:
    try:
        return _run(arguments, session)
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


def _run(arguments: Sequence[str], session: Session) -> int:
    root = build()
    words = arrange(arguments, root)
    with root.make_context("trainctl", words, obj=session) as ctx:
        code: int = root.invoke(ctx)
        return code


def _drop_output() -> None:
    """The reader has left or the disk is full: nothing more can be said there, not even at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
