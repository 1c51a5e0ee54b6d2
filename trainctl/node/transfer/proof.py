"""Knowing a server before it is told anything: what only who has its token can answer, and at one address only."""

from __future__ import annotations

import hmac
import re
import secrets
from typing import Optional

_PATH = re.compile(r"/proof/([0-9a-f]{32})")


class Question:
    """One that nobody has asked before."""

    def __init__(self) -> None:
        self._nonce = secrets.token_hex(16)
        self.path = f"/proof/{self._nonce}"

    def answered(self, text: bytes, token: str, address: str) -> bool:
        """Whether that is what the server with the token says where it is asked at the address."""
        return hmac.compare_digest(text, _proof(token, self._nonce, address))


def answer(path: str, token: str, address: str) -> Optional[bytes]:
    """What the server says that was asked so at the address; None for any other path."""
    asked = _PATH.fullmatch(path)
    return _proof(token, asked[1], address) if asked else None


def _proof(token: str, nonce: str, address: str) -> bytes:
    """Over the address too, so that nobody who listens at another one can have the answer from the server."""
    found = hmac.new(token.encode(), f"proof {nonce} {address}".encode(), "sha256")
    return found.hexdigest().encode()
