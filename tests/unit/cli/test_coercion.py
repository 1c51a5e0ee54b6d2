"""Words become values of the declared types, or a short refusal."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Annotated

import pytest
import typer

from trainctl.cli import app, invoke
from trainctl.cli.app import CommandRow


class Size(StrEnum):
    SMALL = "small"
    LARGE = "large"


def command(
    addresses: Annotated[list[str], typer.Argument(metavar="ADDRESS")],
    rank: Annotated[int | None, typer.Option("--rank")] = None,
    seconds: Annotated[float, typer.Option("--seconds")] = 1.5,
    file: Annotated[Path | None, typer.Option("--file")] = None,
    size: Annotated[Size, typer.Option("--size")] = Size.SMALL,
    var: Annotated[list[str] | None, typer.Option("--var")] = None,
    wait: Annotated[bool, typer.Option("--wait")] = False,
) -> int:
    values = [addresses, rank, seconds, file, size, var, wait]
    print(json.dumps([[type(one).__name__, str(one)] for one in values]))
    return 0


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("trainctl.cli.commands.made_up")
    module.take_command = command  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(app, "COMMANDS", (CommandRow("take", "made_up", "Take."),))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr("threading.excepthook", sys.excepthook)


def test_each_type_arrives(capsys: pytest.CaptureFixture[str]) -> None:
    """Every declared type gets a value of that type; repeated flags make a list."""
    words = (
        "take job.a job.b --rank 3 --seconds 2 --file x/y --size large --var a=1 --var b=2 --wait"
    )
    assert invoke.invoke(words.split()) == 0
    assert json.loads(capsys.readouterr().out) == [
        ["list", "['job.a', 'job.b']"], ["int", "3"], ["float", "2.0"], ["PosixPath", "x/y"], ["Size", "large"],
        ["list", "['a=1', 'b=2']"], ["bool", "True"],
    ]  # fmt: skip


def test_defaults_arrive(capsys: pytest.CaptureFixture[str]) -> None:
    """What is not given has its default, of the declared type."""
    assert invoke.invoke(["take", "job.a"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [found[index] for index in (1, 2, 3, 4, 6)] == [
        ["NoneType", "None"], ["float", "1.5"], ["NoneType", "None"], ["Size", "small"], ["bool", "False"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["take", "a", "--rank", "x"], "take: invalid value for '--rank': 'x' is not an integer"),
        (["take", "a", "--seconds", "soon"], "take: invalid value for '--seconds': 'soon' is not a number"),
        (["take", "a", "--size", "huge"], "take: invalid value for '--size': 'huge' is not one of small, large"),
        (["take"], "take: missing argument 'ADDRESS'"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The refusal names the flag and what it takes; the exit code is that of wrong usage."""
    assert invoke.invoke(words) == 64
    hint = "  Run trainctl take --help for its arguments.\n"
    assert capsys.readouterr().err == f"error: {said} [wrong-usage]\n{hint}"
