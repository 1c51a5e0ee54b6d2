"""Keys that many requests have in common."""

from __future__ import annotations

from typing import Any, Dict, Generic, Mapping, Optional, Type, TypedDict, TypeVar

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class Verb(Generic[Request, Answer]):
    """A verb with the types of its request and answer; the answer of one that streams raw output is ``bytes``."""

    def __init__(
        self, name: str, request: Type[Request], answer: Type[Answer], summary: str
    ) -> None:
        self.name = name
        self.request = request
        self.answer = answer
        self.summary = summary


Untyped = Verb[Mapping[str, Any], Dict[str, Any]]


def untyped(name: str) -> Untyped:
    """A verb of a program whose requests have no types here."""
    return Untyped(name, dict, dict, "")


Nothing = TypedDict("Nothing", {})


class AtRoot(TypedDict):
    """``root``: the directory of the node program on the host."""

    root: str


class OfRun(AtRoot):
    """``key``: the idempotency key of the run."""

    key: str


Tier = TypedDict("Tier", {"dir": Optional[str], "size": Optional[int]})
"""A cache of weights. ``dir`` null: ``ROOT/cache``. ``size``: in bytes, null: no limit but the disk."""


class AtCache(AtRoot, total=False):
    """``cache``: of this node. ``shared``: of all nodes of the cluster. ``max_rate``: from the mirror, in bytes a second."""

    cache: Tier
    shared: Tier
    max_rate: int


class OfLineage(AtCache):
    """``lineage``: the id of the state in whose name references are kept."""

    lineage: str
