"""Conformance suite of sessions: one program that answers many calls."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from trainctl.base.protocol.method import untyped_method
from trainctl.errors import NodeError, NodeUnreachable
from trainctl.plugin_api.provider import Node, Transport
from trainctl.remote.agent import NodeAgent
from trainctl.remote.archive import ProgramArchive, program_archive
from trainctl.remote.session import NodeSessions
from trainctl.testing.transport import TransportFixtures

_SECONDS = 30.0
_AT_ONCE = 8
_BIG = 300_000


def program() -> ProgramArchive:
    """Return the program that these tests call."""
    names = ("trainctl.testing:session_program", "trainctl:errors", "trainctl.base")
    return program_archive("trainctl.testing.session_program", names)


class SessionConformance(TransportFixtures):
    """The suite; the transport must lead to this machine."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        """The node's directory."""
        return tmp_path / "root"

    @pytest.fixture
    def sessions(self, transport: Transport) -> Iterator[NodeSessions]:
        """Sessions over the transport, ended after the test."""
        sessions = NodeSessions(transport)
        yield sessions
        sessions.end()
        sessions.wait(time.monotonic() + _SECONDS)

    @pytest.fixture
    def agent(
        self, transport: Transport, sessions: NodeSessions, python: str, root: Path
    ) -> NodeAgent:
        """An agent of the program."""
        node = Node("lab", "n", "n", str(root), str(root / "data"), python, key="made")
        return NodeAgent(node, transport, archive=program(), sessions=sessions)

    def test_calls_are_processes_of_their_own_below_one(self, agent: NodeAgent) -> None:
        """Each call has its own process and globals; their parent is the same."""
        first, second = (agent.call(untyped_method("identify"), {}) for _ in range(2))

        assert first["session"] == second["session"]
        assert first["pid"] != second["pid"]
        assert (first["calls"], second["calls"]) == (1, 1)

    def test_many_at_once(self, agent: NodeAgent) -> None:
        """Each call gets its own response, whatever the size."""
        agent.call(untyped_method("echo"), {"word": "the program is installed once"})
        words = [str(number) * _BIG for number in range(_AT_ONCE)]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            responses = list(
                pool.map(lambda word: agent.call(untyped_method("echo"), {"word": word}), words)
            )

        assert [response["word"] for response in responses] == words

    def test_requests_arrive_as_they_are(self, agent: NodeAgent) -> None:
        """Nothing interprets requests in transit."""
        words = ["$HOME", "`id`", "'", "\n", "\x00", "é\u202e", '{"call": 1}']

        echoed = [agent.call(untyped_method("echo"), {"word": word})["word"] for word in words]

        assert echoed == words

    def test_an_event_is_heard_while_the_call_goes_on(
        self, agent: NodeAgent, tmp_path: Path
    ) -> None:
        """A call can wait for an effect of its own event."""
        until = tmp_path / "until"

        result = agent.call(
            untyped_method("later"), {"until": str(until)}, on_event=lambda _: until.touch()
        )

        assert result == {}

    def test_a_call_waits_for_no_other(self, agent: NodeAgent, tmp_path: Path) -> None:
        """Another call is answered meanwhile."""
        until = tmp_path / "until"
        with ThreadPoolExecutor(1) as pool:
            slow = pool.submit(agent.call, untyped_method("later"), {"until": str(until)})
            meanwhile = agent.call(untyped_method("echo"), {"word": "x"}), slow.done()
            until.touch()
            slow.result(_SECONDS)

        assert meanwhile == ({"word": "x"}, False)

    def test_an_error_in_the_listener_ends_the_call_and_what_it_started(
        self, agent: NodeAgent
    ) -> None:
        """The session survives: the next call uses it."""
        event: dict[str, Any] = {}

        def stop(processes: Mapping[str, Any]) -> None:
            event.update(processes)
            raise InterruptedError

        with pytest.raises(InterruptedError):
            agent.call(untyped_method("forever"), {}, on_event=stop)

        _await(lambda: not (_lives(event["pid"]) or _lives(event["started"])))
        assert agent.call(untyped_method("identify"), {})["session"] == event["session"]

    def test_silence_ends_the_call_and_what_it_started(self, agent: NodeAgent) -> None:
        """The node counts as unreachable, and the next call uses the session."""
        events: list[Mapping[str, Any]] = []

        with pytest.raises(NodeUnreachable):
            agent.call(untyped_method("forever"), {}, on_event=events.append, timeout=0.5)

        _await(lambda: not (events and _lives(events[0]["started"])))
        agent.call(untyped_method("echo"), {})

    @pytest.mark.parametrize(("method", "text"), [("crash", "on purpose"), ("die", "signal 9")])
    def test_a_call_that_crashes_is_told_of(self, agent: NodeAgent, method: str, text: str) -> None:
        """The error has its last output; the session survives."""
        before = agent.call(untyped_method("identify"), {})["session"]
        with pytest.raises(NodeError) as raised:
            agent.call(untyped_method(method), {})

        assert text in f"{raised.value.summary} {raised.value.detail}"
        assert agent.call(untyped_method("identify"), {})["session"] == before

    def test_what_a_call_leaves_behind_is_not_waited_for(self, agent: NodeAgent) -> None:
        """A detached process delays neither the call nor the session, and survives."""
        left = agent.call(untyped_method("leave"), {})["left"]
        session = agent.call(untyped_method("identify"), {})["session"]
        try:
            agent.end()
            _await(lambda: not _lives(session))

            assert _lives(left)
        finally:
            os.kill(left, signal.SIGKILL)

    def test_a_session_that_is_killed_is_an_error_once(self, agent: NodeAgent) -> None:
        """Its calls and their processes end with it; the next call starts another session."""

        def kill(event: Mapping[str, Any]) -> None:
            processes.update(event)
            os.kill(event["session"], signal.SIGKILL)

        processes: dict[str, Any] = {}
        with pytest.raises(NodeError):
            agent.call(untyped_method("forever"), {}, on_event=kill)

        try:
            _await(lambda: not _lives(processes["pid"]))
            assert agent.call(untyped_method("identify"), {})["session"] != processes["session"]
        finally:
            os.kill(processes["started"], signal.SIGKILL)

    def test_ending_ends_what_is_under_way(self, agent: NodeAgent, sessions: NodeSessions) -> None:
        """The call is an error, and none of the processes is left."""
        processes: dict[str, Any] = {}

        def on_event(event: Mapping[str, Any]) -> None:
            processes.update(event)
            sessions.end()

        with pytest.raises(NodeUnreachable):
            agent.call(untyped_method("forever"), {}, on_event=on_event)

        _await(lambda: not any(map(_lives, processes.values())))

    def test_a_program_that_changes_changes_no_session(self, agent: NodeAgent, root: Path) -> None:
        """A session runs the verified program; the next one installs it again."""
        before = agent.call(untyped_method("identify"), {})["session"]
        for path in (root / "agent").iterdir():
            path.write_bytes(b"something else")

        assert agent.call(untyped_method("imports"), {}) == {"found": "trainctl.base.pagination"}
        assert agent.call(untyped_method("identify"), {})["session"] == before
        agent.end()
        assert agent.call(untyped_method("identify"), {})["session"] != before

    def test_a_visitor_leaves_nothing(
        self, transport: Transport, sessions: NodeSessions, python: str, root: Path
    ) -> None:
        """An ephemeral agent sends the program once, and writes nothing to the disk."""
        node = Node("lab", "n", "n", str(root), str(root / "data"), python)
        agent = NodeAgent(node, transport, archive=program(), sessions=sessions, ephemeral=True)

        first, second = (agent.call(untyped_method("identify"), {})["session"] for _ in range(2))

        assert first == second
        assert not root.exists()


def _await(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _lives(pid: int) -> bool:
    """Return whether a process runs; a zombie doesn't."""
    with suppress(OSError):
        text = Path(f"/proc/{pid}/stat").read_text()
        return text.rpartition(")")[2].split()[0] not in "ZX"
    return False
