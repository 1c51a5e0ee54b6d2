"""The program: arguments in, an exit code out."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

from trainctl import __version__

_VERSION_FLAGS = (["version"], ["--version"], ["-version"])
_GC_THRESHOLDS = (100_000, 50, 50)
"""Thresholds of the garbage collector. A command builds large values that last to its end and hardly any cycle: the default
thresholds cost a third of the CPU of planning thousands of resources, and a tenth of starting."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; ``argv`` is without the program's name."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments in _VERSION_FLAGS and _print_version():
        return 0
    gc.set_threshold(*_GC_THRESHOLDS)
    try:
        from trainctl.base.system.syscalls import limit_malloc_arenas
        from trainctl.cli.invoke import invoke

        limit_malloc_arenas()  # mirroring has new threads for every part of a source: memory would grow with parts
        return invoke(arguments)
    except KeyboardInterrupt:  # while the program itself was still being loaded
        return 130
    finally:
        gc.freeze()  # skip garbage collection at interpreter exit


def _print_version() -> bool:
    """Print the version before a parser is loaded, as scripts ask often; False if standard output is closed."""
    try:
        print(f"trainctl {__version__}", flush=True)  # noqa: T201
    except OSError:
        return False
    return True
