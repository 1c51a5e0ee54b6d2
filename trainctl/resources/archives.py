"""Code trees on their way to nodes, and between them."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from trainctl.base.protocol.code import HAS_CODE, PUT_CODE, CodeRequest, HasCodeRequest
from trainctl.errors import NodeError
from trainctl.model.run import RunRecord
from trainctl.remote.agent import NodeAgent
from trainctl.resources.run_control import RunControl

_PIECE = 2**20

Archive = Callable[[], AbstractContextManager[Iterator[bytes]]]
"""A tar in pieces, made when it is wanted."""


def ship(agent: NodeAgent, root: str, digest: str, lineage: str, archive: Archive) -> str:
    """Have a code tree on a node; the sha256 of the archive that it unpacks, which may have been there before.

    ``lineage`` is who is about to use it: it is kept for that long.
    """
    request = CodeRequest(root=root, digest=digest)
    there = agent.call(HAS_CODE, HasCodeRequest(**request, lineage=lineage))
    if there["sha256"] is not None:
        return there["sha256"]
    sent = hashlib.sha256()

    def hashed(data: Iterator[bytes]) -> Iterator[bytes]:
        for piece in data:
            sent.update(piece)
            yield piece

    with archive() as data:
        there = agent.call(PUT_CODE, request, payload=hashed(data))
    if there["sha256"] != sent.hexdigest():
        raise NodeError("the code arrived damaged", "Try again.")
    return sent.hexdigest()


@contextmanager
def fetched(control: RunControl, run: RunRecord, digest: str) -> Iterator[Iterator[bytes]]:
    """A code tree as a node of an earlier run has it."""
    with tempfile.TemporaryFile() as spool:

        def keep(data: bytes) -> None:
            spool.write(data)

        control.read_code(run, digest, keep)
        spool.seek(0)
        yield iter(lambda: spool.read(_PIECE), b"")
