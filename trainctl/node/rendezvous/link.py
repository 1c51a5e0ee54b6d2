"""A rank's link to rank 0: a helper process, which is in touch while the supervisor is busy; rank 0's has the server."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING, Callable, Optional, Sequence

from trainctl.base.network.addresses import bind_first_free
from trainctl.base.system.syscalls import fork_child
from trainctl.node.rendezvous.coordinator import GangTimeouts, Value

if TYPE_CHECKING:
    from trainctl.node.rendezvous.exchange import GangServer  # only helpers import it

_MAX_BYTES = 2**16
_RETRY_SECONDS = 0.5  # short: rank 0 counts a rank without a connection as lost after 10 s
_FAREWELL_SECONDS = 10.0
"""How long rank 0 waits for ranks that don't know the end yet."""


class HelperPipe:
    """End of a socket pair between supervisor and helper; each value replaces the last one."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self.open = True

    def fileno(self) -> int:
        """Descriptor for poll."""
        return self._end.fileno()

    def send(self, value: Value) -> None:
        """Send a value; ignored if the other side has exited."""
        with contextlib.suppress(OSError):
            self._end.send(json.dumps(value).encode())

    def receive(self, seconds: Optional[float] = 0.0) -> Optional[Value]:
        """Wait for a value, and return the last one; ``open`` is False afterwards if the other side has exited."""
        value = None
        while self.open and select.select([self._end], [], [], seconds)[0]:
            data = b""
            with contextlib.suppress(OSError):
                data = self._end.recv(_MAX_BYTES)
            self.open = bool(data)
            value = json.loads(data) if data else value
            seconds = 0.0
        return value

    def close(self) -> None:
        """Close this end."""
        self._end.close()


class HelperProcess:
    """The supervisor's side of its helper process, which runs ``work`` with the other end of ``line``."""

    def __init__(self, work: Callable[[HelperPipe], None], descriptors: Sequence[int] = ()) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

        def run() -> int:
            work(HelperPipe(theirs))
            return 0

        self._pid = fork_child(run, theirs.fileno(), *descriptors)
        theirs.close()
        self.line = HelperPipe(ours)

    def finish(self, seconds: float) -> None:
        """Give it time to pass on the last state, then kill it."""
        deadline = time.monotonic() + seconds
        while self.line.open and time.monotonic() < deadline:
            self.line.receive(0.1)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        self.line.close()


class RankLink:
    """Passes the supervisor's states to rank 0, and orders to the supervisor, until the gang is over."""

    def __init__(
        self,
        line: HelperPipe,
        state: Value,
        exchange: Callable[[Value], Value],
        timeouts: GangTimeouts,
        tried: str = "",
    ) -> None:
        """``tried``: addresses of rank 0, for the error."""
        self._line = line
        self._state = state
        self._exchange = exchange
        self._timeouts = timeouts
        self._tried = tried
        self._lock = threading.Lock()
        self._order: Value = {"do": "join", "version": 0}
        self._number = 0

    def run(self) -> None:
        """Exchange until the gang is over or rank 0 is lost."""
        threading.Thread(target=self._pass_on_states, daemon=True).start()
        received_at = time.monotonic()
        closed_at: Optional[float] = received_at
        while self._order["do"] != "over":
            began = time.monotonic()
            try:
                self._post(self._timeouts.heartbeat)
                received_at, closed_at = time.monotonic(), None
                continue
            except OSError:
                now = time.monotonic()
            # A connection that was refused or broken ends sooner than one that timed out.
            if closed_at is None and now - began < self._timeouts.connect:
                closed_at = now
            if closed_at is not None and now - closed_at > self._timeouts.closed:
                self._lose(f"rank 0 is unreachable at {self._tried}")
            elif now - received_at > self._timeouts.silent:
                self._lose(f"rank 0 sent no message for {self._timeouts.silent:.0f} s")
            else:
                time.sleep(_RETRY_SECONDS)
        if not self._order.get("alone"):
            with contextlib.suppress(OSError):  # rank 0 waits until all know the end
                self._post(0)

    def _pass_on_states(self) -> None:
        while self._line.open:
            state = self._line.receive(None)
            if state is not None:
                self._state = state
                with contextlib.suppress(OSError):  # it is sent again soon
                    self._post(0)

    def _post(self, wait: float) -> None:
        """Send the state and pass on the order; ``wait``: how long rank 0 may wait for another one."""
        with self._lock:
            # Above those of an earlier supervisor of this rank.
            self._number = max(self._number + 1, time.time_ns())
            message = {"number": self._number, "known": self._order["version"], "wait": wait}
            message["state"] = self._state
        answer = self._exchange(message)
        if "refused" in answer:
            self._lose(f"rank 0 rejected this rank: {answer['refused']}")
            return
        with self._lock:
            if answer["order"]["version"] > self._order["version"]:
                self._order = answer["order"]
                self._line.send(self._order)

    def _lose(self, error: str) -> None:
        """Report to the supervisor that rank 0 is lost."""
        cause = {"rank": 0, "status": None, "exit_code": None, "error": error}
        self._order = {"do": "over", "alone": True, "cause": cause, "version": time.time_ns()}
        self._line.send(self._order)


def coordinate(line: HelperPipe, state: Value, server: GangServer, timeouts: GangTimeouts) -> None:
    """Work of rank 0's helper: serve all ranks until they know the end."""
    server.start()
    RankLink(line, state, server.exchange, timeouts).run()
    deadline = time.monotonic() + _FAREWELL_SECONDS
    while not server.is_over and time.monotonic() < deadline:
        time.sleep(0.05)  # shorter than a heartbeat: the run's record waits for this


_PORTS = range(20000, 30000)
"""Below ephemeral ports (net.ipv4.ip_local_port_range, from 32768), so that none takes a released port."""


class PortReservation:
    """Reserves a port on all addresses of this host.

    Listens with SO_REUSEADDR, so that recently closed connections (TIME_WAIT) don't block the port. Servers that set
    the same option, as torch and Python do, can bind it after the release.
    """

    def __init__(self, ports: Optional[range] = None) -> None:
        self._ports = _PORTS if ports is None else ports
        self._held: Optional[socket.socket] = None

    def allocate(self) -> int:
        """Reserve a free port, a different one each time; TrainctlError if there is none."""
        self.release()
        self._held = bind_first_free(self._ports, _listener)
        return int(self._held.getsockname()[1])

    def release(self) -> None:
        """Release the port for the job."""
        if self._held is not None:
            self._held.close()
            self._held = None


def _listener(port: int) -> socket.socket:
    """Listen on IPv6 and IPv4 where possible, as the job may use either."""
    try:
        return _listener_for_family(socket.AF_INET6, "::", port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise
        return _listener_for_family(socket.AF_INET, "0.0.0.0", port)  # noqa: S104 - no connection is accepted


def _listener_for_family(family: int, address: str, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(0)  # if two processes bind at once, only one can listen
    except OSError:
        listener.close()
        raise
    return listener
