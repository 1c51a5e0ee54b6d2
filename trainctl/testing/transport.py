"""Conformance suite of transports to a node with ``sh`` and ``python3``."""

from __future__ import annotations

import hashlib
import os
import socketserver
import threading
from collections.abc import Iterator
from itertools import chain

import pytest

from trainctl.errors import NodeUnreachable
from trainctl.plugin_api.provider import Transport
from trainctl.remote.processes import InputFeed

_BUFFER_BYTES = 2**16
_ARGUMENTS = (
    "", " ", "a b", "$HOME", "`id`", "'", '"', "\\", ";exit 9", "*", "-x", "é\u202e", "a\nb",
)  # fmt: skip
_CLIENT = (
    "import socket, sys\n"
    "with socket.create_connection(('127.0.0.1', int(sys.argv[1])), 20) as sock:\n"
    "    sys.stdout.buffer.write(sock.recv(5))"
)


class _HelloHandler(socketserver.BaseRequestHandler):
    """Sends hello to every client."""

    def handle(self) -> None:
        """Send it."""
        self.request.sendall(b"hello")


class TransportFixtures:
    """Fixtures to override: ``transport``, if needed ``python``."""

    @pytest.fixture
    def transport(self) -> Iterator[Transport]:
        """An open transport."""
        raise NotImplementedError

    @pytest.fixture
    def python(self) -> str:
        """Name of a Python on the node."""
        return "python3"


class TransportConformance(TransportFixtures):
    """The suite."""

    def test_output_error_and_exit_code_come_back(self, transport: Transport) -> None:
        """Both streams are separate, and the exit code is the program's."""
        output = transport.run(["sh", "-c", "printf out; printf err >&2; exit 3"])

        assert (output.stdout, output.stderr, output.exit_code) == (b"out", b"err", 3)

    def test_arguments_arrive_as_they_are(self, transport: Transport) -> None:
        """No shell interprets them."""
        output = transport.run(["printf", "%s\\0", *_ARGUMENTS])

        assert output.stdout.decode().split("\0") == [*_ARGUMENTS, ""]

    def test_input_of_any_bytes_arrives_and_ends(self, transport: Transport, python: str) -> None:
        """All bytes arrive in order, followed by the end."""
        buffers = [bytes([number % 256]) * _BUFFER_BYTES for number in range(64)]
        program = "import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"

        output = transport.run([python, "-c", program], stdin=iter(buffers))

        assert output.stdout.decode().strip() == hashlib.sha256(b"".join(buffers)).hexdigest()

    def test_much_input_and_output_at_once(self, transport: Transport) -> None:
        """A program that writes while it reads doesn't deadlock."""
        buffers = (os.urandom(_BUFFER_BYTES) for _ in range(128))

        output = transport.run(["cat"], stdin=buffers, timeout=60)

        assert len(output.stdout) == 128 * _BUFFER_BYTES

    def test_much_output_on_both_streams(self, transport: Transport, python: str) -> None:
        """Neither stream blocks the other."""
        program = (
            "import sys\nfor _ in range(200):\n"
            " sys.stderr.write('e' * 9999)\n sys.stdout.write('o' * 9999)"
        )

        output = transport.run([python, "-c", program], timeout=60)

        assert (len(output.stdout), len(output.stderr)) == (200 * 9999, 200 * 9999)

    def test_a_program_that_ignores_its_input_is_not_waited_for(self, transport: Transport) -> None:
        """The call returns when the program ends, with its output."""
        buffers = (bytes(_BUFFER_BYTES) for _ in range(256))

        output = transport.run(["sh", "-c", "echo done"], stdin=buffers, timeout=60)

        assert (output.stdout, output.exit_code) == (b"done\n", 0)

    def test_output_is_handed_over_as_it_arrives(self, transport: Transport) -> None:
        """Output before a pause is passed on at once; the result then holds none."""
        received: list[bytes] = []

        output = transport.run(
            ["sh", "-c", "echo first; sleep 1; echo second"], on_stdout=received.append
        )

        assert b"".join(received) == b"first\nsecond\n"
        assert b"second" not in received[0]
        assert output.stdout == b""

    def test_what_is_said_while_input_waits_is_heard(self, transport: Transport) -> None:
        """Input that depends on the program's output doesn't deadlock."""
        received: list[bytes] = []
        feed = InputFeed()

        def on_output(data: bytes) -> None:
            received.append(data)
            if b"".join(received) == b"first\n":
                feed.put(b"second\n")
                feed.close()

        output = transport.run(
            ["sh", "-c", "echo first; cat"], stdin=feed, on_stdout=on_output, timeout=60
        )

        assert (b"".join(received), output.exit_code) == (b"first\nsecond\n", 0)

    def test_what_leads_goes_before_what_is_put(self, transport: Transport) -> None:
        """Leading input is sent first; output is received while input waits."""
        received: list[bytes] = []
        feed = InputFeed()
        leading = (bytes(_BUFFER_BYTES) for _ in range(4))

        def on_output(data: bytes) -> None:
            received.append(data)
            if b"".join(received) == b"read\n":
                feed.put(b"last\n")
                feed.close()

        program = f"head -c {4 * _BUFFER_BYTES} >/dev/null; echo read; cat"
        output = transport.run(
            ["sh", "-c", program], stdin=chain(leading, feed), on_stdout=on_output, timeout=60
        )

        assert (b"".join(received), output.exit_code) == (b"read\nlast\n", 0)

    def test_silence_is_unreachable(self, transport: Transport) -> None:
        """A program without output for the timeout is killed."""
        with pytest.raises(NodeUnreachable):
            transport.run(["sleep", "60"], timeout=0.5)

    def test_a_slow_program_that_speaks_is_not_given_up(self, transport: Transport) -> None:
        """The timeout counts silence only."""
        script = "for i in 1 2 3 4 5 6; do echo $i; sleep 0.4; done"

        assert transport.run(["sh", "-c", script], timeout=2).exit_code == 0

    def test_what_a_program_leaves_behind_is_not_waited_for(self, transport: Transport) -> None:
        """A detached process that holds the streams doesn't delay the call."""
        output = transport.run(["sh", "-c", "setsid sleep 18 & echo done"], timeout=12)

        assert (output.stdout, output.exit_code) == (b"done\n", 0)

    def test_a_program_that_is_not_there(self, transport: Transport) -> None:
        """The transport can't start it, or the remote side exits with 126 or 127."""
        try:
            output = transport.run(["/no/such/program"])
            code, message = output.exit_code, ""
        except NodeUnreachable as error:
            code, message = None, error.summary
        assert code in (126, 127) or "/no/such/program" in message

    def test_many_threads_share_a_transport(self, transport: Transport) -> None:
        """Each call gets its own output."""
        outputs: dict[int, bytes] = {}

        def run(number: int) -> None:
            outputs[number] = transport.run(["printf", "%s", str(number)]).stdout

        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert outputs == {number: str(number).encode() for number in range(4)}

    def test_an_error_in_the_listener_ends_the_program(self, transport: Transport) -> None:
        """The call raises the callback's error without waiting for the program."""

        def stop(data: bytes) -> None:
            raise InterruptedError(data)

        with pytest.raises(InterruptedError):
            transport.run(["sh", "-c", "echo x; sleep 300"], on_stdout=stop)

    def test_a_port_of_this_machine_is_reachable_there(
        self, transport: Transport, python: str
    ) -> None:
        """A local listener is reachable on the node's loopback."""
        with socketserver.TCPServer(("127.0.0.1", 0), _HelloHandler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            with transport.expose(server.server_address[1]) as outer:
                with transport.expose(server.server_address[1]) as port:
                    first = transport.run([python, "-c", _CLIENT, str(port)])
                second = transport.run([python, "-c", _CLIENT, str(outer)])
            server.shutdown()

        assert (first.stdout, second.stdout) == (b"hello", b"hello")

    def test_close_twice(self, transport: Transport) -> None:
        """Closing is safe to repeat."""
        transport.run(["true"])
        transport.close()
        transport.close()
