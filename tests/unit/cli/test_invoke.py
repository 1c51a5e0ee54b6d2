"""What a failing command says and returns."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.unit.cli.conftest import Declare
from trainctl.cli import invoke
from trainctl.cli.session import CliSession
from trainctl.errors import LockHeld, PartialApply, TrainctlError, UserInterrupt

SECRET = "hf_planted_secret_value"


Run = Callable[[BaseException | int], tuple[int, str]]


@pytest.fixture
def run(declare: Declare, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command that returns or raises this: its exit code and standard error."""

    def ran(outcome: BaseException | int) -> tuple[int, str]:
        def command() -> int:
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

        declare("fail", command)
        return invoke.invoke(["fail"]), capsys.readouterr().err

    return ran


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (TrainctlError("no"), 1),
        (LockHeld("held by ana"), 10),
        (PartialApply("one of two failed"), 12),
        (UserInterrupt("stopped"), 130),
    ],
)
def test_errors_have_their_exit_code(run: Run, outcome: TrainctlError, code: int) -> None:
    exit_code, shown = run(outcome)
    assert (exit_code, shown.splitlines()[0]) == (
        code, f"error: {outcome.summary} [{outcome.code}]",
    )  # fmt: skip
    assert ("trainctl explain" in shown) is (outcome.code not in ("failed", "interrupted"))


@pytest.mark.parametrize(
    ("outcome", "code", "shown"),
    [
        (12, 12, ""),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (
            PermissionError(13, "Permission denied", "/etc/shadow"),
            1,
            "error: /etc/shadow: Permission denied [failed]\n",
        ),
        (
            TrainctlError("no such branch", "Write a branch.\nOr a tag.", address="weights.a"),
            1,
            "error: weights.a: no such branch [failed]\n  Write a branch.\n  Or a tag.\n",
        ),
    ],
)
def test_other_outcomes(run: Run, outcome: BaseException | int, code: int, shown: str) -> None:
    """An address comes first, a detail is indented, and no traceback is shown."""
    assert run(outcome) == (code, shown)


@pytest.fixture
def root_logger() -> Iterator[None]:
    """Level and handlers of the root logger are restored."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers
    yield
    root.handlers = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("root_logger")
@pytest.mark.parametrize(("flags", "traced"), [([], False), (["--log-level", "debug"], True)])
def test_a_crash_is_short_and_redacted(
    declare: Declare, capsys: pytest.CaptureFixture[str], flags: list[str], traced: bool
) -> None:
    """Only debug shows the traceback, also without secrets."""

    def command(session: CliSession) -> int:
        session.redactor.register(SECRET)
        raise RuntimeError(f"token {SECRET} was refused")

    declare("fail", command)
    with pytest.raises(RuntimeError) as crash:
        invoke.invoke(["fail", *flags])
    sys.excepthook(crash.type, crash.value, crash.tb)
    shown = capsys.readouterr().err
    assert SECRET not in shown
    assert "token (redacted) was refused" in shown
    assert ("Traceback" in shown) is traced
    assert ("--log-level debug" in shown) is not traced
