"""Keys of states and plan files: derive them from secrets, seal and unseal values."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from trainctl.base.json import JsonObject, JsonValue
from trainctl.errors import StateError
from trainctl.model.single_flight import SingleFlight
from trainctl.model.specs.location import StateKey

if TYPE_CHECKING:  # slow to import
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SEALED = "sealed"
"""Member of a JSON object that has the sealed value."""
KEY_BYTES = 32
_NONCE_BYTES = 12
_SCRYPT = {"n": 2**15, "r": 8, "p": 3, "maxmem": 2**26, "dklen": KEY_BYTES}
"""32 MiB; https://cheatsheetseries.owasp.org/cheatsheets/Password_Storage_Cheat_Sheet.html."""


class EncryptionKeys:
    """The keys of one manifest. The first one seals, all unseal; thread-safe.

    ``read_secret`` returns the value of a secret, and is called for keys in use only.
    """

    def __init__(self, sources: Sequence[StateKey], read_secret: Callable[[str], str]) -> None:
        self._sources = {source.id: source for source in sources}
        self._read_secret = read_secret
        self._ciphers: SingleFlight[AESGCM] = SingleFlight(forget_errors=True)
        self.newest = sources[0].id
        """Id of the key that seals."""

    def seal(self, value: JsonValue, state: str, *context: JsonValue) -> dict[str, Any]:
        """Encrypt a value, which is unsealed with the same context only; StateError if it isn't JSON.

        ``state`` is the id of the state. It is stored in clear, and each state has keys of its own.
        """
        try:
            text = json.dumps(value, separators=(",", ":"), allow_nan=False)
        except (ValueError, TypeError, RecursionError) as error:
            raise StateError(
                f"cannot encrypt an entry of the state: {error}", "Nothing was written."
            ) from error
        nonce = os.urandom(_NONCE_BYTES)
        cipher = self._cipher(self.newest, state)
        data = cipher.encrypt(nonce, text.encode(), _bytes([state, self.newest, *context]))
        encoded = base64.b64encode(nonce + data).decode()
        return {"state": state, "key": self.newest, "data": encoded}

    def unseal(self, sealed: object, name: str, *context: JsonValue) -> Any:
        """Decrypt a value; StateError with ``name`` if the key is missing or another, or the value was changed."""
        members = sealed if isinstance(sealed, Mapping) else {}
        state, key = str(members.get("state")), str(members.get("key"))
        if key not in self._sources:
            raise missing_key_error(name, key)
        from cryptography.exceptions import InvalidTag

        cipher = self._cipher(key, state)
        try:
            data = base64.b64decode(str(members.get("data")), validate=True)
            nonce, rest = data[:_NONCE_BYTES], data[_NONCE_BYTES:]
            return json.loads(cipher.decrypt(nonce, rest, _bytes([state, key, *context])))
        except (InvalidTag, ValueError):
            raise StateError(
                f"cannot decrypt {name} with key {key!r}",
                f"Either secret {self._sources[key].secret!r} has another value than when this was encrypted, or this was changed or replaced since. Use the former value, or restore a backup.",
                code="decryption-failed",
            ) from None

    def _cipher(self, key: str, state: str) -> AESGCM:
        return self._ciphers.get((key, state), lambda: self._open(self._sources[key], state))

    def _open(self, source: StateKey, state: str) -> AESGCM:
        """Derive the key of a state; a secret that isn't 32 bytes in base64 is a passphrase."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        secret = self._read_secret(source.secret).strip().encode()
        salt = b"trainctl state " + _bytes(state)
        with suppress(ValueError):
            key = base64.b64decode(secret, validate=True)
            if len(key) == KEY_BYTES:
                return AESGCM(hmac.digest(key, salt, "sha256"))
        return AESGCM(hashlib.scrypt(secret, salt=salt, **_SCRYPT))


def _bytes(value: JsonValue) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def missing_key_error(name: str, key: str) -> StateError:
    """Return the error for a sealed value whose key isn't declared."""
    return StateError(
        f"{name} is encrypted with key {key!r}, which the manifest doesn't declare",
        "Declare it under state.encryption.keys, and check the manifest with trainctl validate. Nothing can be read without the key.",
        code="missing-state-key",
    )


def not_encrypted_error(name: str) -> StateError:
    """Return the error for a value that isn't sealed, though keys are declared."""
    return StateError(
        f"{name} is not encrypted, but the manifest declares its encryption",
        "To encrypt it from now on, run: trainctl state rekey\nIf it was encrypted before, another program replaced it: restore a backup instead.",
        code="state-not-encrypted",
    )


def require_plain(document: JsonObject, name: str) -> None:
    """Raise StateError if a JSON object is sealed, where no keys are declared."""
    sealed = document.get(SEALED)
    if isinstance(sealed, Mapping):
        raise missing_key_error(name, str(sealed.get("key")))
