"""The local provider and its transport against the suites, and what is theirs alone."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.node_program.nodes import is_alive, wait_for
from trainctl.plugin_api.provider import ClusterSettings, ResourceStatus
from trainctl.testing.provider import ProviderConformance
from trainctl.testing.session import SessionConformance
from trainctl.testing.transport import TransportConformance
from trainctl_local import LocalProvider, LocalTransport

TWO = ClusterSettings("lab", {"nodes": 2, "gpus": 0})


@pytest.fixture(autouse=True)
def _homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


class TestLocalProvider(ProviderConformance):
    """The suite for providers."""

    @pytest.fixture
    def provider(self) -> LocalProvider:
        return LocalProvider()

    @pytest.fixture
    def cluster(self) -> ClusterSettings:
        return TWO


class Local:
    """The transport; the node's Python is the one that runs the tests."""

    @pytest.fixture
    def python(self) -> str:
        return sys.executable

    @pytest.fixture
    def transport(self) -> Iterator[LocalTransport]:
        with closing(LocalTransport()) as transport:
            yield transport


class TestLocalTransport(Local, TransportConformance):
    """The suite for transports."""


class TestLocalSessions(Local, SessionConformance):
    """The suite for sessions."""


def test_two_states_share_a_directory_and_the_last_removes_it(tmp_path: Path) -> None:
    """A second key gets the same directory; it goes with the last key that is deleted."""
    provider = LocalProvider()
    first = provider.create(TWO, "lab-0", "one")
    second = provider.create(TWO, "lab-0", "two")
    assert second.root == first.root == str(tmp_path / "cache" / "trainctl" / "nodes" / "lab-0")

    provider.delete(first)
    between = provider.read(second)
    provider.delete(second)

    assert (between, provider.read(second)) == (ResourceStatus.PRESENT, ResourceStatus.MISSING)


@pytest.mark.parametrize("place", ["runs/run-1/spec.json", "cache/references/other-lineage"])
def test_a_directory_with_anothers_things_is_left(place: str) -> None:
    """Runs and references of a lineage keep the directory, whatever the markers say; the node of the deleted key is gone."""
    provider = LocalProvider()
    node = provider.create(TWO, "lab-0", "one")
    (Path(node.root) / place).mkdir(parents=True)

    provider.delete(node)

    assert (Path(node.root) / place).is_dir()
    assert provider.read(node) is ResourceStatus.MISSING


def test_ctrl_c_ends_the_program_with_its_children(tmp_path: Path) -> None:
    """After an interrupt in the caller nothing of the program is left."""
    mark = tmp_path / "pid"
    program = f"""
        from trainctl_local import LocalTransport
        LocalTransport().run(["sh", "-c", "sleep 60 & echo $! > {mark}; wait"])
    """
    words = [sys.executable, "-c", textwrap.dedent(program)]
    caller = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    pid = wait_for(lambda: int(mark.read_text() or 0) if mark.exists() else None)

    caller.send_signal(signal.SIGINT)
    caller.wait()

    assert wait_for(lambda: not is_alive(pid))


def test_close_ends_what_runs() -> None:
    """A call in another thread returns when the transport is closed."""
    transport = LocalTransport()
    codes: list[int] = []
    has_begun = threading.Event()
    thread = threading.Thread(
        target=lambda: codes.append(
            transport.run(
                ["sh", "-c", "echo; sleep 60"], on_stdout=lambda _: has_begun.set()
            ).exit_code
        )
    )
    thread.start()
    assert has_begun.wait(60)

    transport.close()
    thread.join(60)

    assert codes == [-signal.SIGKILL]
