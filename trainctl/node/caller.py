"""Who called this program: the address that their connection came to, and whether they are still there."""

from __future__ import annotations

import os
import threading
import time
from typing import BinaryIO, Callable

from trainctl.node.addresses import private_family

_SILENCE_SECONDS = 60.0
_TELL_SECONDS = 1.0


def own_address() -> str:
    """Where peers reach this machine: the address that the caller's SSH connection came to, if it is private; loopback without one.

    Failure where there is only a public one. Source: sshd(8), SSH_CONNECTION.
    """
    words = os.environ.get("SSH_CONNECTION", "").split()
    if len(words) != 4:
        return "127.0.0.1"
    address = words[2].partition("%")[0]
    private_family(address)
    return address


def until_gone(caller: BinaryIO, tell: Callable[[], None]) -> None:
    """Until the caller is gone; it is told now and then that we are not."""
    ended = threading.Event()
    heard = time.monotonic()

    def listen() -> None:
        nonlocal heard
        while os.read(caller.fileno(), 4096):
            heard = time.monotonic()
        ended.set()

    threading.Thread(target=listen, daemon=True).start()
    while not ended.wait(_TELL_SECONDS) and time.monotonic() - heard < _SILENCE_SECONDS:
        tell()
