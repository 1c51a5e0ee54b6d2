"""How commands reach a node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """What a command left behind.

    ``exit_code`` is negative for a signal, as in ``subprocess``, or 128 and the signal's number, as shells say it.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes


class Transport(Protocol):
    """Runs programs on one node. Arguments are a list and reach the program as they are; no shell reads them."""

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: Iterable[bytes] = (),
        on_stdout: Callable[[bytes], None] | None = None,
        timeout: float | None = None,
    ) -> CommandOutput:
        """Run to the end. ``stdin`` is sent piece by piece and then closed. It may be a ``trainctl.remote.processes.Feed``, which may wait long for its next
        piece; what the program says is handed over meanwhile.

        With ``on_stdout`` each piece of standard output is handed over as it arrives, and the output holds none.
        NodeUnreachable if the program could not be started or watched; ``timeout`` is in seconds of silence.
        """
        ...

    def expose(self, port: int) -> AbstractContextManager[int]:
        """Have 127.0.0.1:``port`` of this machine reachable on the node's loopback; gives the port that it has there.

        NodeError where the node forbids it, NodeUnreachable where it can't be asked. It ends with the block, and with the link.
        """
        ...

    def close(self) -> None:
        """Give back what the transport holds."""
        ...
