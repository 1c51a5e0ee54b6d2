"""Running programs on this machine as if it were a node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from trainctl.remote.programs import Programs, Streams
from trainctl.spi.transport import Output, Transport


class LocalTransport:
    """Each program is a process group of its own, so that it can be ended with everything it started."""

    def __init__(self) -> None:
        self._programs = Programs()

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: Iterable[bytes] = (),
        on_stdout: Callable[[bytes], None] | None = None,
        timeout: float | None = None,
    ) -> Output:
        """See Transport."""
        stdout, stderr = bytearray(), bytearray()
        streams = Streams(on_stdout or stdout.extend, stderr.extend, stdin, timeout=timeout)
        code = self._programs.run(argv, streams)
        return Output(code, bytes(stdout), bytes(stderr))

    @contextmanager
    def expose(self, port: int) -> Iterator[int]:
        """See Transport. It is the same loopback."""
        yield port

    def close(self) -> None:
        """End what is still running."""
        self._programs.close()


_: type[Transport] = LocalTransport
