"""The mirror program: what a mirror does where it is kept, on a host. DESIGN.md, "Mirror on a host", has its verbs.

Standard library, Python 3.8, like the program on nodes, whose protocol it speaks. What is answered from what lies there is here; what
takes long, or asks the caller back, is in ``work`` and loaded when it is asked for.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, Callable, Iterable, Mapping

from trainctl.errors import StorageError, TrainctlError
from trainctl.model.files import Listing
from trainctl.node.calls.protocol import emit, read_request, say
from trainctl.node.calls.rows import Rows, blocks, received
from trainctl.node.system.addresses import Serving
from trainctl.node.system.failure import Failure
from trainctl.weights.mirror.directory import DirectoryMirror
from trainctl.weights.mirror.disk import free_bytes
from trainctl.weights.mirror.forms import error_to_json, resolved_from_json
from trainctl.weights.mirror.known import kept, known, stored_bytes, unfinished_bytes

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
        "unfinished": unfinished_bytes(mirror),
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


def sources(mirror: DirectoryMirror, request: Request) -> Answer:
    """The rows of ``mirror list``."""
    return {"sources": [asdict(one) for one in mirror.sources()]}


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


_VERBS: Mapping[str, Callable[[DirectoryMirror, Request], Answer]] = {
    "load_listing": load_listing,
    "kept": kept_listing,
    "sources": sources,
    "stored": stored,
    "renew": renew,
    "drop_reference": drop_reference,
}


def main() -> int:
    """Do the verb that the last argument names; the exit code: 0, or 1 for an error that was reported."""
    try:
        say({"result": _done(sys.argv[-1], sys.stdin.buffer)})
    except TrainctlError as error:
        say({"error": error_to_json(error)})
    except Failure as error:
        say({"error": error.to_json()})
    except KeyError as error:
        say({"error": Failure("request", f"the request lacks {error}").to_json()})
    except OSError as error:
        failure = StorageError(f"the mirror: {error.strerror or error} ({error.filename})")
        say({"error": error_to_json(failure)})
    else:
        return 0
    return 1


def load(verb: str) -> None:
    """Import what does the verb."""
    if verb not in ("look", *_VERBS):
        import trainctl.weights.mirror.work  # noqa: F401


def _done(verb: str, stream: BinaryIO) -> Answer:
    request = read_request(stream)
    mirror = DirectoryMirror(Path(request["root"]))
    if verb == "look":
        return look(mirror, request, stream)
    if verb in _VERBS:
        return _VERBS[verb](mirror, request)
    from trainctl.weights.mirror.work import do  # brings HTTP along

    return do(verb, mirror, request, stream)


def tell(lists: Iterable[Rows]) -> None:
    """Say lists of rows, before the result."""
    for block in blocks(lists):
        emit(block)
