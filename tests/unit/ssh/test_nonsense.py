"""Hosts that answer with what makes no sense, or change while they are asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

import pytest

from trainctl.errors import NodeError
from trainctl.plugin_api.provider import ClusterSettings, CommandOutput, ResourceStatus, Transport
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

    assert "lab/a" in caught.value.summary
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
