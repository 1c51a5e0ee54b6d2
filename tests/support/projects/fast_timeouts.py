"""Runs trainctl as it is, but without patience: silence ends after ``SILENCE`` seconds (30), and no retry waits.

python -m tests.support.projects.fast_timeouts plan
"""

from __future__ import annotations

import os
import sys
import threading

from tests.support.projects.instant_waits import skip_waits
from trainctl.base.retry import RetryPolicy
from trainctl.sources.hf import HubSource
from trainctl.sources.https import HttpsSource


def _skip_wait(cancelled: threading.Event, seconds: float) -> None:
    skip_waits()


if __name__ == "__main__":
    from trainctl.cli.main import main

    # other defaults for the two values that decide how long trainctl waits
    attempts, base, longest, patience, _, *others = RetryPolicy.__init__.__defaults__ or ()
    RetryPolicy.__init__.__defaults__ = (attempts, base, longest, patience, _skip_wait, *others)
    silence = float(os.environ.get("SILENCE", 30))
    HubSource.__init__.__defaults__ = (None, silence)
    HttpsSource.__init__.__defaults__ = (silence,)
    sys.exit(main(sys.argv[1:]))
