"""Small JSON documents with a digest of themselves, so that a flipped bit is noticed."""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, Mapping, Optional, TypeVar

from trainctl.base.json import canonical, hex_digest
from trainctl.base.objects import ObjectStore
from trainctl.errors import StorageError

DAMAGED = "mirror-damaged"
"""The code of errors about objects that aren't what was written."""
T = TypeVar("T")


def encode(document: Mapping[str, Any]) -> bytes:
    """The stored form of a document."""
    return canonical({**document, "check": hex_digest(document)})


def decode(data: bytes) -> Dict[str, Any]:
    """Read a stored document; ValueError if it isn't what was written."""
    try:
        document = json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError("it isn't a JSON object")  # noqa: TRY004  like any other damage
    if document.pop("check", None) != hex_digest(document):
        raise ValueError("its digest doesn't match its content")
    return document


def load(objects: ObjectStore, key: str) -> Optional[Dict[str, Any]]:
    """Read an object that ``encode`` made; None if there is none, StorageError if it is damaged."""
    data = objects.get(key)
    if data is None:
        return None
    try:
        return decode(data)
    except ValueError as error:
        raise damaged(objects, key, str(error)) from None


def damaged(objects: ObjectStore, key: str, reason: str) -> StorageError:
    """The error for an object of the store that isn't what was written."""
    return StorageError(
        f"{objects.url}/{key} is damaged: {reason}",
        "Run trainctl mirror verify --repair, then apply again to fetch what is missing.",
        code=DAMAGED,
    )


def unless_damaged(read: Callable[[], Optional[T]]) -> Optional[T]:
    """What ``read`` returns; None if it finds something damaged."""
    try:
        return read()
    except StorageError as error:
        if error.code != DAMAGED:
            raise
        return None
