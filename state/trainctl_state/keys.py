"""Which names an object may have."""

from __future__ import annotations

import re

from trainctl.errors import StateError

_PART = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}"
_KEY = re.compile(rf"{_PART}(?:/{_PART})*")


def is_key(text: str) -> bool:
    """Whether this is a name: parts of ``[A-Za-z0-9._-]`` that don't begin with a dot, separated by ``/``."""
    return _KEY.fullmatch(text) is not None


def check_key(key: str) -> str:
    """The key itself. StateError if it isn't one, so that no name leaves its store."""
    if not is_key(key):
        raise StateError(
            f"{key!r} is not the name of an object",
            "Names are made of letters, digits, '.', '_' and '-', in parts separated by '/', none of which begins with a dot.",
        )
    return key
