"""What a process of tests shares among them, and removes at its end: servers and directories."""

from __future__ import annotations

import atexit
from contextlib import ExitStack

AT_END = ExitStack()
"""Closed when the session's last test has ended, before the check for what tests leave behind; else when the process ends."""

atexit.register(AT_END.close)
