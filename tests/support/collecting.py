"""Collections and writers of one mirror as a program, to be killed and to be run beside each other.

python -m tests.support.collecting ROOT gc LETHAL [TIMES]
python -m tests.support.collecting ROOT write LINEAGE TIMES
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from tests.support.dying import mortal
from tests.support.mirrors import MemorySource, contents, mirror_at
from trainctl.errors import Busy
from trainctl.weights.mirror import DirectoryMirror, Reference
from trainctl.weights.mirror.collect import Collecting, collect

CHUNK_BYTES = 1024
CONTENTS = [random.Random(number).randbytes(size) for number, size in enumerate((0, 10, 900, 5000))]


def files(version: int) -> dict[str, bytes]:
    """What a source has at a version; versions share most of it."""
    chosen = {f"{number}": CONTENTS[(number + version) % len(CONTENTS)] for number in range(3)}
    return {**chosen, "version": str(version).encode()}


def write(mirror: DirectoryMirror, lineage: str, version: int) -> str:
    """Mirror a version for a lineage; the listing's id."""
    source = MemorySource(files(version), piece=300)
    resolved = source.resolve("memory://model", str(version), None)
    reference = Reference(lineage, "weights.model", "ann@laptop", lineage)
    return mirror.mirror(resolved, source, reference).id


def gc(mirror: DirectoryMirror) -> None:
    """Collect without a wait; another collection is no reason to stop."""
    try:
        collect(mirror, Collecting(grace_seconds=0))
    except Busy:
        return


def main(root: str, what: str, *arguments: str) -> int:
    """Do it; writers look after each time whether all that they mirrored is whole, and drop it again."""
    mirror = mirror_at(Path(root), CHUNK_BYTES)
    if what == "gc":
        mortal(int(arguments[0]))
        for _ in range(int(arguments[1]) if len(arguments) > 1 else 1):
            gc(mirror)
        return 0
    lineage, times = arguments
    for turn in range(int(times)):
        version = turn % 4
        listing = write(mirror, lineage, version)
        assert contents(mirror, listing) == files(version)
        if turn % 3 == 0:
            mirror.drop_reference(lineage, "weights.model")
    return 0


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    sys.exit(main(*sys.argv[1:]))
