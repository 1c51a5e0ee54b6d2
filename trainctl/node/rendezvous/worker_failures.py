"""Judge from exit codes and last lines whether a rank failed on its own or because its peers disconnected."""

from __future__ import annotations

import re
import signal
from typing import Dict, List, Optional, Tuple

from trainctl.base.lazy_pattern import compile_lazily

_CONSEQUENCES = (
    # sockets
    "connection reset", "connection refused", "connection closed", "connection aborted", "connection timed out",
    "broken pipe", "no route to host", "network is unreachable", "transport endpoint is not connected", "peer closed",
    "connectionreseterror", "connectionrefusederror", "connectionabortederror", "brokenpipeerror",
    # gloo
    "gloo/transport", "application timeout caused pair closure", "connectfullmesh failed", "timed out waiting",
    # NCCL
    "ncclremoteerror", "ncclsystemerror", "ncclunhandledcudaerror: remote", "remote process exited", "nccl communicator was aborted",
    "watchdog caught collective operation timeout", "collective operation timeout", "net/ib : got completion", "net/socket",
    # torch.distributed
    "distbackenderror", "distnetworkerror", "diststoreerror", "tcpstore", "failed to recv", "socket timeout", "store->get",
    "rendezvousconnectionerror", "rendezvoustimeouterror", "rendezvousclosederror", "rendezvousgracefulexiterror",
    "the client socket has failed", "the client socket has timed out", "heartbeat monitor",
    # MPI, UCX
    "mpi_err_proc_failed", "ucs_err_connection_reset", "endpoint timeout", "ucs_err_endpoint_timeout", "lost communication",
)  # fmt: skip
"""Messages of libraries whose peer has disconnected.

Sources: gloo/transport/tcp (pair.cc), NCCL's src/misc/socket.cc and nccl.h, c10d's TCPStore and ProcessGroup, error
classes of torch.distributed and torchelastic's rendezvous, strerror(3).
"""
_CONSEQUENCE = compile_lazily("|".join(map(re.escape, _CONSEQUENCES)), re.IGNORECASE)
_LAST_LINES = 40
_LINE = 200
_CRASHES = {signal.SIGILL, signal.SIGBUS, signal.SIGFPE, signal.SIGKILL, signal.SIGSEGV}
"""Signals that no library sends when a peer disconnects."""
_SIGNAL_BASE = 128
_WORKER = compile_lazily(r"(?:\[[a-z]+\d+\]: ?)+")
"""Prefix of a worker's lines by torch.distributed (``[rank3]: ``) or ``torchrun --tee`` (``[default3]:``)."""
_EXCEPTION = compile_lazily(
    r"(?!.*ChildFailedError)[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b"
)
_REPORT = compile_lazily(r"^.*\bfailed \(exitcode: -?\d+\) local_rank: .*$", re.MULTILINE)
"""First line of torchrun's own report, about ten lines for each worker."""
_WORKER_SIGNAL = compile_lazily(r"^ +exitcode +: -(\d+) ", re.MULTILINE)
_KILLED_BY_LAUNCHER = "forcefully exiting via"


def judge_failure(text: str, code: Optional[int]) -> Tuple[bool, str]:
    """Return whether a rank only lost connections, else the last exception of one of its workers, if any.

    ``text`` is the end of its log. Each worker has its own last lines, as those of others may follow them.
    """
    parts = _REPORT.split(text)
    workers: Dict[str, List[str]] = {}
    for line in parts[-2:][0].splitlines():
        match = _WORKER.match(line)
        prefix = match.group() if match else ""
        workers.setdefault(prefix, []).append(line[len(prefix) :])
    last = {}
    for prefix, lines in workers.items():
        lines = lines[-_LAST_LINES:]
        # the lines before the first traceback are of connections that were retried
        starts = (number for number, line in enumerate(lines) if line.startswith("Traceback"))
        last[prefix] = lines[next(starts, 0) :]
    broken = {name for name, lines in last.items() if _CONSEQUENCE.search("\n".join(lines))}
    errors = {
        name: [line for line in lines if _EXCEPTION.match(line)] for name, lines in last.items()
    }
    if any(lines for name, lines in errors.items() if name):
        errors.pop("", None)  # workers with prefixes failed, and other lines are older
    is_crash = code is not None and (-code if code < 0 else code - _SIGNAL_BASE) in _CRASHES
    if is_crash:  # earlier exceptions were handled
        errors = {}
    own = [f"{name}{lines[-1]}" for name, lines in errors.items() if lines and name not in broken]
    signals = {int(number) for number in _WORKER_SIGNAL.findall(parts[-1])} & _CRASHES
    if _KILLED_BY_LAUNCHER in text:  # a consequence
        signals -= {signal.SIGKILL}
    own += [f"a worker was killed by signal {number}" for number in signals]
    return bool(broken) and not own and not is_crash, next(iter(own), "")[:_LINE]
