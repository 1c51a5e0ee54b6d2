"""Where keys and values of a TOML text stand: its parser does not tell.

A scanner, not a parser: it trusts that the text is TOML, and where it is not, it stops and tells what it saw so far;
the parser then says what is wrong.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass, field

import tomli

from trainctl.manifest.tree import MAX_DEPTH, Path

_BLANK = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_KEY = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""")
_STRING = re.compile(
    r'"""(?:[^"\\]|\\.|"{1,2}(?!"))*"{3,5}'
    r"|'''(?:[^']|'{1,2}(?!'))*'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
_WORD = re.compile(r"[^,\]}#\n]+")

Place = tuple[int, int]


class TooDeep(Exception):
    """Brackets or dotted keys go deeper than a manifest may."""


class _Lost(Exception):
    """This is not TOML, or not as the scanner knows it."""


@dataclass
class Places:
    """Line and column of keys and values by path, and keys that are given twice with both places."""

    keys: dict[Path, Place] = field(default_factory=dict)
    values: dict[Path, Place] = field(default_factory=dict)
    repeats: list[tuple[Path, Place, Place]] = field(default_factory=list)


def places_of(text: str) -> Places:
    """What could be found; TooDeep before any parser may recurse."""
    scanner = _Scanner(text)
    with suppress(_Lost):
        scanner.scan()
    return scanner.places


class _Scanner:
    def __init__(self, text: str) -> None:
        self.places = Places()
        self._text = text
        self._at = 0
        self._lines = [0, *(match.end() for match in re.finditer("\n", text))]
        self._tables: dict[Path, int] = {}
        self._headers: dict[Path, Place] = {}

    def scan(self) -> None:
        """Note where each key and value stands, to the end of the text or to what is no TOML."""
        table: Path = ()
        while self._peek(_BLANK):
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table, 1)

    def _header(self) -> Path:
        many = self._text.startswith("[[", self._at)
        start = self._at
        self._at += 2 if many else 1
        steps, places = self._dotted()
        self._expect("]]" if many else "]")
        path: Path = ()
        for step, place in zip(steps, places, strict=True):
            path = (*path, step)
            self.places.keys.setdefault(path, place)
            self.places.values.setdefault(path, self._place(start))
            if path in self._tables and not (many and len(path) == len(steps)):
                path = (*path, self._tables[path])
        if many:
            self._tables[path] = self._tables.get(path, -1) + 1
            path = (*path, self._tables[path])
            self.places.values[path] = self._place(start)
        elif path in self._headers:
            self.places.repeats.append((path, self._headers[path], places[-1]))
        else:
            self._headers[path] = places[-1]
        return path

    def _pair(self, table: Path, depth: int) -> None:
        steps, places = self._dotted()
        path = table
        for step, place in zip(steps, places, strict=True):
            path = (*path, step)
            first = self.places.keys.setdefault(path, place)
            self.places.values.setdefault(path, place)
        if first != places[-1]:
            self.places.repeats.append((path, first, places[-1]))
        self._expect("=")
        self._value(path, depth + len(steps))

    def _dotted(self) -> tuple[list[str], list[Place]]:
        steps: list[str] = []
        places: list[Place] = []
        while True:
            self._peek(_SPACE)
            match = _KEY.match(self._text, self._at)
            if match is None:
                raise _Lost
            steps.append(_unquoted(match[0]))
            places.append(self._place(self._at))
            self._at = match.end()
            if len(steps) > MAX_DEPTH:
                raise TooDeep
            if self._peek(_SPACE) != ".":
                return steps, places
            self._at += 1

    def _value(self, path: Path, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise TooDeep
        first = self._peek(_SPACE)
        self.places.values[path] = self._place(self._at)
        if first == "[":
            self._items(path, depth)
        elif first == "{":
            self._inline(path, depth)
        else:
            match = (_STRING if first in ('"', "'") else _WORD).match(self._text, self._at)
            if match is None:
                raise _Lost
            self._at = match.end()

    def _items(self, path: Path, depth: int) -> None:
        self._at += 1
        index = 0
        while self._peek(_BLANK) != "]":
            self._value((*path, index), depth + 1)
            index += 1
            if self._peek(_BLANK) == ",":
                self._at += 1
            elif not self._text.startswith("]", self._at):
                raise _Lost
        self._at += 1

    def _inline(self, path: Path, depth: int) -> None:
        self._at += 1
        while self._peek(_BLANK) != "}":
            self._pair(path, depth)
            if self._peek(_BLANK) == ",":
                self._at += 1
            elif not self._text.startswith("}", self._at):
                raise _Lost
        self._at += 1

    def _expect(self, token: str) -> None:
        self._peek(_SPACE)
        if not self._text.startswith(token, self._at):
            raise _Lost
        self._at += len(token)

    def _peek(self, skip: re.Pattern[str]) -> str:
        match = skip.match(self._text, self._at)
        self._at = match.end() if match else self._at
        return self._text[self._at : self._at + 1]

    def _place(self, offset: int) -> Place:
        line = bisect_right(self._lines, offset)
        return line, offset - self._lines[line - 1] + 1


def _unquoted(key: str) -> str:
    if key[0] == "'":
        return key[1:-1]
    if key[0] != '"':
        return key
    if "\\" not in key:
        return key[1:-1]
    try:
        return str(tomli.loads(f"k = {key}")["k"])
    except tomli.TOMLDecodeError:
        raise _Lost from None
