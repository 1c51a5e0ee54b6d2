"""Client of the node program. See trainctl/DESIGN.md, "The node program"."""

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
from trainctl.base.protocol.runs import STATUS, EnterRequest, StatusRequest
from trainctl.errors import NodeError, StorageError
from trainctl.plugin_api.provider import CommandOutput, InteractiveTransport, Node, Transport
from trainctl.remote import archive as bootstrap
from trainctl.remote.archive import ProgramArchive, node_archive
from trainctl.remote.responses import (
    OnEvent,
    ResponseParser,
    crash_error,
    error_from,
    format_exit_status,
    printable_tail,
)
from trainctl.remote.session import NodeSessions, SessionCall

_SILENCE_SECONDS = 900.0  # methods report progress; a sync of a slow disk may not
_BUFFER_BYTES = 2**18
_COMPRESSION = 1  # higher levels take longer than they save
_SESSION_BYTES = 2**20
"""Longer requests get a process of their own, as a session has no flow control."""


class NodeAgent:
    """Client of the node program on one node. Thread-safe if the transport is.

    Raises the errors that the program reports (StorageError, Busy, SourceMismatch, NodeError), NodeError if it crashes,
    and NodeUnreachable from the transport. ``timeout``: seconds without output.

    ``ephemeral``: install nothing; if the program isn't installed, send it with each call. This keeps hosts clean that
    are only inspected. ``archive``: the program, by default the node program; ``bytecode``: the same compiled for this
    Python. ``remote``: the node may have another Python, and data is compressed. Agents with the same ``sessions`` share
    a session for calls with short requests; calls with a payload and raw reads have processes of their own.
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
        # Nothing is installed on a node that was not created.
        self._is_absent = ephemeral and not node.key

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
        """Call a method and return its response.

        ``following`` is sent after the request and before ``payload``; if short, it doesn't prevent the use of a session.
        ``payload`` may be a one-shot iterator, or an InputFeed with responses to the program's events; another thread reads it.
        """
        parser = ResponseParser(self._node.id, on_event)
        line = json.dumps(request).encode() + b"\n"
        silence = timeout or _SILENCE_SECONDS
        head, rest = _read_ahead(following)
        line += head
        if payload == () == rest:
            output = self._call_session(
                SessionCall(self._node.id, method.name, line, parser.feed, silence)
            )
        else:
            if not self._is_installed and not self._is_absent:
                probe = json.dumps({"root": self._node.root, "keys": []}).encode() + b"\n"
                call = SessionCall(self._node.id, STATUS.name, probe, lambda _: None, silence)
                self._call_session(call)
            output = self._call_process(method.name, (line, rest), payload, parser.feed, silence)
        if parser.error is not None:
            raise parser.error
        if output.exit_code != 0 or parser.result is None:
            raise crash_error(self._node.id, output.exit_code, output.stderr)
        return cast(ResponseT, parser.result)

    def read(
        self,
        method: Method[RequestT, bytes],
        request: RequestT,
        on_bytes: Callable[[bytes], None],
        timeout: float | None = None,
    ) -> None:
        """Call a ``read_`` method and pass on its bytes; an error may follow them."""
        line = json.dumps(request).encode() + b"\n"
        silence = timeout or _SILENCE_SECONDS
        output = self._call_process(method.name, (line, ()), (), on_bytes, silence)
        if output.exit_code != 0:
            lines = output.stderr.splitlines() or [b""]
            try:
                error = error_from(self._node.id, json.loads(lines[-1])["error"])
            except (ValueError, KeyError, TypeError):
                raise crash_error(self._node.id, output.exit_code, output.stderr) from None
            raise error

    def command(self, method: str) -> tuple[str, ...]:
        """Return the command line that runs a method of the installed program; its request is read from stdin."""
        return (*self._argv, method)

    def terminal_command(self, request: EnterRequest, *, tty: bool) -> Sequence[str]:
        """Return a local command line that enters a run with this terminal; installs the program first."""
        transport = self.interactive()
        self.call(STATUS, StatusRequest(root=request["root"], keys=[]))
        return transport.terminal_command((*self._argv, json.dumps(request), "enter"), tty=tty)

    def interactive(self) -> InteractiveTransport:
        """Return its transport for people; NodeError if it has none."""
        if not isinstance(self._transport, InteractiveTransport):
            raise NodeError(
                f"{self._node.id} can't be entered from here",
                "Use a cluster of ssh hosts with the OpenSSH client, or log in to the node.",
                code="not-interactive",
            )
        return self._transport

    def end(self) -> None:
        """End its sessions, which other agents may share, and the calls in progress."""
        self._sessions.end()

    def expose(self, port: int) -> AbstractContextManager[int]:
        return self._transport.expose(port)

    def _call_session(self, call: SessionCall) -> CommandOutput:
        return self._run(lambda argv, head: self._sessions.call(argv, head, call))

    def _call_process(
        self,
        method: str,
        request: tuple[bytes, Iterable[bytes]],
        payload: Iterable[bytes],
        on_stdout: Callable[[bytes], None],
        timeout: float,
    ) -> CommandOutput:
        """Call a method in a process of its own with the request and a payload."""

        def run(argv: Sequence[str], head: bytes) -> CommandOutput:
            stdin = chain((head, request[0]), request[1], payload)
            return self._transport.run(
                (*argv, method), stdin=stdin, on_stdout=on_stdout, timeout=timeout
            )

        return self._run(run)

    def _run(self, run: Callable[[Sequence[str], bytes], CommandOutput]) -> CommandOutput:
        """Run the program, installing it if missing.

        ``run`` receives the command line and the first input.
        """
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
        data_arguments = (str(len(data)), hashlib.sha256(data).hexdigest())
        program_arguments = (str(len(program)), self._archive.sha256)
        argv = (*self._python(bootstrap.VISIT), *data_arguments, *program_arguments)
        return run(argv, data)

    def _install(self) -> None:
        size = len(self._archive.data)
        data = self._packed(self._archive.data + (self._bytecode() if self._bytecode else b""))
        buffers = (
            data[start : start + _BUFFER_BYTES] for start in range(0, len(data), _BUFFER_BYTES)
        )
        argv = (*self._python(bootstrap.INSTALL), self._path, self._archive.sha256, str(size))
        output = self._transport.run(argv, stdin=buffers, timeout=_SILENCE_SECONDS)
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
        """Run Python without site-packages: they are not needed and slow down every start."""
        return (self._node.python, "-I", "-S", "-c", program)


@functools.lru_cache(maxsize=1)
def _compressed(data: bytes) -> bytes:
    """Compress; the result is cached for all hosts of a cluster."""
    return zlib.compress(data, _COMPRESSION)


def _read_ahead(buffers: Iterable[bytes]) -> tuple[bytes, Iterable[bytes]]:
    """Read as much as fits a session call, and return the rest as an iterator."""
    buffers = iter(buffers)
    head = bytearray()
    for data in buffers:
        head += data
        if len(head) > _SESSION_BYTES:
            return bytes(head), buffers
    return bytes(head), ()
