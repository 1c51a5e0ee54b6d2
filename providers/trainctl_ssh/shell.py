"""The command line that every login shell understands, and the line that is sent to it.

The account's shell may be bash, dash, zsh, fish or csh, and may print what it likes. It is asked only to run ``sh``, which
reads one line of standard input and does that. So no argument is on a command line, where others could read it, and none
passes a shell whose quoting is another.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence

COMMAND = """exec sh -c 'IFS= read -r _tc; eval "$_tc"'"""
_WATCH_SECONDS = 5
_KEEPALIVE_SECONDS = 15
_ENDED = "trap 'kill $_ts 2>/dev/null; exit' TERM"
_MAX_PREAMBLE = 2**16


def call_line(token: str, argv: Sequence[str], master: int) -> bytes:
    """The line that runs a program between two marks on both of its streams; its standard input is what follows the line.

    The first mark has the number of the process group, the second the exit code. The group ends when ``master``, the
    process of the link itself, is no more.
    """
    words = " ".join(map(_quoted, argv))
    watch = f"while kill -0 {master}; do {_pause(_WATCH_SECONDS)}; done; kill -9 -$$"
    return os.fsencode(
        f'_tn=$(printf "\\nx"); _tn=${{_tn%x}}; set -- {words}; '
        f"({_ENDED}; {watch}) </dev/null >/dev/null 2>&1 & _tw=$!; "
        f'printf "%s<%s\\n" {token} $$; printf "%s<\\n" {token} >&2; '
        '(exec "$@"); _tc=$?; kill $_tw 2>/dev/null; '
        f'printf "%s>%s\\n" {token} $_tc; printf "%s>\\n" {token} >&2\n'
    )


def keepalive_line(token: str) -> bytes:
    """The line that makes a link: it lasts until standard input ends, and ends the process group that each line names.

    It says something now and then, so that a server whose client is cut off learns of it from its own unanswered bytes.
    """
    beat = f"while {_pause(_KEEPALIVE_SECONDS)}; do printf .; done"
    return os.fsencode(
        f'({_ENDED}; {beat}) & _tb=$!; printf "%s<%s\\n" {token} $$; '
        'while IFS= read -r _tp; do kill -9 "-$_tp" 2>/dev/null || kill -9 "$_tp" 2>/dev/null; done; '
        "kill $_tb 2>/dev/null\n"
    )


def _pause(seconds: int) -> str:
    """Wait in a shell that got ``_ENDED``: ending it ends the ``sleep``, too."""
    return f"sleep {seconds} </dev/null >/dev/null 2>&1 & _ts=$!; wait $_ts"


def _quoted(word: str) -> str:
    """In POSIX's single quotes, without a newline, which would end the line that is read."""
    return '"$_tn"'.join(shlex.quote(part) for part in word.split("\n"))


class MarkedOutput:
    """What was said between two marks of one stream; what came before is kept for errors, what comes after is nothing."""

    def __init__(self, token: str, on_bytes: Callable[[bytes], object]) -> None:
        self._token = token.encode()
        self._on_bytes = on_bytes
        self._rest = b""
        self.before = b""
        self.began: str | None = None
        self.ended: str | None = None

    def feed(self, data: bytes) -> None:
        """Take the next piece; bytes that can't be part of a mark any more are handed on at once."""
        self._rest += data
        while self.ended is None and self._step():
            pass

    def _step(self) -> bool:
        at = self._rest.find(self._token)
        if at < 0:
            at = len(self._rest) - self._begun_mark()
            self._hand_on(at)
            return False
        self._hand_on(at)
        line, newline, rest = self._rest.partition(b"\n")
        if not newline:
            return False
        self._rest = rest
        said = line[len(self._token) :].decode(errors="replace")
        if said[:1] == "<":
            self.began = said[1:]
        else:
            self.ended = said[1:]
        return True

    def _begun_mark(self) -> int:
        longest = min(len(self._token) - 1, len(self._rest))
        ends = (size for size in range(longest, 0, -1) if self._rest.endswith(self._token[:size]))
        return next(ends, 0)

    def _hand_on(self, size: int) -> None:
        data, self._rest = self._rest[:size], self._rest[size:]
        if self.began is None:
            self.before = (self.before + data)[-_MAX_PREAMBLE:]
        elif data:
            self._on_bytes(data)
