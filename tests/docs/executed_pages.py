"""Running the commands of a page and comparing what they print with what it shows.

``TRAINCTL_DOCS_WRITE=1`` writes the real output into the pages where it differs.
"""

from __future__ import annotations

import getpass
import os
import socket
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches, unified_diff
from pathlib import Path

import pytest

from tests.docs.comparison import ANY, displayed, matches, normalized
from tests.docs.pages import README, Block, Command, Page, commands
from tests.docs.services import World, services
from tests.docs.shell import Shell, bash
from tests.support.node_program.agents import bytecode_cache
from tests.support.projects.command_forks import write_command
from tests.support.projects.program import ROOT
from tests.support.projects.project import end_processes

_SHOWN_HOME = "/home/alice"
_SHOWN_USER = "alice@laptop"


def executed_pages(paths: Iterable[Path]) -> list[Page]:
    return [
        page
        for page in map(Page, paths)
        if any(block.is_run and block.language == "console" for block in page.blocks())
    ]


def check_page(page: Page, top: Path) -> None:
    """Write the files and run the commands in order, in one fresh directory with a fresh home; fail if output differs."""
    world = _world(top)
    directory, scratch = world.home / "project", top / "scratch"
    for folder in (directory, scratch):
        folder.mkdir()
    if page.path == README:
        (directory / "examples").symlink_to(ROOT / "examples")
    try:
        with (
            services(page.fixtures, world, top),
            bash(directory, world.variables, scratch) as shell,
        ):
            run = PageRun(page, directory, shell, world)
            run.follow()
    finally:
        end_processes(str(top))
    if run.problems:
        if os.environ.get("TRAINCTL_DOCS_WRITE"):
            run.write_output()
        pytest.fail("\n\n".join(run.problems), pytrace=False)


def _world(top: Path) -> World:
    home = top / "home"
    bytecode = home / ".cache" / "trainctl" / "bytecode"
    bytecode.parent.mkdir(parents=True)
    bytecode.symlink_to(bytecode_cache())
    programs = top / "programs"
    programs.mkdir()
    write_command(programs / "trainctl")
    variables = {
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "GIT_AUTHOR_NAME": "Alice",
        "GIT_AUTHOR_EMAIL": "alice@example.com",
        "GIT_COMMITTER_NAME": "Alice",
        "GIT_COMMITTER_EMAIL": "alice@example.com",
    }
    user = f"{getpass.getuser()}@{socket.gethostname()}"
    return World(home, variables, {str(home): _SHOWN_HOME, user: _SHOWN_USER})


_SECONDS = 180


class PageRun:
    """One run of a page; ``problems`` are the commands that do something else than shown."""

    def __init__(self, page: Page, directory: Path, shell: Shell, world: World) -> None:
        self.problems: list[str] = []
        self._page = page
        self._directory = directory
        self._shell = shell
        self._places = world.places
        self._replacements: list[tuple[int, int, Sequence[str]]] = []
        self._shown: list[str] = []
        self._real: list[str] = []

    def follow(self) -> None:
        """Do what the page says, to its end."""
        for block in self._page.blocks():
            if not block.is_run:
                continue
            if block.language == "console":
                for command in commands(block):
                    self._run(command)
            elif block.path:
                self._write(block)

    def write_output(self) -> None:
        """Write real output into the page where it differs."""
        lines = self._page.text.splitlines()
        for line, count, output in sorted(self._replacements, reverse=True):
            lines[line - 1 : line - 1 + count] = output
        self._page.path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _write(self, block: Block) -> None:
        path = self._directory / block.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")

    def _run(self, command: Command) -> None:
        real, code = self._shell.run(command.text, _SECONDS)
        self._shown += command.output
        self._real += real
        same = matches(command.output, real, self._shown, self._real, self._places)
        if same and code == command.exit_code:
            return
        self.problems.append(self._difference(command, real, code))
        output = displayed(real, self._places)
        if any(line.strip() == ANY for line in command.output):
            output = _updated(command.output, output)
        output += [f"# exit code: {code}"] if code else []
        count = len(command.output) + bool(command.exit_code)
        self._replacements.append((command.line, count, output))

    def _difference(self, command: Command, real: Sequence[str], code: int) -> str:
        lines = [f"{self._page.name}:{command.line}: $ {command.text}"]
        if code != command.exit_code:
            lines.append(f"exit code {code}, shown is {command.exit_code}")
        shown = normalized(command.output, self._shown)
        result = normalized(real, self._real, self._places)
        lines += unified_diff(shown, result, "shown", "real", lineterm="", n=1)
        return "\n".join([*lines, "real output:", *real])


def _updated(shown: Sequence[str], real: Sequence[str]) -> list[str]:
    """The shown lines, each as the most similar real one; ``...`` stays."""
    lines = []
    for line in shown:
        similar = [] if line.strip() in ("", ANY) else get_close_matches(line, real, 1)
        lines.append(similar[0] if similar else line)
    return lines
