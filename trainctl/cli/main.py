"""Entry point of the program."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

from trainctl import __version__

_VERSION_FLAGS = (["version"], ["--version"], ["-version"])
_GC_THRESHOLDS = (1_000_000, 50, 50)
"""Thresholds of the garbage collector: a command builds large values without cycles.

The defaults cost a third of the CPU time of planning thousands of resources.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; ``argv`` excludes the program's name."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments in _VERSION_FLAGS:  # answered without loading a parser
        try:
            print(f"trainctl {__version__}", flush=True)  # noqa: T201
        except OSError:  # stdout is closed, which the parser reports
            pass
        else:
            return 0
    gc.set_threshold(*_GC_THRESHOLDS)
    os.umask(0o077)  # files are private; shared caches set modes explicitly
    try:
        if instruction := os.environ.get("_TRAINCTL_COMPLETE"):
            from trainctl.cli.completion import complete

            return complete(instruction)
        from trainctl.cli.invoke import invoke

        return invoke(arguments)
    except KeyboardInterrupt:  # while importing
        return 130
    finally:
        gc.freeze()  # skip garbage collection at interpreter exit
