"""What opens a server, for as long as it lives."""

from __future__ import annotations

import secrets


def new_token() -> str:
    """One that nobody can guess."""
    return secrets.token_urlsafe(32)
