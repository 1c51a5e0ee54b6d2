"""Commands made up for a test."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from trainctl.cli import invoke
from trainctl.cli.app import CommandGroup, CommandRow

Declare = Callable[[str, Callable[..., Any]], CommandRow]


@pytest.fixture
def declare(monkeypatch: pytest.MonkeyPatch) -> Declare:
    """Declares the program's only command; its hooks for exceptions end with the test."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr("threading.excepthook", sys.excepthook)

    def declared(name: str, command: Callable[..., Any]) -> CommandRow:
        module = ModuleType(f"trainctl.cli.commands.made_up_{name}")
        setattr(module, f"{name}_command", command)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        row = CommandRow(name, f"made_up_{name}", f"{name.title()}.")
        monkeypatch.setattr(invoke, "ROOT", CommandGroup("", "", (row,)))
        return row

    return declared
