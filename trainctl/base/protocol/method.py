"""Methods of the node program, and keys that many requests share."""

from __future__ import annotations

import sys
from typing import Any, Dict, Generic, Mapping, Optional, Type, TypeVar

from trainctl.base.lazy_typed_dict import TypedDict

if sys.version_info >= (3, 11):
    from typing import NotRequired as NotRequired
else:
    NotRequired = Optional  # in annotations, which nothing evaluates there

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


class Method(Generic[RequestT, ResponseT]):
    """A method with the types of its request and response; ``bytes`` for raw output."""

    def __init__(self, name: str, request: Type[RequestT], answer: Type[ResponseT]) -> None:
        self.name = name
        self.request = request
        self.answer = answer


UntypedMethod = Method[Mapping[str, Any], Dict[str, Any]]


def untyped_method(name: str) -> UntypedMethod:
    """Return a method with an untyped request and response."""
    return UntypedMethod(name, dict, dict)


EmptyResponse = TypedDict("EmptyResponse", {})


class RootRequest(TypedDict):
    """``root``: the node program's directory on the host."""

    root: str


class RunRequest(RootRequest):
    """``key``: the idempotency key of the run."""

    key: str


TierConfig = TypedDict("TierConfig", {"dir": Optional[str], "size": Optional[int]})
"""A cache of weights. ``dir`` null: ``ROOT/cache``. ``size`` in bytes, null: limited by the disk only."""


class NodeCacheRequest(RootRequest, total=False):
    """``cache``: the node's. ``shared``: the cluster's. ``max_rate``: limit of reads from the mirror, in bytes a second."""

    cache: TierConfig
    shared: TierConfig
    max_rate: int


class LineageRequest(NodeCacheRequest):
    """``lineage``: the state's id, which owns the references."""

    lineage: str
