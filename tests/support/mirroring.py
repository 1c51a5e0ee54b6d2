"""One mirroring as a program, so that it can be killed, run twice, and measured: ROOT ENDPOINT [CHUNK_BYTES [ADDRESS]]."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from tests.support.mirrors import REFERENCE, mirror_at
from tests.support.peaks import peak
from trainctl.errors import TrainctlError
from trainctl.sources.hf import HubSource


def main(
    root: str,
    endpoint: str,
    chunk_bytes: str = str(16 * 2**20),
    address: str = REFERENCE.address,
) -> int:
    """Mirror hf://acme/model and print the listing's id, progress and what is waited for on the way."""
    source = HubSource(endpoint)

    def progress(done: int, total: int, files: int) -> None:
        print(json.dumps({"done": done, "total": total, "files": files}), flush=True)

    def waiting(text: str) -> None:
        print(json.dumps({"waiting": text}), flush=True)

    try:
        resolved = source.resolve("hf://acme/model", None, None)
        mirror = mirror_at(Path(root), int(chunk_bytes))
        reference = replace(REFERENCE, address=address)
        listing = mirror.mirror(resolved, source, reference, progress=progress, waiting=waiting)
    except TrainctlError as error:
        print(json.dumps({"error": type(error).__name__, "text": str(error)}), flush=True)
        return error.exit_code
    print(json.dumps({"listing": listing.id, "peak": peak()}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
