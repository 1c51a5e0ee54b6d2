"""Programs whose threads share their memory: what mirroring takes doesn't grow with the threads that it has had."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

_COUNT = """
import ctypes, json, sys, threading
meeting = threading.Barrier(13)

def work():
    meeting.wait()
    held = bytearray(5000)
    meeting.wait()

for _ in range(12):
    threading.Thread(target=work).start()
meeting.wait(), meeting.wait()
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
told = ctypes.c_void_p(libc.fopen(b"arenas.xml", b"w"))
libc.malloc_info(0, told), libc.fclose(told)
print(open("arenas.xml").read().count("<heap nr="), file=sys.stderr)
"""
_COMMAND = "from trainctl.cli.main import main; main(['--help'])"


def arenas(place: Path, program: str) -> int:
    """Among how many arenas twelve threads are, that begin when a program has."""
    done = subprocess.run(
        [sys.executable, "-c", program + _COUNT],
        cwd=place,
        input=b'{"root": "."}\n',
        capture_output=True,
        check=True,
        env={one: value for one, value in os.environ.items() if "MALLOC" not in one},
    )
    return int(done.stderr.split()[-1])


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_info"), reason="this C library has no arenas"
)
def test_threads_of_a_command_share_two_arenas(tmp_path: Path) -> None:
    """In any other program they would have many."""
    assert arenas(tmp_path, _COMMAND) <= 2 < arenas(tmp_path, "")
