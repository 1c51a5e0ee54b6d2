"""The verbs of the mirror program that are answered from what lies here."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, BinaryIO, Callable, Iterable, Mapping

from trainctl.base.addresses import Serving
from trainctl.base.listing import Listing
from trainctl.base.protocol.lines import emit
from trainctl.base.protocol.rows import Rows, blocks, received
from trainctl.weights.mirror.directory import DirectoryMirror
from trainctl.weights.mirror.disk import free_bytes
from trainctl.weights.mirror.forms import resolved_from_json
from trainctl.weights.mirror.known import kept, known, stored_bytes

Request = Mapping[str, Any]
Answer = Mapping[str, Any]


def look(mirror: DirectoryMirror, request: Request, stream: BinaryIO) -> Answer:
    """What is known of sources, which of some listings are here, and how this host would serve others.

    The rows of the sources' files follow the request, and those of what is known of them come before the result.
    """
    sources = [
        resolved_from_json(one, rows) for one, rows in zip(request["sources"], received(stream))
    ]
    found, damaged = known(mirror, sources)
    tell(one.files for one in found)
    return {
        "known": [one.listing for one in found],
        "arrived": [[(place, *some) for place, some in one.arrived.items()] for one in found],
        "listings": [one for one in request["listings"] if mirror.has_listing(one)],
        "serving": Serving.here().to_json(),
        "free": free_bytes(mirror.root),
        "damaged": damaged,
        "unusable": mirror.unusable,
    }


def load_listing(mirror: DirectoryMirror, request: Request) -> Answer:
    """A listing; see ``listed``."""
    return listed(mirror.load_listing(request["listing"]), request)


def kept_listing(mirror: DirectoryMirror, request: Request) -> Answer:
    """The listing that a source at a pin turned out to be, if all of it is here; see ``listed``."""
    return listed(kept(mirror, resolved_from_json(request["source"], ())), request)


def listed(listing: Listing | None, request: Request) -> Answer:
    """Its id, or null, and its rows before that; of more files than the request wants at ``most`` no rows, which is ``long``."""
    most = request.get("most")
    if listing is None:
        return {"listing": None}
    if most is not None and len(listing.files) > most:
        return {"listing": listing.id, "long": True}
    tell([listing.rows()])
    return {"listing": listing.id}


def inventory(mirror: DirectoryMirror, request: Request) -> Answer:
    """What ``mirror list`` tells."""
    from trainctl.weights.mirror.inventory import inventory  # brings collecting along

    return asdict(inventory(mirror))


def stored(mirror: DirectoryMirror, request: Request) -> Answer:
    """The bytes of all content."""
    return {"bytes": stored_bytes(mirror)}


def renew(mirror: DirectoryMirror, request: Request) -> Answer:
    """Resources' sources were used just now."""
    mirror.renew(request["lineage"], request["address"])
    return {}


def drop_reference(mirror: DirectoryMirror, request: Request) -> Answer:
    """A resource does not want its source any more."""
    return {"dropped": mirror.drop_reference(request["lineage"], request["address"])}


VERBS: Mapping[str, Callable[[DirectoryMirror, Request], Answer]] = {
    "load_listing": load_listing,
    "kept": kept_listing,
    "inventory": inventory,
    "stored": stored,
    "renew": renew,
    "drop_reference": drop_reference,
}


def tell(lists: Iterable[Rows]) -> None:
    """Say lists of rows, before the result."""
    for block in blocks(lists):
        emit(block)
