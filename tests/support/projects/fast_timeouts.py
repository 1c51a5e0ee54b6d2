"""Runs trainctl as it is, but for its patience: silence ends after ``SILENCE`` seconds (30), and what it would wait is written down.

    python -m tests.support.projects.fast_timeouts plan

Each wait before another try becomes a line, in seconds, of the file that ``WAITS`` names.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from tests.support.projects.instant_waits import skip_waits
from trainctl.base.retry import RetryPolicy
from trainctl.sources.hf import HubSource
from trainctl.sources.https import HttpsSource


def _record_wait(cancelled: threading.Event, seconds: float) -> None:
    if "WAITS" in os.environ:
        with Path(os.environ["WAITS"]).open("a") as waits:
            waits.write(f"{seconds}\n")
    skip_waits()


def _shorten_timeouts() -> None:
    """Other defaults for the two values that decide how long trainctl waits, and for how."""
    attempts, base, longest, patience, _, *others = RetryPolicy.__init__.__defaults__ or ()
    RetryPolicy.__init__.__defaults__ = (attempts, base, longest, patience, _record_wait, *others)
    silence = float(os.environ.get("SILENCE", 30))
    HubSource.__init__.__defaults__ = (None, silence)
    HttpsSource.__init__.__defaults__ = (silence,)


if __name__ == "__main__":
    from trainctl.cli.main import main

    _shorten_timeouts()
    sys.exit(main(sys.argv[1:]))
