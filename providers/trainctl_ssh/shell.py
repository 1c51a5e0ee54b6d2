"""The command line and line protocol by which programs run on hosts.

The account's shell may be bash, dash, zsh, fish or csh, and may print anything. It only runs ``sh``, which reads and
evaluates one line of standard input. So arguments appear on no command line and need quoting for POSIX sh only.
"""

from __future__ import annotations

import base64
import os
import shlex
from collections.abc import Callable, Sequence

from trainctl.plugin_api.provider import CommandOutput

COMMAND = """exec sh -c 'IFS= read -r _tc; eval "$_tc"'"""
_WATCH_SECONDS = 5  # a shell per command wakes up; shorter costs hosts more than it frees
_KEEPALIVE_SECONDS = 15  # a byte without acknowledgement shows sshd that the client is cut off
_ENDED = "trap 'kill $_ts 2>/dev/null; exit' TERM"
_MAX_PREAMBLE = 2**16  # start-up files may print anything


def call_line(token: str, argv: Sequence[str], master: int) -> bytes:
    """Return the line that runs a program between marks; its input follows.

    The first mark has the process group, the second the exit code. The group is killed when ``master``, the process of the
    connection, ends.
    """
    # quoted for POSIX sh, without newlines, which would end the line
    words = " ".join('"$_tn"'.join(shlex.quote(part) for part in word.split("\n")) for word in argv)
    watch = f"while kill -0 {master}; do {_pause(_WATCH_SECONDS)}; done; kill -9 -$$"
    return os.fsencode(
        f'_tn=$(printf "\\nx"); _tn=${{_tn%x}}; set -- {words}; '
        f"({_ENDED}; {watch}) </dev/null >/dev/null 2>&1 & _tw=$!; "
        f'printf "%s<%s\\n" {token} $$; printf "%s<\\n" {token} >&2; '
        '(exec "$@"); _tc=$?; kill $_tw 2>/dev/null; '
        f'printf "%s>%s\\n" {token} $_tc; printf "%s>\\n" {token} >&2\n'
    )


def terminal_line(argv: Sequence[str]) -> str:
    """Return a command line for the account's shell that leaves standard input to the program."""
    text = base64.b64encode(os.fsencode(f"exec {shlex.join(argv)}")).decode()
    return f"""exec sh -c 'eval "$(echo {text} | base64 -d)"'"""


def keepalive_line(token: str) -> bytes:
    """Return the line that holds a connection and kills process groups named to it.

    It prints regularly, so that a server whose client is cut off detects that by unacknowledged bytes. Nothing reads them:
    they fill a pipe of 64 KiB in 11 days, then the window of ssh in a year.
    """
    heartbeat = f"while {_pause(_KEEPALIVE_SECONDS)}; do printf .; done"
    return os.fsencode(
        f'({_ENDED}; {heartbeat}) & _tb=$!; printf "%s<%s\\n" {token} $$; '
        'while IFS= read -r _tp; do kill -9 "-$_tp" 2>/dev/null || kill -9 "$_tp" 2>/dev/null; done; '
        "kill $_tb 2>/dev/null\n"
    )


def _pause(seconds: int) -> str:
    """Sleep in a shell with the trap ``_ENDED``, which also kills the ``sleep``."""
    return f"sleep {seconds} </dev/null >/dev/null 2>&1 & _ts=$!; wait $_ts"


class MarkedOutput:
    """Passes on output between two marks; keeps what precedes, for errors."""

    def __init__(self, token: str, on_bytes: Callable[[bytes], object]) -> None:
        self._token = token.encode()
        self._on_bytes = on_bytes
        self._rest = b""
        self.before = b""
        self.began: str | None = None
        self.ended: str | None = None

    def feed(self, data: bytes) -> None:
        """Process bytes; pass on those that can't be part of a mark at once."""
        self._rest += data
        while self.ended is None and self._step():
            pass

    def _step(self) -> bool:
        at = self._rest.find(self._token)
        if at < 0:
            # the end may be the beginning of a mark
            start = max(0, len(self._rest) - len(self._token) + 1)
            while (start := self._rest.find(self._token[:1], start)) >= 0:
                if self._token.startswith(self._rest[start:]):
                    break
                start += 1
            self._forward(len(self._rest) if start < 0 else start)
            return False
        self._forward(at)
        line, newline, rest = self._rest.partition(b"\n")
        if not newline:
            return False
        self._rest = rest
        mark = line[len(self._token) :].decode(errors="replace")
        if mark[:1] == "<":
            self.began = mark[1:]
        else:
            self.ended = mark[1:]
        return True

    def _forward(self, size: int) -> None:
        data, self._rest = self._rest[:size], self._rest[size:]
        if self.began is None:
            self.before = (self.before + data)[-_MAX_PREAMBLE:]
        elif data:
            self._on_bytes(data)


class ShellCall:
    """A call of a program: the line that starts it, and its output.

    The program depends on ``master``, the process of the connection.
    """

    def __init__(
        self, argv: Sequence[str], master: int, on_stdout: Callable[[bytes], object] | None
    ) -> None:
        token = os.urandom(16).hex()
        self.line = call_line(token, argv, master)
        self._stdout, self._stderr = bytearray(), bytearray()
        self.out = MarkedOutput(token, on_stdout or self._stdout.extend)
        self.err = MarkedOutput(token, self._stderr.extend)

    def over(self) -> bool:
        """Return whether both streams have had their second mark."""
        return self.out.ended is not None and self.err.ended is not None

    def output(self, exit_code: int) -> CommandOutput:
        """Return the output of a program that ended so."""
        return CommandOutput(exit_code, bytes(self._stdout), bytes(self._stderr))

    @property
    def messages(self) -> bytes:
        """Everything on standard error, for the error of a lost connection."""
        return self.err.before + bytes(self._stderr)
