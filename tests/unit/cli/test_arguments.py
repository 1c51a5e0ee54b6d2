"""How arguments are arranged: spellings, global flags, mistakes."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Annotated

import pytest
import typer

from trainctl.cli.app import CommandGroup, CommandRow, LazyGroup, build
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
def root(monkeypatch: pytest.MonkeyPatch) -> LazyGroup:
    module = ModuleType("trainctl.cli.commands.made_up")
    module.plan_command = module.list_command = command  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    plan = CommandRow("plan", "made_up", "Plan.")
    group = build()
    group.rows = (plan, CommandGroup("state", "State.", (CommandRow("list", "made_up", "List."),)))
    return group


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("plan -out=F -auto-approve", "plan --out F --auto-approve"),
        ("plan -target job.a --target=job.b", "plan --target job.a --target job.b"),
        ("plan --refresh=false", "plan --no-refresh"),
        ("plan -refresh=true", "plan --refresh"),
        ("plan --no-refresh=true", "plan --no-refresh"),
        ("plan --no-refresh=false", "plan --refresh"),
        ("plan --auto-approve=false", "plan"),
        ("plan -f", "plan -f"),
        ("plan -C dir --no-color", "-C dir --no-color plan"),
        ("state list -chdir=dir", "--chdir dir state list"),
        ("plan -Cdir", "-C dir plan"),
        ("-C dir plan", "-C dir plan"),
        ("plan --log-level debug x", "--log-level debug plan x"),
        ("plan -5 - -1.5", "plan -5 - -1.5"),
        ("plan --out= x", "plan --out  x"),
    ],
)
def test_spellings_and_globals(root: LazyGroup, given: str, wanted: str) -> None:
    """Terraform's spellings become ours and global flags come first, wherever they stood."""
    assert " ".join(normalize_arguments(given.split(" "), root)) == wanted


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("logs sft --tail", "logs sft --follow"),
        ("logs --tail sft", "logs --follow sft"),
        ("logs --tail --rank 1 sft", "logs --follow --rank 1 sft"),
        ("logs --tail 5 sft", "logs --tail 5 sft"),
        ("logs --tail=5 sft", "logs --tail 5 sft"),
        ("run --tail sft", "run --tail sft"),
    ],
)
def test_the_last_lines_without_a_number_are_followed(given: str, wanted: str) -> None:
    """As the hosted service's command has it."""
    assert " ".join(normalize_arguments(given.split(" "), build())) == wanted


def test_values_are_never_rewritten(root: LazyGroup) -> None:
    """The value of a flag stays as it is, even where it looks like a flag or is one."""
    words = ["plan", "--out", "-auto-approve", "--target", "--no-color", "-out", "--"]
    wanted = ["plan", "--out", "-auto-approve", "--target", "--no-color", "--out", "--"]
    assert normalize_arguments(words, root) == wanted


def test_nothing_after_two_dashes_is_touched(root: LazyGroup) -> None:
    """What follows ``--`` belongs to someone else: order and spelling stay."""
    words = ["plan", "--", "-out=F", "--no-color", "-C", "x", "--nonsense"]
    assert normalize_arguments(words, root) == words


@pytest.mark.parametrize(
    ("given", "summary", "detail"),
    [
        ("pln", "unknown command 'pln'", "Did you mean plan?"),
        ("state lst", "unknown command 'state lst'", "Did you mean list?"),
        ("plan --uot F", "plan: unknown option --uot", "Did you mean --out?"),
        (
            "plan --since 1h",
            "plan: unknown option --since",
            "Run trainctl plan --help for its options.",
        ),
        ("plan -auto-aprove", "plan: unknown option -auto-aprove", "Did you mean --auto-approve?"),
        (
            "plan --xyzzy=1",
            "plan: unknown option --xyzzy",
            "Run trainctl plan --help for its options.",
        ),
        ("plan -x", "plan: unknown option -x", "Run trainctl plan --help for its options."),
        ("--no-colr plan", "unknown option --no-colr", "Did you mean --no-color?"),
        ("plan --out", "plan: missing value for --out", ""),
        (
            "plan --refresh=maybe",
            "--refresh=maybe: invalid value",
            "Use --refresh=true or --refresh=false.",
        ),
        ("state", "state: missing command", "Use one of: list."),
    ],
)
def test_mistakes_name_the_nearest_right_thing(
    root: LazyGroup, given: str, summary: str, detail: str
) -> None:
    """A wrong command or flag is refused with what was probably meant."""
    with pytest.raises(UsageError) as caught:
        normalize_arguments(given.split(" "), root)
    assert (caught.value.summary, caught.value.detail) == (summary, detail)
    assert caught.value.exit_code == 64


def test_help_of_a_group_needs_no_command(root: LazyGroup) -> None:
    """``state --help`` is a complete command line."""
    assert normalize_arguments(["state", "--help"], root) == ["state", "--help"]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("help", "--help"),
        ("help plan", "plan --help"),
        ("help state", "state --help"),
        ("help state list", "state list --help"),
        ("--no-color help plan", "--no-color plan --help"),
    ],
)
def test_help_command_is_the_help_option(root: LazyGroup, given: str, wanted: str) -> None:
    """``help COMMAND`` shows what ``COMMAND --help`` shows."""
    assert " ".join(normalize_arguments(given.split(), root)) == wanted


def test_help_of_an_unknown_command_is_refused(root: LazyGroup) -> None:
    """``help`` suggests the nearest command, too."""
    with pytest.raises(UsageError, match="unknown command 'pln'"):
        normalize_arguments(["help", "pln"], root)
