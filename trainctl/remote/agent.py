"""Calling the node program through a transport. The protocol is in trainctl/DESIGN.md, "The node program"."""

from __future__ import annotations

import functools
import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from pathlib import PurePosixPath
from typing import cast

from trainctl.base.protocol.method import Method, RequestT, ResponseT
from trainctl.base.protocol.runs import STATUS
from trainctl.errors import NodeError, StorageError
from trainctl.plugin_api.provider import CommandOutput, Node, Transport
from trainctl.remote import archive as bootstrap
from trainctl.remote.archive import ProgramArchive, node_archive
from trainctl.remote.processes import InputFeed
from trainctl.remote.responses import (
    OnEvent,
    ResponseParser,
    crash_error,
    error_from,
    format_exit_status,
    printable_tail,
)
from trainctl.remote.session import NodeSessions, SessionCall

_SILENCE_SECONDS = 900.0
_PIECE = 2**18
_COMPRESSION = 1
_SESSION_BYTES = 2**20
"""What is longer than that has a stream of its own, as a session has no flow control."""


class NodeAgent:
    """The node program of one node; safe to use from many threads if its transport is.

    Errors are those the program reports (StorageError, Busy, SourceMismatch, NodeError), NodeError for one that
    crashed, and NodeUnreachable from the transport. ``timeout`` is in seconds of silence.
    A ``ephemeral`` agent installs nothing: where the program isn't installed it travels with each call, so that a
    node can be looked at before it is anybody's, and one that is gone stays gone. ``archive`` is the program, the
    node's own by default; ``bytecode`` is of it and of this Python. A ``remote`` node may have another Python, and what it is sent is compressed.
    Calls that only ask and are answered share a session, with those of other agents that are given the same ``sessions``;
    those with a payload, and raw bytes, have a process, and a stream, of their own.
    """

    def __init__(
        self,
        node: Node,
        transport: Transport,
        *,
        ephemeral: bool = False,
        archive: ProgramArchive | None = None,
        bytecode: Callable[[], bytes] | None = None,
        sessions: NodeSessions | None = None,
        remote: bool = False,
    ) -> None:
        self._node = node
        self._transport = transport
        self._sessions = sessions or NodeSessions(transport)
        self._archive = archive or node_archive()
        self._path = str(PurePosixPath(node.root) / "agent" / f"{self._archive.sha256}.pyz")
        self._argv = (*self._python(bootstrap.RUN), self._path, self._archive.sha256)
        self._is_installed = False
        self._ephemeral = ephemeral
        self._bytecode = bytecode
        self._remote = remote
        self._is_absent = (
            ephemeral and not node.key
        )  # nothing is installed on a node that wasn't made

    def open(self) -> None:
        """Start the session without waiting, if the program may be installed."""
        if not self._is_absent:
            self._sessions.open(self._argv)

    def call(
        self,
        method: Method[RequestT, ResponseT],
        request: RequestT,
        *,
        following: Iterable[bytes] = (),
        payload: Iterable[bytes] = (),
        on_event: OnEvent | None = None,
        timeout: float | None = None,
    ) -> ResponseT:
        """Call a verb; return its answer. ``payload`` may be an iterator that can be read only once, or a Feed: answers to what the program says.

        ``following`` is sent after the request, and before the payload; where it is short that makes no difference to the call.
        """
        answers = ResponseParser(self._node.id, on_event)
        line = json.dumps(request).encode() + b"\n"
        silence = timeout or _SILENCE_SECONDS
        begun, rest = _read_ahead(following)
        line += begun
        if payload == () == rest:
            output = self._ask(SessionCall(self._node.id, method.name, line, answers.feed, silence))
        else:
            if not self._is_installed and not self._is_absent:
                look = json.dumps({"root": self._node.root, "keys": []}).encode() + b"\n"
                self._ask(SessionCall(self._node.id, STATUS.name, look, _ignore, silence))
            output = self._stream(method.name, (line, rest), payload, answers.feed, silence)
        if answers.error is not None:
            raise answers.error
        if output.exit_code != 0 or answers.result is None:
            raise crash_error(self._node.id, output.exit_code, output.stderr)
        return cast(ResponseT, answers.result)

    def read(
        self,
        method: Method[RequestT, bytes],
        request: RequestT,
        on_bytes: Callable[[bytes], None],
        timeout: float | None = None,
    ) -> None:
        """One ``read_`` verb: raw bytes, handed over as they arrive. An error may come after some of them."""
        line = json.dumps(request).encode() + b"\n"
        output = self._stream(method.name, (line, ()), (), on_bytes, timeout or _SILENCE_SECONDS)
        if output.exit_code != 0:
            raise self._raw_error(output)

    def end(self) -> None:
        """Have its sessions end, those of agents that share them too, with the calls that are under way."""
        self._sessions.end()

    def expose(self, port: int) -> AbstractContextManager[int]:
        """See Transport."""
        return self._transport.expose(port)

    def _ask(self, call: SessionCall) -> CommandOutput:
        """A call in the program's session."""
        return self._run(lambda argv, head: self._sessions.call(argv, head, call))

    def _stream(
        self,
        method: str,
        sent: tuple[bytes, Iterable[bytes]],
        payload: Iterable[bytes],
        on_stdout: Callable[[bytes], None],
        timeout: float,
    ) -> CommandOutput:
        """A call in a process of its own, which is sent a request, what follows it, and the payload."""

        def run(argv: Sequence[str], head: bytes) -> CommandOutput:
            stdin: Iterable[bytes] = chain((head, sent[0]), sent[1])
            if isinstance(payload, InputFeed):  # which is waited for while the program is heard
                payload.lead(stdin)
                stdin = payload
            else:
                stdin = chain(stdin, payload)
            return self._transport.run(
                (*argv, method), stdin=stdin, on_stdout=on_stdout, timeout=timeout
            )

        return self._run(run)

    def _run(self, run: Callable[[Sequence[str], bytes], CommandOutput]) -> CommandOutput:
        """Have ``run`` call the program, after installing it if it is missing there. It gets what starts the program, and the beginning of its input."""
        if self._is_absent:
            return self._run_from_memory(run)
        for attempt in range(2):
            output = run(self._argv, b"")
            if output.exit_code != bootstrap.MISSING:
                self._is_installed = True
                return output
            if self._ephemeral:
                self._is_absent = True
                return self._run_from_memory(run)
            if attempt == 0:
                self._install()
        raise NodeError(
            f"the node program on {self._node.id} differs from the installed version",
            f"Check which program modifies {self._path}.",
            code="node-program-failed",
        )

    def _run_from_memory(
        self, run: Callable[[Sequence[str], bytes], CommandOutput]
    ) -> CommandOutput:
        bytecode = self._bytecode() if self._bytecode else b""
        program = self._archive.data if self._remote or not bytecode else b""
        data = self._packed(program + bytecode)
        sent = (str(len(data)), hashlib.sha256(data).hexdigest())
        packed = (str(len(program)), self._archive.sha256)
        return run((*self._python(bootstrap.VISIT), *sent, *packed), data)

    def _install(self) -> None:
        size = len(self._archive.data)
        data = self._packed(self._archive.data + (self._bytecode() if self._bytecode else b""))
        pieces = (data[start : start + _PIECE] for start in range(0, len(data), _PIECE))
        argv = (*self._python(bootstrap.INSTALL), self._path, self._archive.sha256, str(size))
        output = self._transport.run(argv, stdin=pieces, timeout=_SILENCE_SECONDS)
        if output.exit_code != 0:
            raise StorageError(
                f"cannot install the node program on {self._node.id}",
                printable_tail(output.stderr)
                or f"The installer exited with {format_exit_status(output.exit_code)}.",
                code="node-program-failed",
            )

    def _packed(self, data: bytes) -> bytes:
        return _compressed(data) if self._remote else zlib.compress(data, 0)

    def _python(self, program: str) -> tuple[str, ...]:
        """Standard library alone: what a host's site-packages run at every start is neither wanted nor waited for."""
        return (self._node.python, "-I", "-S", "-c", program)

    def _raw_error(self, output: CommandOutput) -> Exception:
        lines = output.stderr.splitlines() or [b""]
        try:
            return error_from(self._node.id, json.loads(lines[-1])["error"])
        except (ValueError, KeyError, TypeError):
            return crash_error(self._node.id, output.exit_code, output.stderr)


@functools.lru_cache(maxsize=1)
def _compressed(data: bytes) -> bytes:
    """Once for all hosts of a cluster."""
    return zlib.compress(data, _COMPRESSION)


def _read_ahead(pieces: Iterable[bytes]) -> tuple[bytes, Iterable[bytes]]:
    """As much of it as is sent at once, and what is left then."""
    pieces = iter(pieces)
    begun = bytearray()
    for piece in pieces:
        begun += piece
        if len(begun) > _SESSION_BYTES:
            return bytes(begun), pieces
    return bytes(begun), ()


def _ignore(_: bytes) -> None:
    """What is said doesn't matter, only that it is."""
