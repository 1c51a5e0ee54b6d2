"""Puts one long object as a program of its own, to be killed meanwhile.

    python -m tests.support.long_objects URL ENVIRON CREDENTIAL KEY FILE

ENVIRON is a JSON object of the variables that say where the bucket is. Prints how much memory it took.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.support.peaks import peak
from trainctl.objects.opening import opened
from trainctl.objects.place import place_of
from trainctl.spi.sources import Credential


def main(url: str, environ: str, credential: str, key: str, file: str) -> None:
    """See the module."""
    found = json.loads(environ)
    place = place_of(url, None, found)
    opened(place, Credential(credential, "the test"), found).put(key, Path(file))
    print(peak())


if __name__ == "__main__":
    main(*sys.argv[1:])
