"""A mirror in a directory of a host; the node program there does all bulk work."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, cast

from trainctl.base.listing import Listing, ResolvedSource
from trainctl.base.protocol.method import Method, RequestT, ResponseT
from trainctl.base.protocol.mirrors import (
    MIRROR_GC,
    MIRROR_INGEST,
    MIRROR_INVENTORY,
    MIRROR_SIZE,
    MIRROR_SURVEY,
    MIRROR_VERIFY,
    MirrorGcRequest,
    MirrorIngestRequest,
    MirrorRequest,
    MirrorSurveyRequest,
    MirrorVerifyRequest,
    ReferenceDocument,
)  # fmt: skip
from trainctl.base.protocol.wire import encode_rows
from trainctl.base.retry import RetryPolicy
from trainctl.errors import SourceError, SourceUnreachable, TrainctlError, UnknownOnNode
from trainctl.model.delivery import ServingCapability
from trainctl.remote.agent import NodeAgent
from trainctl.remote.objects import HostDirectory, HostObjects
from trainctl.resources.agents import Agents, NodeCall
from trainctl.resources.mirror.source_urls import Register, SourceUrlProvider
from trainctl.store import keys, reader, serialization
from trainctl.store.ingestion.upstream import ProgressFn, Upstream
from trainctl.store.maintenance.gc import GcOptions, GcReport
from trainctl.store.maintenance.inventory import MirrorInventory
from trainctl.store.maintenance.survey import StoreSurvey
from trainctl.store.maintenance.verify import Finding, VerifyReport
from trainctl.store.references import Reference
from trainctl.store.store import MirrorStore
from trainctl.weights.mirrors import HostMirrorLocation

Notify = Callable[[str], None]
_SURVEY_SECONDS = 60.0
_LONG_SURVEY_SECONDS = 600.0
"""Timeout of the survey of more than `_MANY_FILES` files."""
_MANY_FILES = 10_000
_DOWNLOADS_ON_HOST = "The mirror's host downloads the source. If only this machine can reach it, use a local mirror: mirror: {url: file:///DIRECTORY}"


def _no_notify(text: str) -> None:
    """Ignore the notice."""


class HostStore(MirrorStore):
    """A store on a host. Every method may also raise NodeError.

    ``directory`` returns the mirror's location on first use. ``agent`` returns the host's agent;
    with True, one that may install the node program. ``register`` redacts signatures of URLs.
    """

    def __init__(
        self,
        directory: Callable[[], HostDirectory],
        agent: Callable[[bool], NodeAgent],
        retry: RetryPolicy,
        register: Register,
    ) -> None:
        super().__init__(HostObjects(directory, agent), retry)
        self._directory = directory
        self._agent = agent
        self._register = register
        self._serving: ServingCapability | None = None
        self._listings: dict[str, Listing] = {}

    @property
    def serving(self) -> ServingCapability:
        """How the host can serve weights to nodes, as of the last survey."""
        if self._serving is None:
            self.survey()
        assert self._serving is not None  # noqa: S101
        return self._serving

    def survey(
        self,
        sources: Sequence[ResolvedSource] = (),
        listings: Sequence[str] = (),
        lineage: str = "",
    ) -> StoreSurvey:
        """One call."""
        rows: list[list[Any]] = [[] for _ in sources]
        request: MirrorSurveyRequest = {
            "path": self._path(),
            "sources": [serialization.source_to_json(source) for source in sources],
            "listings": [*listings],
            "lineage": lineage,
        }
        is_long = sum(len(source.files) for source in sources) > _MANY_FILES
        response = self._agent(False).call(
            MIRROR_SURVEY,
            request,
            following=encode_rows(serialization.file_rows(source) for source in sources),
            on_event=lambda event: rows[event["of"]].extend(map(tuple, event["rows"])),
            timeout=_LONG_SURVEY_SECONDS if is_long else _SURVEY_SECONDS,
        )
        self._serving = ServingCapability(**response["serving"])
        return serialization.survey_from_json(response, rows)

    def ingest(
        self,
        resolved: ResolvedSource,
        upstream: Upstream,
        reference: Reference,
        *,
        progress: ProgressFn | None = None,
        cancelled: threading.Event | None = None,
        waiting: Notify = _no_notify,
    ) -> Listing:
        """The host downloads; the relay serves other files."""
        agent = self._agent(True)
        request: MirrorIngestRequest = {
            "path": self._path(),
            "source": serialization.source_to_json(resolved),
            "reference": cast("ReferenceDocument", vars(reference)),
        }

        def on_event(event: Mapping[str, Any]) -> None:
            if "waiting" in event:
                waiting(event["waiting"])
            elif "log" in event:
                self.retry.notify(event["log"])
            elif progress is not None:
                progress(event["done"], event["total"], event["files"])

        def respond(request: Mapping[str, Any]) -> dict[str, Any]:
            return urls.response(request)

        following = encode_rows([serialization.file_rows(resolved)])
        with (
            NodeCall(agent, respond, on_event, cancelled) as node_call,
            SourceUrlProvider(
                resolved, upstream, agent, self._register, self.retry, node_call.ended
            ) as urls,
        ):
            try:
                listing_id = node_call.call(MIRROR_INGEST, request, following)["listing"]
            except TrainctlError as error:
                raise _explain_error(error, urls) from None
        listing = self.load_listing(listing_id)
        if listing is None:  # deleted meanwhile
            raise reader.missing_error(self.objects, keys.listing(listing_id))
        return listing

    def load_listing(self, listing_id: str) -> Listing | None:
        """Read once, as listings are immutable."""
        if listing_id not in self._listings:
            listing = super().load_listing(listing_id)
            if listing is None:
                return None
            self._listings[listing_id] = listing
        return self._listings[listing_id]

    def inventory(self) -> MirrorInventory:
        return serialization.inventory_from_json(
            self._call(MIRROR_INVENTORY, MirrorRequest(path=self._path()))
        )

    def stored_bytes(self) -> int:
        return self._call(MIRROR_SIZE, MirrorRequest(path=self._path()))["bytes"]

    def drop_reference(self, lineage: str, address: str) -> bool:
        try:
            return super().drop_reference(lineage, address)
        except UnknownOnNode:  # the host was forgotten
            return False

    def gc(self, options: GcOptions, notify: Notify = _no_notify) -> GcReport:
        request: MirrorGcRequest = {
            "path": self._path(),
            "dry_run": options.dry_run,
            "unused_seconds": options.unused_seconds,
        }
        return serialization.gc_from_json(self._call(MIRROR_GC, request, notify=notify))

    def verify(
        self, repair: bool = False, progress: ProgressFn | None = None, notify: Notify = _no_notify
    ) -> VerifyReport:
        findings: list[Finding] = []
        request: MirrorVerifyRequest = {"path": self._path(), "repair": repair}
        response = self._call(
            MIRROR_VERIFY,
            request,
            progress,
            lambda row: findings.append(serialization.finding_from_row(row)),
            notify,
        )
        return VerifyReport(response["blobs"], response["bytes"], tuple(findings))

    def _path(self) -> str:
        return self._directory().path

    def _call(
        self,
        method: Method[RequestT, ResponseT],
        request: RequestT,
        progress: ProgressFn | None = None,
        take: Callable[[Any], None] = lambda row: None,
        notify: Notify = _no_notify,
    ) -> ResponseT:
        def on_event(event: Mapping[str, Any]) -> None:
            if "rows" in event:
                for row in event["rows"]:
                    take(row)
            elif "log" in event:
                notify(event["log"])
            elif progress is not None:
                progress(event["done"], event["total"], event["files"])

        return self._agent(False).call(method, request, on_event=on_event)


def _explain_error(error: TrainctlError, urls: SourceUrlProvider) -> TrainctlError:
    """Return the relay's error, if any; add a hint to others."""
    if urls.relay_error is not None and isinstance(error, SourceError):
        return urls.relay_error
    if isinstance(error, SourceUnreachable) and error.summary.startswith("node "):
        error.detail = f"{error.detail} {_DOWNLOADS_ON_HOST}".strip()
    return error


class HostMirror:
    """A mirror in a directory of a host; see Mirror.

    ``find`` returns its location on first use, possibly by querying the host: it may raise
    NodeError, or UnknownOnNode if the host was forgotten.
    """

    on_a_host = True
    in_a_bucket = False
    endpoint = ""

    def __init__(
        self,
        agents: Agents,
        find: Callable[[], HostMirrorLocation],
        retry: RetryPolicy,
        register: Register,
    ) -> None:
        self._agents = agents
        self._find = find
        self._retry = retry
        self._register = register
        self._lock = threading.Lock()
        self._location: HostMirrorLocation | None = None
        self._forgotten: UnknownOnNode | None = None

    @property
    def place(self) -> HostMirrorLocation:
        with self._lock:
            if self._forgotten is not None:
                raise self._forgotten
            if self._location is None:
                try:
                    self._location = self._find()
                except UnknownOnNode as error:
                    self._forgotten = error
                    raise
            return self._location

    @property
    def path(self) -> str:
        return self.place.directory

    @property
    def url(self) -> str:
        return self.place.url

    @cached_property
    def store(self) -> HostStore:
        return HostStore(self._directory, self.agent, self._retry, self._register)

    @property
    def serving(self) -> ServingCapability:
        return self.store.serving

    def _directory(self) -> HostDirectory:
        return HostDirectory(self.url, self.path)

    def connect(self) -> None:
        """Log in to the host and start the node program."""
        with contextlib.suppress(TrainctlError):
            if self.place.node.key:
                self.agent(False).open()

    def agent(self, installs: bool) -> NodeAgent:
        """Return the host's agent, which may install the node program."""
        place = self.place
        if installs and place.node.key:
            return self._agents.of(place.provider, place.node)
        return self._agents.ephemeral_agent(place.provider, place.node)
