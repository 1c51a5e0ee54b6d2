"""Hosts that answer with what makes no sense, or change while they are asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

import pytest

from trainctl.errors import NodeError, NodeUnreachable
from trainctl.plugin_api.provider import (
    ClusterSettings,
    CommandOutput,
    Node,
    ResourceStatus,
    Transport,
)
from trainctl_ssh import SshProvider
from trainctl_ssh.hosts import find_presence

PLACES = b"home\t/home/u\npython\t3.11.7\t/usr/bin/python3\tpython3\n"


class Scripted:
    """A transport that gives prepared answers, one after the other."""

    def __init__(self, *answers: bytes) -> None:
        self._answers = iter(answers)

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: Iterable[bytes] = (),
        on_stdout: Callable[[bytes], None] | None = None,
        timeout: float | None = None,
    ) -> CommandOutput:
        """Return the next answer."""
        return CommandOutput(0, next(self._answers), b"said on stderr")

    def expose(self, port: int) -> AbstractContextManager[int]:
        """See Transport."""
        return nullcontext(port)

    def close(self) -> None:
        """See Transport."""


_: type[Transport] = Scripted


@pytest.mark.parametrize(
    "status", [ResourceStatus.PRESENT, ResourceStatus.MISSING, ResourceStatus.FORBIDDEN]
)
def test_presence_is_what_the_host_answers(status: ResourceStatus) -> None:
    """One word, whatever white space is around it."""
    assert find_presence(Scripted(f" {status}\n".encode()), "/made/x", "lab/a") is status


def test_an_answer_about_presence_that_is_none_is_an_error() -> None:
    """It names the node and shows what the host said."""
    with pytest.raises(NodeError) as caught:
        find_presence(Scripted(b"Welcome!\n"), "/made/x", "lab/a")

    assert caught.value.summary == "lab/a cannot inspect its files"
    assert "said on stderr" in caught.value.detail


@pytest.mark.parametrize(
    ("made", "fails"), [(b'{"made": true}', False), (b'{"made": false}', True)]
)
def test_a_node_that_is_removed_while_it_is_made_is_an_error(
    made: bytes, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process took the marker away: the node is not reported as made."""
    provider = SshProvider()
    transport = Scripted(PLACES, made)
    monkeypatch.setattr(provider, "transport", lambda node: transport)
    cluster = ClusterSettings("lab", {"provider": "ssh", "hosts": [{"name": "gpu-1"}]})

    if fails:
        with pytest.raises(NodeError, match="deleted by another process"):
            provider.create(cluster, "gpu-1", "key")
    else:
        assert provider.create(cluster, "gpu-1", "key").root == "/home/u/.cache/trainctl"


def test_one_host_that_has_the_node_is_enough_to_find_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever others are unreachable; without it any of them could be the one that has the node."""
    provider, answers = SshProvider(), {"gpu-1": [PLACES, b"present\n"]}

    def transport(node: Node) -> Transport:
        if node.name not in answers:
            raise NodeUnreachable(f"{node.id} timed out")
        return Scripted(answers[node.name].pop(0))

    monkeypatch.setattr(provider, "transport", transport)
    cluster = ClusterSettings("lab", {"hosts": ["gpu-0", "gpu-1"]})

    found = provider.find(cluster, "key")
    assert found is not None
    assert (found.id, found.key) == ("lab/gpu-1", "key")
    answers["gpu-1"] += [PLACES, b"missing\n"]
    with pytest.raises(NodeUnreachable, match="lab/gpu-0 timed out"):
        provider.find(cluster, "key")
