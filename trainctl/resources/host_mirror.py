"""A mirror in a directory of a host: the node program there does all bulk work, with URLs of sources from here."""

from __future__ import annotations

import contextlib
import hmac
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import ceil
from secrets import token_urlsafe
from typing import Any, cast

from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.listing import Listing, ResolvedSource, SourceFile, file_index
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
    file_rows,
    source_to_json,
)  # fmt: skip
from trainctl.base.protocol.wire import encode_rows
from trainctl.base.retry import RetryPolicy
from trainctl.errors import (
    SourceError,
    SourceMismatch,
    SourceNotFound,
    SourceUnavailable,
    SourceUnreachable,
    TrainctlError,
    UnknownOnNode,
)
from trainctl.model.delivery import ServingCapability
from trainctl.remote.agent import NodeAgent
from trainctl.remote.objects import HostDirectory, HostObjects
from trainctl.resources.agents import Agents, NodeCall
from trainctl.store import keys, reader
from trainctl.store.file_transfer import ProgressFn, Upstream
from trainctl.store.gc import GcOptions, GcReport, RemovedListing
from trainctl.store.references import Reference, StoredReference
from trainctl.store.store import MirrorStore
from trainctl.store.survey import InventoryRow, MirrorInventory, SourceSurvey, StoreSurvey
from trainctl.store.verify import Finding, FindingOutcome, VerifyReport
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
            "sources": [source_to_json(source) for source in sources],
            "listings": [*listings],
            "lineage": lineage,
        }
        is_long = sum(len(source.files) for source in sources) > _MANY_FILES
        response = self._agent(False).call(
            MIRROR_SURVEY,
            request,
            following=encode_rows(file_rows(source) for source in sources),
            on_event=lambda event: rows[event["of"]].extend(map(tuple, event["rows"])),
            timeout=_LONG_SURVEY_SECONDS if is_long else _SURVEY_SECONDS,
        )
        self._serving = ServingCapability(**response["serving"])
        pairs = zip(rows, response["sources"], strict=True)
        surveys = tuple(SourceSurvey(tuple(files), *survey) for files, survey in pairs)
        complete, free, damaged, unusable = response["store"]
        return StoreSurvey(surveys, frozenset(complete), free, tuple(damaged), unusable)

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
            "source": source_to_json(resolved),
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

        following = encode_rows([file_rows(resolved)])
        with (
            NodeCall(agent, respond, on_event, cancelled) as node_call,
            SourceUrlProvider(
                resolved, upstream, agent, self._register, self.retry, node_call.ended
            ) as urls,
        ):
            try:
                listing_id = node_call.call(MIRROR_INGEST, request, following)["listing"]
            except TrainctlError as error:
                if urls.relay_error is not None and isinstance(error, SourceError):
                    raise urls.relay_error from None
                if isinstance(error, SourceUnreachable) and error.summary.startswith("node "):
                    error.detail = f"{error.detail} {_DOWNLOADS_ON_HOST}".strip()
                raise
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
        response = self._call(MIRROR_INVENTORY, MirrorRequest(path=self._path()))
        rows = (InventoryRow(*row) for row in response["rows"])
        return MirrorInventory(
            tuple(row._replace(projects=(*row.projects,), users=(*row.users,)) for row in rows),
            response["unfinished"],
            response["unreferenced"],
            tuple(response["damaged"]),
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
        report = self._call(MIRROR_GC, request, notify=notify)["report"]
        dry_run, size, blobs, listings, *references = report
        removed = tuple(RemovedListing(*row) for row in listings)
        stored = [tuple(StoredReference(*row) for row in rows) for rows in references]
        return GcReport(dry_run, size, blobs, removed, *stored)

    def verify(
        self, repair: bool = False, progress: ProgressFn | None = None, notify: Notify = _no_notify
    ) -> VerifyReport:
        findings: list[Finding] = []

        def add(row: Sequence[Any]) -> None:
            key, problem, size, sources, outcome, detail = row
            end = FindingOutcome(outcome)
            findings.append(Finding(key, problem, size, tuple(sources), end, detail))

        request: MirrorVerifyRequest = {"path": self._path(), "repair": repair}
        response = self._call(MIRROR_VERIFY, request, progress, add, notify)
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


class HostMirror:
    """A mirror in a directory of a host; see Mirror.

    ``find`` returns its location on first use, possibly by querying the host: it may raise
    NodeError, or UnknownOnNode if the host was forgotten.
    """

    on_a_host = True
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
        ephemeral = not (installs and place.node.key)
        return self._agents.of(place.provider, place.node, ephemeral=ephemeral)


_AT_ONCE = 8
_PATH = compile_lazily(r"/([0-9]{1,12})")
_RANGE = compile_lazily(r"bytes=(\d+)-")
_TIMEOUT_SECONDS = 60.0
_STATUS: Mapping[type[TrainctlError], int] = {SourceNotFound: 404, SourceMismatch: 412}
OpenFile = Callable[[SourceFile, int], AbstractContextManager[Iterator[bytes]]]
"""Open a file at an offset; see Upstream."""


class Relay(ThreadingHTTPServer):
    """Serves the files of a source on loopback to clients with the token; a context manager."""

    daemon_threads = True

    def __init__(self, token: str, files: Sequence[SourceFile], open_file: OpenFile) -> None:
        super().__init__(("127.0.0.1", 0), _RelayRequestHandler)
        self.token = token
        self.files = files
        self.open_file = open_file
        self.error: TrainctlError | None = None
        """The last error that retries can't fix; the host gets only its status code."""
        self.port = int(self.server_address[1])
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Relay:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()

    def find(self, path: str) -> SourceFile | None:
        """Return the file of a path, ``/NUMBER``."""
        match = _PATH.fullmatch(path)
        number = int(match[1]) if match else len(self.files)
        return self.files[number] if number < len(self.files) else None

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore hosts that disconnect."""


class _RelayRequestHandler(BaseHTTPRequestHandler):
    server: Relay
    protocol_version = "HTTP/1.1"
    timeout = _TIMEOUT_SECONDS
    disable_nagle_algorithm = True  # otherwise small files wait 40 ms for a TCP acknowledgement

    def log_message(self, *args: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        """Send a file from the requested offset on."""
        authorization = self.headers.get("Authorization") or ""
        file = self.server.find(self.path)
        if not hmac.compare_digest(authorization.encode(), f"Bearer {self.server.token}".encode()):
            self._send_empty(403)
        elif file is None:
            self._send_empty(404)
        else:
            match = _RANGE.fullmatch(self.headers.get("Range") or "")
            self._send(file, int(match[1]) if match else 0)

    def _send(self, file: SourceFile, offset: int) -> None:
        try:
            with self.server.open_file(file, offset) as buffers:
                self._start(file, offset)
                for buffer in buffers:
                    self.wfile.write(buffer)
        except TrainctlError as error:
            if not error.retryable:
                self.server.error = error
            self.close_connection = True
            if not self._has_started:
                seconds = error.retry_after if isinstance(error, SourceUnavailable) else None
                headers = {"Retry-After": str(ceil(seconds))} if seconds else {}
                self._send_empty(503 if error.retryable else _STATUS.get(type(error), 403), headers)

    _has_started = False

    def _start(self, file: SourceFile, offset: int) -> None:
        self._has_started = True
        self.send_response(206 if offset else 200)
        self.send_header("Content-Length", str(file.size - offset))
        if offset:
            self.send_header("Content-Range", f"bytes {offset}-{file.size - 1}/{file.size}")
        self.end_headers()

    def _send_empty(self, status: int, headers: Mapping[str, str] = {}) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()


Register = Callable[[str], str]
"""Redact a value in all output, and return it."""


class SourceUrlProvider:
    """Returns URLs of the files of one source to a host; a context manager.

    ``register`` redacts signatures; setting ``ended`` ends retries.
    """

    def __init__(
        self,
        resolved: ResolvedSource,
        upstream: Upstream,
        agent: NodeAgent,
        register: Register,
        retry: RetryPolicy,
        ended: threading.Event,
    ) -> None:
        self._resolved = resolved
        self._upstream = upstream
        self._agent = agent
        self._register = register
        self._retry = retry
        self._ended = ended
        self._lock = threading.Lock()
        self._relay: tuple[Relay, int] | None = None
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="presigned_url")
        self._stack = ExitStack()

    def __enter__(self) -> SourceUrlProvider:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._stack.close()

    @property
    def relay_error(self) -> TrainctlError | None:
        """The error that kept the relay from sending a file."""
        return self._relay[0].error if self._relay else None

    def response(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the URLs of the requested paths; SourceError for any other request."""
        if request.get("method") != "links":
            raise SourceError(f"unexpected request from a host: {request.get('method')!r}")
        files, paths = self._resolved.files, request["paths"]
        numbers = [file_index(files, path) for path in paths]
        for number, path in zip(numbers, paths, strict=True):
            if number == len(files) or files[number].path != path:
                name = self._resolved.source
                raise SourceError(f"{name} has no file {path!r} that a host may read")
        return {"links": list(self._pool.map(self._file_url, numbers))}

    def _file_url(self, number: int) -> dict[str, Any]:
        file = self._resolved.files[number]
        presigned_url = getattr(self._upstream, "presigned_url", None)
        url = self._retry.run(lambda: presigned_url(file), self._ended) if presigned_url else None
        if url is not None:
            query = url.partition("?")[2]
            if query:
                self._register(query)
            return {"url": url}
        with self._lock:
            if self._relay is None:
                token = self._register(token_urlsafe(32))
                relay = Relay(token, self._resolved.files, self._upstream.open)
                self._stack.enter_context(relay)
                self._relay = relay, self._stack.enter_context(self._agent.expose(relay.port))
            relay, port = self._relay
        return {"url": f"http://127.0.0.1:{port}/{number}", "token": relay.token, "relayed": True}
