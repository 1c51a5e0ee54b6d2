"""Conformance suite of transports: provide one to a node with ``sh`` and ``python3``."""

from __future__ import annotations

import hashlib
import os
import socketserver
import threading
from collections.abc import Iterator

import pytest

from trainctl.errors import NodeUnreachable
from trainctl.plugin_api.provider import Transport
from trainctl.remote.processes import InputFeed

_PIECE = 2**16
_ARGUMENTS = (
    "", " ", "a b", "$HOME", "`id`", "'", '"', "\\", ";exit 9", "*", "-x", "é\u202e", "a\nb",
)  # fmt: skip
_ASK = (
    "import socket, sys\n"
    "with socket.create_connection(('127.0.0.1', int(sys.argv[1])), 20) as one:\n"
    "    sys.stdout.buffer.write(one.recv(5))"
)


class _HelloHandler(socketserver.BaseRequestHandler):
    """Sends hello to every client."""

    def handle(self) -> None:
        """Send it."""
        self.request.sendall(b"hello")


class TransportFixtures:
    """Fixtures to override: ``transport``, and ``python`` if it is not called ``python3``."""

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
        """Both streams are kept apart, and the exit code is the program's."""
        output = transport.run(["sh", "-c", "printf out; printf err >&2; exit 3"])

        assert (output.stdout, output.stderr, output.exit_code) == (b"out", b"err", 3)

    def test_arguments_arrive_as_they_are(self, transport: Transport) -> None:
        """No shell reads them on the way."""
        output = transport.run(["printf", "%s\\0", *_ARGUMENTS])

        assert output.stdout.decode().split("\0") == [*_ARGUMENTS, ""]

    def test_input_of_any_bytes_arrives_and_ends(self, transport: Transport, python: str) -> None:
        """All pieces come in order, byte for byte, followed by the end."""
        pieces = [bytes([number % 256]) * _PIECE for number in range(64)]
        program = "import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"

        output = transport.run([python, "-c", program], stdin=iter(pieces))

        assert output.stdout.decode().strip() == hashlib.sha256(b"".join(pieces)).hexdigest()

    def test_much_input_and_output_at_once(self, transport: Transport) -> None:
        """A program that answers while it is still being told does not wait for ever."""
        pieces = (os.urandom(_PIECE) for _ in range(128))

        output = transport.run(["cat"], stdin=pieces, timeout=60)

        assert len(output.stdout) == 128 * _PIECE

    def test_much_output_on_both_streams(self, transport: Transport, python: str) -> None:
        """Neither stream waits for the other."""
        program = (
            "import sys\nfor _ in range(200):\n"
            " sys.stderr.write('e' * 9999)\n sys.stdout.write('o' * 9999)"
        )

        output = transport.run([python, "-c", program], timeout=60)

        assert (len(output.stdout), len(output.stderr)) == (200 * 9999, 200 * 9999)

    def test_a_program_that_ignores_its_input_is_not_waited_for(self, transport: Transport) -> None:
        """It ends when it ends, and what it said counts."""
        pieces = (bytes(_PIECE) for _ in range(256))

        output = transport.run(["sh", "-c", "echo done"], stdin=pieces, timeout=60)

        assert (output.stdout, output.exit_code) == (b"done\n", 0)

    def test_output_is_handed_over_as_it_arrives(self, transport: Transport) -> None:
        """What is said before a pause doesn't wait for what follows it, and the output then holds none."""
        seen: list[bytes] = []

        output = transport.run(
            ["sh", "-c", "echo first; sleep 1; echo second"], on_stdout=seen.append
        )

        assert b"".join(seen) == b"first\nsecond\n"
        assert b"second" not in seen[0]
        assert output.stdout == b""

    def test_what_is_said_while_input_waits_is_heard(self, transport: Transport) -> None:
        """Input that is made of what the program said reaches it: neither side waits for the other for ever."""
        seen: list[bytes] = []
        feed = InputFeed()

        def told(data: bytes) -> None:
            seen.append(data)
            if b"".join(seen) == b"first\n":
                feed.put(b"second\n")
                feed.close()

        output = transport.run(
            ["sh", "-c", "echo first; cat"], stdin=feed, on_stdout=told, timeout=60
        )

        assert (b"".join(seen), output.exit_code) == (b"first\nsecond\n", 0)

    def test_what_leads_goes_before_what_is_put(self, transport: Transport) -> None:
        """All of it, though it is more than a pipe holds; what is said after it is heard while input waits."""
        seen: list[bytes] = []
        feed = InputFeed()
        feed.lead(bytes(_PIECE) for _ in range(4))

        def told(data: bytes) -> None:
            seen.append(data)
            if b"".join(seen) == b"read\n":
                feed.put(b"last\n")
                feed.close()

        program = f"head -c {4 * _PIECE} >/dev/null; echo read; cat"
        output = transport.run(["sh", "-c", program], stdin=feed, on_stdout=told, timeout=60)

        assert (b"".join(seen), output.exit_code) == (b"read\nlast\n", 0)

    def test_silence_is_unreachable(self, transport: Transport) -> None:
        """A program that says nothing for the time-out is given up."""
        with pytest.raises(NodeUnreachable):
            transport.run(["sleep", "60"], timeout=0.5)

    def test_a_slow_program_that_speaks_is_not_given_up(self, transport: Transport) -> None:
        """The time-out counts silence, not time."""
        script = "for i in 1 2 3 4 5 6; do echo $i; sleep 0.4; done"

        assert transport.run(["sh", "-c", script], timeout=2).exit_code == 0

    def test_what_a_program_leaves_behind_is_not_waited_for(self, transport: Transport) -> None:
        """A detached process that holds the streams keeps the call neither from returning nor from being right."""
        output = transport.run(["sh", "-c", "setsid sleep 60 & echo done"], timeout=20)

        assert (output.stdout, output.exit_code) == (b"done\n", 0)

    def test_a_program_that_is_not_there(self, transport: Transport) -> None:
        """Either the transport can't start it, or the far side says so with 126 or 127."""
        try:
            output = transport.run(["/no/such/program"])
            code, said = output.exit_code, ""
        except NodeUnreachable as error:
            code, said = None, error.summary
        assert code in (126, 127) or "/no/such/program" in said

    def test_many_threads_share_a_transport(self, transport: Transport) -> None:
        """Each call gets its own answer."""
        answers: dict[int, bytes] = {}

        def ask(number: int) -> None:
            answers[number] = transport.run(["printf", "%s", str(number)]).stdout

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert answers == {number: str(number).encode() for number in range(4)}

    def test_an_error_in_the_listener_ends_the_program(self, transport: Transport) -> None:
        """What the caller raises comes out of the call, which does not wait for the program."""

        def stop(data: bytes) -> None:
            raise InterruptedError(data)

        with pytest.raises(InterruptedError):
            transport.run(["sh", "-c", "echo x; sleep 300"], on_stdout=stop)

    def test_a_port_of_this_machine_is_reachable_there(
        self, transport: Transport, python: str
    ) -> None:
        """What listens on this machine's loopback answers on the node's; afterwards, and for others, as before."""
        with socketserver.TCPServer(("127.0.0.1", 0), _HelloHandler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            with transport.expose(server.server_address[1]) as outer:
                with transport.expose(server.server_address[1]) as port:
                    first = transport.run([python, "-c", _ASK, str(port)])
                second = transport.run([python, "-c", _ASK, str(outer)])
            server.shutdown()

        assert (first.stdout, second.stdout) == (b"hello", b"hello")

    def test_close_twice(self, transport: Transport) -> None:
        """Closing is safe to repeat."""
        transport.run(["true"])
        transport.close()
        transport.close()
