"""Terminal output: redacts secrets, escapes control characters, colours."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

from trainctl.base.lazy_pattern import compile_lazily
from trainctl.model.redaction import Redactor
from trainctl.views.terminal.text import INVISIBLE, sanitize, strip_ci_commands, wrap

_STYLES = {
    "bold": "\x1b[1m",
    "dim": "\x1b[2m",
    "red": "\x1b[31m",
    "green": "\x1b[32m",
    "yellow": "\x1b[33m",
    "cyan": "\x1b[36m",
}
_RESET = "\x1b[0m"
_OWN_SEQUENCES = frozenset({*_STYLES.values(), _RESET})

_HIDDEN = compile_lazily(INVISIBLE.pattern + r"(?:(?<=\x1b)\[\d{1,2}m)?")
"""An invisible character, or one of our styles; starts with a character class for speed."""
_SURROGATE = compile_lazily("[\ud800-\udfff]")
"""Surrogates, as in names that are not UTF-8: invalid in JSON."""
_DEFAULT_WIDTH = 80
_CI = ("CI", "GITHUB_ACTIONS", "TF_BUILD")


def visible(text: str, *, styles: bool = False) -> str:
    r"""Write control characters except newline and tab as ``\uXXXX``, valid in JSON.

    A carriage return becomes a newline. ``styles`` keeps the styles of this module.
    """
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _HIDDEN.sub(lambda match: _escape_match(match[0], styles), text)


def _json(value: Any, indent: int | None) -> str:
    return _SURROGATE.sub("\ufffd", json.dumps(value, indent=indent, ensure_ascii=False))


class TerminalOutput:
    """Writes results to stdout and everything else to stderr."""

    def __init__(
        self,
        stdout: TextIO,
        stderr: TextIO,
        redactor: Redactor,
        environment: Mapping[str, str] | None = None,
        *,
        is_file: bool = False,
    ) -> None:
        env = os.environ if environment is None else environment
        self._stdout = stdout
        self._stderr = stderr
        self._redactor = redactor
        self._is_file = is_file
        self._in_ci = any(env.get(name) for name in _CI)
        self.color = not env.get("NO_COLOR") and env.get("TERM") != "dumb"

    @cached_property
    def error_is_terminal(self) -> bool:
        """Whether stderr is a terminal."""
        return self._stderr.isatty()

    @cached_property
    def can_redraw(self) -> bool:
        """Whether stderr is a terminal that can redraw lines."""
        return self.error_is_terminal and os.environ.get("TERM") != "dumb"

    @cached_property
    def _is_terminal(self) -> bool:
        return self._stdout.isatty()

    def is_file_in(self, directory: Path) -> bool:
        """Whether stdout is a regular file below a directory; proc(5)."""
        if self._is_file:
            return True
        try:
            number = self._stdout.fileno()
            is_file = stat.S_ISREG(os.fstat(number).st_mode)
            path = Path(f"/proc/self/fd/{number}").readlink()
        except (OSError, ValueError):
            return False
        return is_file and path.is_relative_to(directory.resolve())

    def redirected(self, stream: TextIO) -> TerminalOutput:
        """Return an output that writes results to another stream, for a file."""
        return TerminalOutput(stream, self._stderr, self._redactor, is_file=True)

    @property
    def width(self) -> int | None:
        """Columns of stdout's terminal; None if it is not a terminal."""
        return self.columns if self._is_terminal else None

    @property
    def columns(self) -> int:
        """Columns for text that is wrapped in a pipe, too."""
        return _columns_of(self._stdout)

    @property
    def error_width(self) -> int | None:
        """Columns of stderr's terminal; None if it is not a terminal."""
        return _columns_of(self._stderr) if self.error_is_terminal else None

    def style(self, text: str, name: str) -> str:
        """Style a text if stdout shows styles."""
        return self._painted(text, name, terminal=self._is_terminal)

    def error_style(self, text: str, name: str) -> str:
        """Style a text if stderr shows styles."""
        return self._painted(text, name, terminal=self.error_is_terminal)

    def _painted(self, text: str, name: str, *, terminal: bool) -> str:
        if not (self.color and terminal):
            return text
        return f"{_STYLES[name]}{visible(text)}{_RESET}"

    def print(self, text: str = "", *, links: bool = False) -> None:
        """Print a result; ``links`` leaves presigned URLs unredacted."""
        _write(self._stdout, self._clean(text, links=links) + "\n")

    def prose(self, *lines: str) -> None:
        """Print lines of text, wrapped on a terminal."""
        for line in lines:
            _write(self._stdout, _wrap_lines(self._clean(line), self.width) + "\n")

    def log_lines(self, lines: str, prefix: str, first: str) -> None:
        """Print lines of a job's log, with prefixes, and flush; ``first`` for the first line."""
        text = self._sanitized(self._redactor.redact(lines))
        text = first + (text.replace("\n", f"\n{prefix}") if prefix else text)
        _write(self._stdout, strip_ci_commands(text) if self._in_ci else text)
        self._stdout.write("\n")  # apart, as a longer text would be a copy
        self._stdout.flush()

    def log_part(self, text: str, prefix: str) -> str:
        """Print the start of an unfinished line; return the part that must wait."""
        length = 0 if self._in_ci else self._redactor.safe_length(text)
        if length:
            _write(self._stdout, prefix + self._sanitized(self._redactor.redact(text[:length])))
            self._stdout.flush()
        return text[length:]

    def _sanitized(self, text: str) -> str:
        if not self._stdout.isatty():
            return text
        return "\n".join(sanitize(line, color=self.color) for line in text.split("\n"))

    def json(self, value: Any, *, links: bool = False) -> None:
        """Print a result as JSON; invalid UTF-8 becomes `�`."""
        self.print(_json(value, 2), links=links)

    def json_lines(self, values: Iterable[Any]) -> None:
        """Print values as JSON lines, and flush."""
        self.print("\n".join(_json(value, None) for value in values))
        self._stdout.flush()

    def note(self, *lines: str) -> None:
        """Print lines to stderr, after flushing stdout; wrapped on a terminal."""
        self._stdout.flush()
        for line in lines:
            _write(self._stderr, _wrap_lines(self._clean(line), self.error_width) + "\n")
        self._stderr.flush()

    def ask(self, text: str) -> None:
        """Print a prompt to stderr."""
        _write(self._stderr, self._clean(text))
        self._stderr.flush()

    def draw(self, lines: list[str], before: str = "", after: str = "") -> None:
        """Draw lines on stderr between two control sequences; for ``progress``."""
        self._stdout.flush()
        _write(self._stderr, before + "".join(self._clean(line) + "\n" for line in lines) + after)
        self._stderr.flush()

    def flush(self) -> None:
        """Flush both streams; may raise OSError."""
        self._stdout.flush()
        self._stderr.flush()

    def _clean(self, text: str, *, links: bool = False) -> str:
        text = visible(self._redactor.redact(text, links=links), styles=self.color)
        return strip_ci_commands(text) if self._in_ci else text


def _escape_match(text: str, styles: bool) -> str:
    if text in ("\n", "\t") or (styles and text in _OWN_SEQUENCES):
        return text
    shown = ""
    for character in text:
        units = character.encode("utf-16-be", "surrogatepass")
        escaped = "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))
        shown += escaped if _HIDDEN.match(character) else character
    return shown


def _columns_of(stream: TextIO) -> int:
    """Return the width by COLUMNS, the terminal, or 80."""
    named = os.environ.get("COLUMNS", "")
    if named.isdecimal() and int(named):
        return int(named)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _DEFAULT_WIDTH
    except (OSError, ValueError):
        return _DEFAULT_WIDTH


def _wrap_lines(text: str, width: int | None) -> str:
    if width is None:
        return text
    return "\n".join(part for line in text.split("\n") for part in wrap(line, width))


def _write(stream: TextIO, text: str) -> None:
    if not text.isascii():
        encoding = stream.encoding or "utf-8"
        text = text.encode(encoding, "backslashreplace").decode(encoding)
    stream.write(text)
