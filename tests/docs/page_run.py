"""Following a page: its files are written and its commands run, and outputs compared."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches, unified_diff
from pathlib import Path

from tests.docs.comparison import ANY, displayed, matches, normalized
from tests.docs.pages import Block, Command, Page, commands
from tests.docs.services import World
from tests.docs.shell import Shell

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
        found = normalized(real, self._real, self._places)
        lines += unified_diff(shown, found, "shown", "real", lineterm="", n=1)
        return "\n".join([*lines, "real output:", *real])


def _updated(shown: Sequence[str], real: Sequence[str]) -> list[str]:
    """The shown lines, each as the most similar real one; ``...`` stays."""
    lines = []
    for line in shown:
        similar = [] if line.strip() in ("", ANY) else get_close_matches(line, real, 1)
        lines.append(similar[0] if similar else line)
    return lines
