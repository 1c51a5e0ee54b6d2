"""A mirror's server as a program, so that it can run on another host: DIRECTORY ADDRESS TOKEN; prints its port, and at the end the bytes that it sent."""

from __future__ import annotations

import sys
from pathlib import Path

from trainctl.base.network.object_server import ObjectServer, serve_in_thread
from trainctl.store.mirror_objects import MirrorObjectSource


def main(directory: str, address: str, token: str) -> None:
    """Serve until standard input ends."""
    with serve_in_thread(
        ObjectServer(MirrorObjectSource(Path(directory)), token, [address])
    ) as server:
        print(server.port, flush=True)
        sys.stdin.read()
        print(server.sent, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
