"""How arguments are read: spellings, global options, mistakes."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from tests.support.cases import cases
from tests.unit.cli.conftest import Declare
from trainctl.cli.app import GLOBAL, ROOT, CliCommand, CommandGroup
from trainctl.cli.arguments import CommandLine, read_arguments
from trainctl.cli.options import option
from trainctl.errors import UsageError


def command(
    out: Annotated[str | None, option("--out FILE", "")] = None,
    target: Annotated[list[str] | None, option("--target ADDRESS", "")] = None,
    refresh: Annotated[bool, option("--refresh/--no-refresh", "")] = True,
    auto_approve: Annotated[bool, option("--auto-approve", "")] = False,
    follow: Annotated[bool, option("-f, --follow", "")] = False,
) -> int:
    return 0


@pytest.fixture
def root(declare: Declare) -> CommandGroup:
    """A program with few commands, so that it is known which one is nearest; logs and run are the real ones."""
    real = [row for row in ROOT.commands if row.name in ("logs", "run")]
    plan, listed = declare("plan", command), declare("list", command)
    return CommandGroup("", "", (plan, CommandGroup("state", "State", (listed,)), *real))


def typed(line: CommandLine) -> str:
    """A command line as it was read: global options, command, options, arguments."""
    words = []
    own = line.target.options if isinstance(line.target, CliCommand) else []
    for options, values in ((GLOBAL, line.global_options), (own, line.options)):
        usages = {item.name: item.usage for item in options}
        for usage, value in ((usages[name], value) for name in values for value in values[name]):
            words += [usage.negative or ""] if value is False else [usage.names[-1]]
            words += [value] if isinstance(value, str) else []
        if options is GLOBAL:
            words += line.path
    words += [*line.arguments, *(["--help"] if line.help else [])]
    return " ".join(words).strip()


@pytest.mark.parametrize("case", cases("cli/spellings"))
def test_arguments_are_read(root: CommandGroup, case: list[str]) -> None:
    """Terraform's spellings become ours, global options come first, values are never rewritten."""
    given, wanted = case
    assert typed(read_arguments(given.split(" "), root)) == wanted


@pytest.mark.parametrize("case", cases("cli/mistakes"))
def test_mistakes_name_the_nearest_right_word(root: CommandGroup, case: list[Any]) -> None:
    given, summary, detail = case
    with pytest.raises(UsageError) as caught:
        read_arguments(given.split(" "), root)
    assert (caught.value.summary, caught.value.detail) == (summary, detail)
    assert caught.value.exit_code == 64
