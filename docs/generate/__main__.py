"""``python -m docs.generate [--check]``: write the generated files, or report those that are stale."""

from __future__ import annotations

import argparse
import sys

from docs.generate import GENERATED, ROOT, stale_files


def main() -> int:
    """Return 1 if ``--check`` finds a stale file."""
    parser = argparse.ArgumentParser(prog="python -m docs.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if stale")
    if parser.parse_args().check:
        stale = stale_files()
        for name in stale:
            sys.stderr.write(f"{name}: stale; run python -m docs.generate\n")
        return 1 if stale else 0
    for name, text in GENERATED.items():
        (ROOT / name).write_text(text(), encoding="utf-8")
    return 0


sys.exit(main())
