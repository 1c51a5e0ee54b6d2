"""The one door to the terminal: secrets are masked, control characters made visible, colour is where it is wanted."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from typing import Any, TextIO

from trainctl.model.redaction import Redactor

_STYLES = {
    "bold": "\x1b[1m",
    "dim": "\x1b[2m",
    "red": "\x1b[31m",
    "green": "\x1b[32m",
    "yellow": "\x1b[33m",
    "cyan": "\x1b[36m",
}
_RESET = "\x1b[0m"
_OURS = frozenset({*_STYLES.values(), _RESET})

_HIDDEN = re.compile(
    r"\x1b\[\d{1,2}m"  # perhaps a style of ours
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"  # terminal controls
    r"|[\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"  # line ends and directions that deceive
    r"|[\ud800-\udfff]"  # bytes of a file name that are no text
)
_WORKFLOW_COMMAND = re.compile(r"^(\s*)(:(?=:)|#(?=#(?:\[|vso\[)))", re.MULTILINE)
"""What a line may begin with to give orders to the CI system that shows it."""

_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


def visible(text: str, *, styles: bool = False) -> str:
    r"""The text with every control but newline and tab written out as ``\uXXXX``, which is also valid in JSON.

    A carriage return becomes a newline. With ``styles``, the few styles this module makes stay.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _HIDDEN.sub(lambda match: _written(match[0], styles), text)


def without_sequences(text: str) -> str:
    """The text without terminal sequences: for logs, whose colours would otherwise be written out."""
    return _SEQUENCE.sub("", text)


class Output:
    """Standard output for results, standard error for everything said about them. ``color`` False is final."""

    def __init__(
        self,
        stdout: TextIO,
        stderr: TextIO,
        redactor: Redactor,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        env = os.environ if environment is None else environment
        self._stdout = stdout
        self._stderr = stderr
        self._redactor = redactor
        self._in_ci = bool(env.get("CI"))
        self.color = not env.get("NO_COLOR") and env.get("TERM") != "dumb"

    @property
    def error_is_terminal(self) -> bool:
        """Whether someone may be watching standard error."""
        return self._stderr.isatty()

    @property
    def draws(self) -> bool:
        """Whether standard error is a terminal on which lines can be drawn again."""
        return self._stderr.isatty() and os.environ.get("TERM") != "dumb"

    @property
    def width(self) -> int | None:
        """Columns of the terminal that shows the result; None where nothing need fit."""
        return shutil.get_terminal_size().columns if self._stdout.isatty() else None

    def style(self, text: str, name: str, *, error: bool = False) -> str:
        """The text in a style, if the stream it is for shows any (``error``: standard error)."""
        stream = self._stderr if error else self._stdout
        if not (self.color and stream.isatty()):
            return text
        return f"{_STYLES[name]}{visible(text)}{_RESET}"

    def print(self, text: str = "") -> None:
        """A line or several of the result, on standard output."""
        _write(self._stdout, self._clean(text) + "\n")

    def json(self, value: Any, *, indent: int | None = 2) -> None:
        """A value of the result as JSON; ``indent`` None puts it on one line and sends it at once."""
        self.print(json.dumps(value, indent=indent, ensure_ascii=False))
        if indent is None:
            self._stdout.flush()

    def note(self, text: str) -> None:
        """A line about the work, on standard error, after whatever was printed before."""
        self._stdout.flush()
        _write(self._stderr, self._clean(text) + "\n")
        self._stderr.flush()

    def ask(self, text: str) -> None:
        """The start of a line that the user ends."""
        _write(self._stderr, self._clean(text))
        self._stderr.flush()

    def draw(self, lines: list[str], before: str = "", after: str = "") -> None:
        """Lines on standard error between two control sequences; only ``progress`` has a use for it."""
        self._stdout.flush()
        _write(self._stderr, before + "".join(self._clean(line) + "\n" for line in lines) + after)
        self._stderr.flush()

    def flush(self) -> None:
        """Send what is buffered; raises what the system says about it."""
        self._stdout.flush()
        self._stderr.flush()

    def _clean(self, text: str) -> str:
        text = visible(self._redactor.redact(text), styles=self.color)
        return _WORKFLOW_COMMAND.sub(_ordered, text) if self._in_ci else text


def _ordered(match: re.Match[str]) -> str:
    return f"{match[1]}\\u{ord(match[2]):04x}"


def _written(found: str, styles: bool) -> str:
    if styles and found in _OURS:
        return found
    return "".join(
        f"\\u{ord(character):04x}" if _HIDDEN.match(character) else character for character in found
    )


def _write(stream: TextIO, text: str) -> None:
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
