"""Runs trainctl as it is, but for its patience: silence ends after ``SILENCE`` seconds (30), and what it would wait is written down.

    python -m tests.support.hasty plan

Each wait before another try becomes a line, in seconds, of the file that ``WAITS`` names.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from tests.support.hurrying import time_passes
from trainctl.base.retry import Retry
from trainctl.sources.hf import HubSource
from trainctl.sources.https import HttpsSource


def _note(cancelled: threading.Event, seconds: float) -> None:
    if "WAITS" in os.environ:
        with Path(os.environ["WAITS"]).open("a") as waits:
            waits.write(f"{seconds}\n")
    time_passes()


def _hurry() -> None:
    """Other defaults for the two values that decide how long trainctl waits, and for how."""
    attempts, base, longest, patience, _, *others = Retry.__init__.__defaults__ or ()
    Retry.__init__.__defaults__ = (attempts, base, longest, patience, _note, *others)
    silence = float(os.environ.get("SILENCE", 30))
    HubSource.__init__.__defaults__ = (None, silence)
    HttpsSource.__init__.__defaults__ = (silence,)


if __name__ == "__main__":
    from trainctl.cli.main import main

    _hurry()
    sys.exit(main(sys.argv[1:]))
