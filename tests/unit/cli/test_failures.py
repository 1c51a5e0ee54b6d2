"""What a failing command says and returns."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from types import ModuleType

import pytest

from trainctl.cli import app, invoke
from trainctl.cli.app import CommandRow
from trainctl.errors import LockHeld, ManifestError, PartialApply, TrainctlError, UserInterrupt
from trainctl.model.diagnostics import Position, error, warning

SECRET = "hf_planted_secret_value"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runner:
    return Runner(monkeypatch, capsys)


class Runner:
    """Runs a made-up command that raises."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, raised: BaseException | int, *words: str) -> tuple[int, str]:
        def command() -> int:
            if isinstance(raised, BaseException):
                raise raised
            return raised

        module = ModuleType("trainctl.cli.commands.made_up")
        module.fail_command = command  # type: ignore[attr-defined]
        self._monkeypatch.setitem(sys.modules, module.__name__, module)
        self._monkeypatch.setattr(app, "COMMANDS", (CommandRow("fail", "made_up", "Fail."),))
        self._monkeypatch.setattr(sys, "excepthook", sys.excepthook)
        self._monkeypatch.setattr("threading.excepthook", sys.excepthook)
        code = invoke.invoke(["fail", *words])
        return code, self._capsys.readouterr().err


def test_the_exit_code_is_the_commands(run: Runner) -> None:
    """What the command returns is what the program exits with."""
    assert run(12) == (12, "")


@pytest.mark.parametrize(
    ("raised", "code"),
    [(TrainctlError("no"), 1), (LockHeld("held by ana"), 10), (PartialApply("one of two failed"), 12), (UserInterrupt("stopped"), 130)],
)  # fmt: skip
def test_errors_have_their_exit_code(run: Runner, raised: TrainctlError, code: int) -> None:
    """Each class means its exit code; summary and code are shown, and where to read more unless the code says nothing more."""
    exit_code, said = run(raised)
    assert (exit_code, said.splitlines()[0]) == (code, f"error: {raised.summary} [{raised.code}]")
    more = raised.code not in ("failed", "interrupted")
    assert ("trainctl explain" in said) is more


def test_detail_is_indented_and_the_address_comes_first(run: Runner) -> None:
    """An error says where, what, and below it what to do."""
    code, said = run(
        TrainctlError("no such branch", "Write a branch.\nOr a tag.", address="weights.a")
    )
    assert (code, said) == (
        1,
        "error: weights.a: no such branch [failed]\n  Write a branch.\n  Or a tag.\n",
    )


def test_ctrl_c_is_130(run: Runner) -> None:
    """Ctrl-C in a command is an exit code and a word, no traceback."""
    assert run(KeyboardInterrupt()) == (130, "interrupted\n")


def test_system_errors_are_one_line(run: Runner) -> None:
    """What the system refuses is shown with the file it is about."""
    raised = PermissionError(13, "Permission denied", "/etc/shadow")
    assert run(raised) == (1, "error: /etc/shadow: Permission denied [failed]\n")


def test_manifest_errors_show_everything_and_count(run: Runner) -> None:
    """All diagnostics appear with their place, then how many there are."""
    problems = (
        error("'nodez' is not a field", "Write nodes.", address="cluster.a", code="unknown-key", where=Position("t.yaml", 3, 5)),
        error("job.b: no commands", code="empty-value", where=Position("t.toml", key_path="jobs.b")),
        warning("not pinned", code="not-locked", where=Position("t.yaml", 9, 1)),
    )  # fmt: skip
    code, said = run(ManifestError(problems))
    assert code == 1
    assert said == textwrap.dedent("""\
        t.yaml:3:5: error: cluster.a: 'nodez' is not a field [unknown-key]
          Write nodes.
        t.toml: jobs.b: error: job.b: no commands [empty-value]
        t.yaml:9:1: warning: not pinned [not-locked]
        2 errors, 1 warning
        For details, run: trainctl explain CODE
        """)


@pytest.mark.parametrize(("flags", "traced"), [([], False), (["--log-level", "debug"], True)])
def test_a_crash_is_short_and_masked(flags: list[str], traced: bool) -> None:
    """An unforeseen exception exits 1 without a traceback or a secret; debug shows the traceback, still without it."""
    program = f"""
import sys
from types import ModuleType
from trainctl.cli import app
from trainctl.cli.main import main
from trainctl.cli.session import session_of
import typer
def command(ctx: typer.Context) -> int:
    session_of(ctx).redactor.register("{SECRET}")
    raise RuntimeError("token {SECRET} was refused")
module = ModuleType("trainctl.cli.commands.made_up")
module.fail_command = command
sys.modules[module.__name__] = module
app.COMMANDS = (app.CommandRow("fail", "made_up", "Fail."),)
sys.exit(main(["fail", *sys.argv[1:]]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, *flags], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert SECRET not in done.stderr
    assert "token (redacted) was refused" in done.stderr
    assert ("Traceback" in done.stderr) is traced
    assert ("--log-level debug" in done.stderr) is not traced
