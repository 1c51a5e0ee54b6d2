"""Keys that many requests have in common."""

from __future__ import annotations

from typing import Any, Dict, Generic, Mapping, Optional, Type, TypedDict, TypeVar

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


class Method(Generic[RequestT, ResponseT]):
    """A verb with the types of its request and answer; the answer of one that streams raw output is ``bytes``."""

    def __init__(
        self, name: str, request: Type[RequestT], answer: Type[ResponseT], summary: str
    ) -> None:
        self.name = name
        self.request = request
        self.answer = answer
        self.summary = summary


UntypedMethod = Method[Mapping[str, Any], Dict[str, Any]]


def untyped_method(name: str) -> UntypedMethod:
    """A verb of a program whose requests have no types here."""
    return UntypedMethod(name, dict, dict, "")


EmptyResponse = TypedDict("EmptyResponse", {})


class RootRequest(TypedDict):
    """``root``: the directory of the node program on the host."""

    root: str


class RunRequest(RootRequest):
    """``key``: the idempotency key of the run."""

    key: str


TierConfig = TypedDict("TierConfig", {"dir": Optional[str], "size": Optional[int]})
"""A cache of weights. ``dir`` null: ``ROOT/cache``. ``size``: in bytes, null: no limit but the disk."""


class NodeCacheRequest(RootRequest, total=False):
    """``cache``: of this node. ``shared``: of all nodes of the cluster. ``max_rate``: from the mirror, in bytes a second."""

    cache: TierConfig
    shared: TierConfig
    max_rate: int


class LineageRequest(NodeCacheRequest):
    """``lineage``: the id of the state in whose name references are kept."""

    lineage: str
