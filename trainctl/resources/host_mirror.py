"""A mirror in a directory of a host: what is asked of it is done there, by the mirror program."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import starmap
from typing import TYPE_CHECKING, Any, TypeVar

from trainctl.base.listing import Listing, ResolvedSource, listed_arriving
from trainctl.base.packed import AS_TUPLE, Arriving
from trainctl.base.protocol.rows import sent
from trainctl.base.protocol.verb import untyped
from trainctl.base.retry import Retry
from trainctl.errors import NodeForgot, TrainctlError
from trainctl.model.serving import Serving
from trainctl.remote.agent import NodeAgent
from trainctl.remote.answers import OnEvent
from trainctl.resources.agents import Agents
from trainctl.resources.mirror_program import mirror_archive
from trainctl.spi.sources import Credential, WeightSource
from trainctl.weights.mirror.afresh import Origin, Origins
from trainctl.weights.mirror.collect import Collected, Collecting
from trainctl.weights.mirror.fetch import Progress
from trainctl.weights.mirror.forms import (
    collected_from_json,
    file_rows,
    inventory_from_json,
    listed_file,
    resolved_to_json,
)
from trainctl.weights.mirror.known import Known, Row
from trainctl.weights.mirror.layout import Reference
from trainctl.weights.mirror.others import Waiting, nobody
from trainctl.weights.mirror.partial import Arrived
from trainctl.weights.mirror.place import Place
from trainctl.weights.mirror.port import Looked, Mirror, Own
from trainctl.weights.mirror.report import Inventory
from trainctl.weights.mirror.verify import Verified, finding_of, findings_arriving

if TYPE_CHECKING:
    from trainctl.resources.conversation import Told
    from trainctl.resources.desk import Desk, Register

T = TypeVar("T")

_LOOK_SECONDS = 60.0
_LONG_SECONDS = 600.0
"""For how long a host may be silent while it looks at very many files."""


class HostMirror:
    """See Mirror. ``find`` tells where it is when it is first asked for, which may ask the host; NodeError where that can't be told,
    NodeForgot where the host was forgotten.
    """

    on_a_host = True
    in_a_bucket = False
    endpoint = ""

    def __init__(
        self, agents: Agents, find: Callable[[], Place], retry: Retry, register: Register
    ) -> None:
        self._agents = agents
        self._find = find
        self._retry = retry
        self._register = register
        self._lock = threading.Lock()
        self._found: Place | None = None
        self._forgotten: NodeForgot | None = None
        self._listings: dict[str, Listing] = {}  # one that was there is what it was

    @property
    def place(self) -> Place:
        """Where it is."""
        with self._lock:
            if self._forgotten is not None:
                raise self._forgotten
            if self._found is None:
                try:
                    self._found = self._find()
                except NodeForgot as error:
                    self._forgotten = error
                    raise
            return self._found

    @property
    def path(self) -> str:
        """The directory, on the host."""
        return self.place.directory

    @property
    def url(self) -> str:
        """See Mirror."""
        return self.place.url

    @property
    def agent(self) -> NodeAgent:
        """The mirror program on the host, as it is installed there or as it travels."""
        return self._program(installs=False)

    def connect(self) -> None:
        """See Mirror. The host is logged in to, and the program started."""
        with contextlib.suppress(TrainctlError):
            if self.place.node.key:
                self.agent.open([untyped("look")])

    def look(self, sources: Sequence[ResolvedSource] = (), listings: Sequence[str] = (), lineage: str = "") -> Looked:  # fmt: skip
        """See Mirror."""
        asked = {"sources": [resolved_to_json(one) for one in sources], "listings": [*listings]}
        arriving: list[Arriving[Row]] = [Arriving(tuple, _as_row) for _ in sources]
        long = sum(len(one.files) for one in sources) > AS_TUPLE
        found = self._call(
            "look",
            asked,
            timeout=_LONG_SECONDS if long else _LOOK_SECONDS,
            following=sent(file_rows(one.files) for one in sources),
            on_event=lambda event: arriving[event["of"]].add(starmap(_as_row, event["rows"])),
        )
        known = zip(arriving, found["known"], found["arrived"], strict=True)
        return Looked(
            tuple(
                Known(rows.all(), listing, {place: Arrived(*some) for place, *some in arrived})
                for rows, listing, arrived in known
            ),
            frozenset(found["listings"]),
            Serving(**found["serving"]),
            found["free"],
            tuple(found["damaged"]),
            found["unusable"],
        )

    def mirror(
        self,
        resolved: ResolvedSource,
        source: WeightSource,
        reference: Reference,
        *,
        credential: Credential | None = None,
        progress: Progress | None = None,
        cancelled: threading.Event | None = None,
        waiting: Waiting = nobody,
    ) -> Listing:
        """See Mirror. The host fetches from the source; what there is no link for goes through this machine."""
        agent = self._program(installs=True)
        arriving = listed_arriving()
        with self._desk(
            agent, progress, cancelled, _adding(arriving, listed_file), waiting
        ) as desk:
            desk.offer(Origin(source, resolved, credential, self._retry))
            request = {"source": resolved_to_json(resolved), "reference": asdict(reference)}
            rows = sent([file_rows(resolved.files)])
            found = desk.call("ingest", self._request(request), rows)
        listing = Listing(arriving.all())
        self._listings[found["listing"]] = listing
        return listing

    def kept(self, wanted: ResolvedSource) -> Listing | None:
        """See Mirror."""
        return self._listed("kept", {"source": resolved_to_json(wanted)})

    def load_listing(self, listing_id: str) -> Listing | None:
        """See Mirror."""
        if listing_id not in self._listings:
            listing = self._listed("load_listing", {"listing": listing_id})
            if listing is None:
                return None
            self._listings[listing_id] = listing
        return self._listings[listing_id]

    def _listed(self, verb: str, request: Mapping[str, Any]) -> Listing | None:
        """A listing that the program tells; a long one by a stream of its own."""
        arriving = listed_arriving()
        found = self._call(
            verb, {**request, "most": AS_TUPLE}, on_event=_adding(arriving, listed_file)
        )
        if found.get("long"):
            more = {"payload": iter(()), "timeout": _LONG_SECONDS}
            found = self._call(verb, request, on_event=_adding(arriving, listed_file), **more)
        return None if found["listing"] is None else Listing(arriving.all())

    def inventory(self) -> Inventory:
        """See Mirror."""
        return inventory_from_json(self._call("inventory", {}, timeout=_LONG_SECONDS))

    def stored_bytes(self) -> int:
        """See Mirror."""
        return int(self._call("stored", {})["bytes"])

    def renew(self, lineage: str, address: str) -> None:
        """See Mirror."""
        request = self._request({"lineage": lineage, "address": address})
        self._program(installs=True).call(untyped("renew"), request, timeout=_LOOK_SECONDS)

    def drop_reference(self, lineage: str, address: str) -> bool:
        """See Mirror."""
        asked = {"lineage": lineage, "address": address}
        try:
            return bool(self._call("drop_reference", asked)["dropped"])
        except NodeForgot:  # with the host that had it
            return False

    def collect(self, asked: Collecting) -> Collected:
        """See Mirror."""
        request = {
            "dry_run": asked.dry_run,
            "grace_seconds": asked.grace_seconds,
            "unused_seconds": asked.unused_seconds,
        }
        with self._conversation(self.agent, lambda event: asked.tell(event["say"]), None) as desk:
            return collected_from_json(desk.call("collect", self._request(request)))

    def verify(self, origins: Origins | None, progress: Progress | None = None, own: Own = ()) -> Verified:  # fmt: skip
        """See Mirror."""
        arriving = findings_arriving()
        with self._desk(self.agent, progress, None, _adding(arriving, finding_of)) as desk:
            desk.origins = origins
            request = self._request({"repair": origins is not None, "own": [*own]})
            found = desk.call("verify", request)
        return Verified(found["blobs"], found["bytes"], arriving.all())

    def _program(self, *, installs: bool) -> NodeAgent:
        """What an apply asks installs it: the next one then waits for less."""
        place = self.place
        return self._agents.of_program(
            place.provider, place.node, mirror_archive(), installs=installs
        )

    def _desk(
        self,
        agent: NodeAgent,
        progress: Progress | None,
        stop: threading.Event | None,
        take: OnEvent,
        waiting: Waiting = nobody,
    ) -> Desk:
        def told(event: Mapping[str, Any]) -> None:
            if "rows" in event:
                take(event)
            elif "say" in event:
                self._retry.tell(event["say"])
            elif "waiting" in event:
                waiting(event["waiting"])
            elif progress is not None:
                progress(event["done"], event["total"], event["files"])

        return self._conversation(agent, told, stop)

    def _conversation(self, agent: NodeAgent, told: Told, stop: threading.Event | None) -> Desk:
        # Loaded now, as it brings a server along, and most calls just ask.
        from trainctl.resources.desk import Desk

        return Desk(agent, self._register, told, stop)

    def _call(self, verb: str, request: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        return self.agent.call(
            untyped(verb), self._request(request), **{"timeout": _LOOK_SECONDS, **more}
        )

    def _request(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return {"root": self.path, **request}


def _adding(arriving: Arriving[T], make: Callable[..., T]) -> OnEvent:
    """Takes rows that come before a result."""
    return lambda event: arriving.add(starmap(make, event["rows"]))


def _as_row(sha256: str | None, size: int, here: bool) -> Row:
    return sha256, size, here


_: type[Mirror] = HostMirror
