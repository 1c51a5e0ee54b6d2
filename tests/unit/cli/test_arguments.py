"""How arguments are read: spellings, global options, mistakes."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
import typer

from tests.support.cases import cases
from tests.unit.cli.conftest import Declare
from trainctl.cli.app import CommandGroup, LazyGroup, build
from trainctl.cli.arguments import normalize_arguments
from trainctl.errors import UsageError


def command(
    out: Annotated[str | None, typer.Option("--out")] = None,
    target: Annotated[list[str] | None, typer.Option("--target")] = None,
    refresh: Annotated[bool, typer.Option("--refresh/--no-refresh")] = True,
    auto_approve: Annotated[bool, typer.Option("--auto-approve")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f")] = False,
) -> int:
    return 0


@pytest.fixture
def root(declare: Declare) -> LazyGroup:
    """A program with few commands, so that it is known which one is nearest; logs and run are the real ones."""
    real = [row for row in build().rows if row.name in ("logs", "run")]
    plan, listed = declare("plan", command), declare("list", command)
    group = build()
    group.rows = (plan, CommandGroup("state", "State.", (listed,)), *real)
    return group


@pytest.mark.parametrize("case", cases("cli/spellings"))
def test_arguments_are_read(root: LazyGroup, case: list[str]) -> None:
    """Terraform's spellings become ours, global options come first, values are never rewritten."""
    given, wanted = case
    assert " ".join(normalize_arguments(given.split(" "), root)) == wanted


@pytest.mark.parametrize("case", cases("cli/mistakes"))
def test_mistakes_name_the_nearest_right_word(root: LazyGroup, case: list[Any]) -> None:
    given, summary, detail = case
    with pytest.raises(UsageError) as caught:
        normalize_arguments(given.split(" "), root)
    assert (caught.value.summary, caught.value.detail) == (summary, detail)
    assert caught.value.exit_code == 64
