"""Whether words cross the interfaces of this network namespace, but its loopback, in the clear: WORD…; reads a line, prints by word how often it was seen. Needs root."""

from __future__ import annotations

import json
import socket
import sys
import threading

_ALL_PROTOCOLS = 3
"""linux/if_ether.h, ETH_P_ALL."""


def main(*words: str) -> None:
    """Listen until standard input has a line, or ends."""
    seen = dict.fromkeys(words, 0)
    ending = threading.Event()
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 2**20)
    wire.settimeout(0.1)

    def listen() -> None:
        while not ending.is_set():
            try:
                frame, where = wire.recvfrom(2**17)
            except TimeoutError:
                continue
            for word in words if where[0] != "lo" else ():
                seen[word] += frame.count(word.encode())

    thread = threading.Thread(target=listen)
    thread.start()
    print(flush=True)
    sys.stdin.readline()
    ending.set()
    thread.join()
    print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
