"""How a program ended, in words."""

from __future__ import annotations


def how_it_ended(code: int) -> str:
    """``exit code 3``, or ``signal 9`` for a negative one, as ``subprocess`` tells them."""
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
