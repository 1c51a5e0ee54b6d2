"""A mirror's server as a program, so that it can run on another host: DIRECTORY ADDRESS TOKEN; prints its port, and at the end the bytes that it sent."""

from __future__ import annotations

import sys
from pathlib import Path

from trainctl.base.object_server import ObjectServer, serving
from trainctl.store.served import MirrorContent


def main(directory: str, address: str, token: str) -> None:
    """Serve until standard input ends."""
    with serving(ObjectServer(MirrorContent(Path(directory)), token, [address])) as server:
        print(server.port, flush=True)
        sys.stdin.read()
        print(server.sent, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
