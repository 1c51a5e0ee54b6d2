"""Scanner for shell commands: decides where a quoted word can be inserted.

It follows the common syntax of ``sh`` and ``bash`` and is strict: unless a place is surely outside all quoting, it is
refused.
"""

from __future__ import annotations

import re

_BEFORE_COMMENT = " \t\n;&|()<>"
_HERE = re.compile(r"<<-?[ \t]*(?:[^\s<]|$)")
_CASE = re.compile(r"\bcase\b")
_COMMAND_STATES = frozenset({"command", "$("})
_REFUSED = {
    "'": "inside single quotes",
    '"': "inside double quotes",
    "`": "inside backquotes",
    "#": "in a comment",
    "${": "inside ${…}",
    "((": "in arithmetic",
}


class ShellScanner:
    """Incremental scanner of one command; ``refusal`` is about the current position."""

    def __init__(self, command: str) -> None:
        self._stack = ["command"]
        self._escaped = False
        self._last = "\n"
        self._here_document = ""
        self._ambiguous = (
            "in a command with both 'case' and $(…)"
            if "$(" in command and _CASE.search(command)
            else None
        )

    def read(self, text: str) -> None:
        """Scan the next text of the command."""
        at = 0
        while at < len(text):
            at += self._escape(text[at]) if self._escaped else self._advance(text, at)

    def word(self) -> None:
        """Scan an inserted word."""
        self._last = "x"

    def refusal(self) -> str | None:
        """Reason why no quoted word can be inserted here, None if it can."""
        if self._ambiguous:
            return self._ambiguous
        if self._escaped:
            return "after a backslash"
        if self._last == "$":
            return "after '$'"
        if self._here_document == "body":
            return "in a here-document"
        innermost = next(state for state in reversed(self._stack) if state != "(")
        return _REFUSED.get(innermost)

    def _escape(self, char: str) -> int:
        self._escaped = False
        self._last = self._last if char == "\n" else "x"
        return 1

    def _advance(self, text: str, at: int) -> int:
        step = self._step(text, at)
        self._last = self._last if self._escaped else text[at + step - 1]
        return step

    def _step(self, text: str, at: int) -> int:
        top = self._stack[-1]
        if top == "'":
            return self._until(text[at], "'")
        if top == "#":
            return self._until(text[at], "\n")
        if top == "`":
            self._escaped = text[at] == "\\"
            return self._until(text[at], "`")
        return self._expanding(text, at)

    def _until(self, char: str, closing: str) -> int:
        if char == closing:
            self._stack.pop()
        return 1

    def _expanding(self, text: str, at: int) -> int:
        """Scan where the shell expands: in commands, double quotes and ``${…}``."""
        char = text[at]
        if text.startswith(("$((", "$(", "${"), at):
            self._stack.append("((" if text.startswith("$((", at) else text[at : at + 2])
            return 2
        if char == "\\":
            self._escaped = True
        elif char == "`":
            self._stack.append("`")
        elif char == '"':
            self._double_quote()
        elif self._stack[-1] == "${" and char == "}":
            self._stack.pop()
        elif not self._in_double_quotes():
            self._in_command(text, at)
        return 1

    def _double_quote(self) -> None:
        if self._stack[-1] == '"':
            self._stack.pop()
        else:
            self._stack.append('"')

    def _in_command(self, text: str, at: int) -> None:
        char = text[at]
        if char == "'":
            if self._last == "$":
                self._ambiguous = "in a command with $'…', which sh and bash read differently"
            self._stack.append("'")
        elif self._stack[-1] == "${":
            return
        elif char == "#" and self._last in _BEFORE_COMMENT:
            self._stack.append("#")
        elif char in "()":
            self._parenthesis(char)
        else:
            self._here(text, at)

    def _parenthesis(self, char: str) -> None:
        if char == "(":
            self._stack.append("((" if self._last == "(" and self._stack[-1] == "(" else "(")
        elif self._stack[-1] in ("(", "((", "$("):
            self._stack.pop()

    def _here(self, text: str, at: int) -> None:
        if text[at] == "<" and self._last != "<" and _HERE.match(text, at):
            self._here_document = self._here_document or "declared"
        elif text[at] == "\n" and self._here_document:
            self._here_document = "body"

    def _in_double_quotes(self) -> bool:
        """Whether single quotes, parentheses and ``#`` are ordinary characters here."""
        states = {*_COMMAND_STATES, '"', "(("}
        return next(state for state in reversed(self._stack) if state in states) == '"'
