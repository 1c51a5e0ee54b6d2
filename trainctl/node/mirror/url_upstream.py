"""A source as this host reads it: by URLs that the caller signs some at a time, before they are needed, and without any credential."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from typing import (  # fmt: skip
    Any,
    ContextManager,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

from trainctl.base.filesystem.safe_path import display_path
from trainctl.base.listing import ResolvedSource, SourceFile, file_index
from trainctl.base.protocol.callbacks import CallbackClient, CallerGone, PendingRequest
from trainctl.base.protocol.wire import error_from_json
from trainctl.errors import SourceDenied, SourceError, SourceMismatch, TrainctlError, UserInterrupt
from trainctl.plugin_api.sources import ByteRange, Fill
from trainctl.sources.client import SourceClient, SourceResponse
from trainctl.sources.headers import (
    check_not_replaced,
    has_no_md5_etag,
    range_header,
    read_from,
    read_range,
)
from trainctl.sources.https import HttpsSource

_SMALL_BYTES = 2**20
_AT_ONCE = 64
"""Links of one question: few enough that the last is used before it expires."""
_MAX_KEPT = 1024
"""Links kept for files that are read again: more than are read at the same time."""


class _UrlRequest:
    """Files whose links were asked for together, and whether any of them was needed yet."""

    def __init__(self, asked: PendingRequest, paths: Sequence[str]) -> None:
        self.asked = asked
        self.paths = paths
        self.is_needed = False


class SourceUrl(NamedTuple):
    """A link; ``is_new`` if it was made for whoever needs it now."""

    url: str
    token: str
    is_relayed: bool
    is_new: bool
    question: _UrlRequest


class SourceUrlCache:
    """Finds the links of a source's files, for many threads.

    Small files are read in order: the link of one is asked for with those of the next ones, and when the first of them
    is needed, the next question is asked. Large files have a question each.
    """

    def __init__(self, callbacks: CallbackClient, files: Sequence[SourceFile]) -> None:
        self._callbacks = callbacks
        self._files = files
        self._lock = threading.Lock()
        self._asked: Dict[str, Tuple[_UrlRequest, int]] = {}

    def find(self, file: SourceFile) -> SourceUrl:
        """The file's link. The caller's error if it can make none, Interrupted if it has gone."""
        is_small = file.size <= _SMALL_BYTES
        with self._lock:
            known = self._asked.get(file.path)
            if known is None:
                known = self._ask(self._next(file.path) if is_small else [file.path]), 0
                is_new = True
            else:
                is_new = False
            question, number = known
            if is_small and not question.is_needed:
                question.is_needed = True
                following = self._next(question.paths[-1], skip=1)
                if following:
                    self._ask(following)
        try:
            link = self._answer(question)[number]
        except TrainctlError:
            for path in question.paths:
                self._forget(path, question)
            raise
        relayed = bool(link.get("relayed"))
        return SourceUrl(link["url"], link.get("token", ""), relayed, is_new, question)

    def forget(self, file: SourceFile, link: SourceUrl) -> None:
        """Have another link made when the file is read again."""
        self._forget(file.path, link.question)

    def _answer(self, question: _UrlRequest) -> List[Mapping[str, Any]]:
        try:
            answer = self._callbacks.wait(question.asked)
        except CallerGone:
            raise UserInterrupt("the command that mirrored has ended", "What arrived is kept.") from None  # fmt: skip
        if "error" in answer:
            raise error_from_json(answer["error"])
        links: List[Mapping[str, Any]] = answer["links"]
        return links

    def _forget(self, path: str, question: _UrlRequest) -> None:
        with self._lock:
            if path in self._asked and self._asked[path][0] is question:
                del self._asked[path]

    def _next(self, path: str, skip: int = 0) -> List[str]:
        """The small files among some from ``path`` on whose links weren't asked for."""
        start = file_index(self._files, path) + skip
        return [
            file.path
            for file in self._files[start : start + _AT_ONCE]
            if file.size <= _SMALL_BYTES and file.path not in self._asked
        ]

    def _ask(self, paths: Sequence[str]) -> _UrlRequest:
        question = _UrlRequest(self._callbacks.begin({"method": "links", "paths": paths}), paths)
        for number, path in enumerate(paths):
            self._asked[path] = question, number
        while len(self._asked) > _MAX_KEPT:
            del self._asked[next(iter(self._asked))]
        return question


class UrlUpstream:
    """An Upstream."""

    def __init__(self, resolved: ResolvedSource, links: SourceUrlCache) -> None:
        self._resolved = resolved
        self._links = links
        self._client = SourceClient()
        self._relay = SourceClient(direct=True)
        self._web = HttpsSource()
        self._without_md5: Set[str] = set()

    @property
    def source(self) -> str:
        """See Upstream."""
        return self._resolved.source

    def checksum(self, file: SourceFile) -> str:
        """See Upstream. What the responses with its bytes said of the file: a link is for nothing else."""
        return "" if file.path in self._without_md5 else file.checksum

    def open(self, file: SourceFile, offset: int) -> ContextManager[Iterator[bytes]]:
        """See Upstream."""
        link = self._links.find(file)
        if self._is_own_address(link):
            return self._web.open(self._resolved, file, offset, None)
        return self._rest(file, link, offset)

    @contextmanager
    def read_range(self, file: SourceFile, offset: int, length: int) -> Iterator[Optional[Fill]]:
        """See Upstream. The caller relays whole files only."""
        link, span = self._links.find(file), ByteRange(offset, length)
        if link.is_relayed:
            yield None
        elif self._is_own_address(link):
            with self._web.read_range(self._resolved, file, span, None) as fill:
                yield fill
        else:
            with self._response(file, link, range_header(*span)) as response:
                yield read_range(response, self._named(file), file, span)

    def _is_own_address(self, link: SourceUrl) -> bool:
        return self.source.startswith("https:") and not link.is_relayed

    def _named(self, file: SourceFile) -> str:
        return f"{self.source}: {display_path(file.path)}"

    @contextmanager
    def _rest(self, file: SourceFile, link: SourceUrl, offset: int) -> Iterator[Iterator[bytes]]:
        with self._response(file, link, range_header(offset)) as response:
            yield read_from(response, self._named(file), file, offset)

    @contextmanager
    def _response(
        self, file: SourceFile, link: SourceUrl, ranged: Mapping[str, str]
    ) -> Iterator[SourceResponse]:
        """The response to a link. One that was made earlier may have expired: it is replaced once if it is refused."""
        with ExitStack() as stack:
            try:
                response = stack.enter_context(self._follow(file, link, ranged))
            except SourceError as error:
                if link.is_new or error.retryable or isinstance(error, SourceMismatch):
                    raise
                self._links.forget(file, link)
                response = stack.enter_context(self._follow(file, self._links.find(file), ranged))
            yield response

    @contextmanager
    def _follow(
        self, file: SourceFile, link: SourceUrl, ranged: Mapping[str, str]
    ) -> Iterator[SourceResponse]:
        what = self._named(file)
        client = self._relay if link.is_relayed else self._client
        headers = {"User-Agent": "trainctl", **ranged}
        with _url_errors(what, link), client.get(
            link.url, what, headers, link.token or None
        ) as response:
            if not link.is_relayed:
                check_not_replaced(response.headers, what, file)
            if has_no_md5_etag(response.headers):
                self._without_md5.add(file.path)
            yield response


@contextmanager
def _url_errors(what: str, link: SourceUrl) -> Iterator[None]:
    """Say that it was a link that was refused: a credential may be there."""
    try:
        yield
    except SourceDenied as error:
        if link.is_relayed:
            raise
        raise SourceDenied(
            f"{what}: this host was refused the link that was made for it",
            f"Links are valid for a while, and may be for one network only. {error.summary}.",
        ) from None
