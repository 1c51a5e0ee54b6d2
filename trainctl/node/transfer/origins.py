"""The kinds of places that a node gets blobs from. Another kind is another class with the methods of ``Origin``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from trainctl.base.failure import Failure
from trainctl.base.pace import Pace
from trainctl.node.transfer.origin import DirectoryOrigin, Origin

if TYPE_CHECKING:
    from trainctl.node.transfer.links import Links


def open_origin(
    value: Any,
    pace: Optional[Pace] = None,
    *,
    evenly: bool = False,
    links: Optional[Links] = None,
) -> Origin:
    """The origin that a request describes; ``pace`` bounds what several of them take together.

    ``evenly``: it is asked to let nobody who wants the same get far ahead of the others. ``links`` are those to a bucket's objects.
    """
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "directory":
        return DirectoryOrigin(value.get("path"), pace)
    if kind == "http":
        from trainctl.node.transfer.http_origin import HttpOrigin  # only who needs it pays for it

        return HttpOrigin(value, pace, evenly=evenly)
    if kind == "bucket" and links is not None:
        from trainctl.node.transfer.http_origin import LinkedOrigin

        return LinkedOrigin(value, links, pace)
    raise Failure("request", f"this node program knows no origin of type {kind!r}")
