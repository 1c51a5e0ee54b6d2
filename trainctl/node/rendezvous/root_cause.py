"""Whether a rank that failed may only have suffered from another's failure, by the last lines that it wrote.

The words are what users see of gloo, NCCL, torch.distributed, MPI and UCX, and of sockets themselves, when the other side of a connection
is gone: gloo/transport/tcp (pair.cc, "Connection closed by peer"), NCCL's src/misc/socket.cc and its error names in nccl.h, c10d's
TCPStore, ProcessGroup and error classes (DistBackendError and others, torch/distributed), torchelastic's rendezvous errors, and strerror(3).
"""

from __future__ import annotations

import re

_WORDS = (
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
_CONSEQUENCE = re.compile("|".join(map(re.escape, _WORDS)), re.IGNORECASE)

_LINES = 40


def is_consequence(text: str) -> bool:
    """Whether the last lines of what a failed rank wrote tell of a connection or a collective operation that broke."""
    return _CONSEQUENCE.search("\n".join(text.splitlines()[-_LINES:])) is not None
