"""A network namespace of this machine that leads nowhere. Needs root, ``ip`` and ``tc``."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NEEDED = ("ip", "tc")


def missing() -> str:
    """What this machine lacks, in words; empty if nothing."""
    absent = [name for name in _NEEDED if shutil.which(name) is None]
    if os.geteuid() != 0:
        absent.insert(0, "root")
    return ", ".join(absent)


@contextmanager
def sink_namespace() -> Iterator[str]:
    """A namespace to which every address belongs, so that whatever is sent anywhere arrives in it: its name.

    Names are asked of 127.0.0.1 there.
    """
    name = f"tc{os.getpid()}-alone"
    settings = Path("/etc/netns") / name
    try:
        _ip("netns", "add", name)
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "route", "add", "local", "0.0.0.0/0", "dev", "lo")
        settings.mkdir(parents=True)
        (settings / "resolv.conf").write_text("nameserver 127.0.0.1\n")
        yield name
    finally:
        shutil.rmtree(settings, ignore_errors=True)
        subprocess.run(["ip", "netns", "del", name], check=False)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
