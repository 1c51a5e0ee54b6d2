"""Listings of many pages: one that is refused, or breaks off, is asked for again, and none before it."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support.hub import Fault, FaultyHandler, listening, serve
from tests.support.mirrors import impatient
from trainctl.errors import SourceBusy
from trainctl.spi.sources import Credential, WeightSource
from trainctl.weights.resolve import Wanted, resolve
from trainctl.weights.sources import source_for
from trainctl.weights.sources.gates import GATES
from trainctl.weights.sources.hf import HubSource

NAMES = [f"{number:02}.bin" for number in range(20)]
PAGE = 3
PAGES = 7


@dataclass
class Refusals:
    """What is asked of a server, by the cursor of the page, and what it makes of that."""

    asked: Counter[str]
    refused: dict[str, list[str]]
    tokens: list[str] = field(default_factory=list)
    """What was granted, the newest last, which alone opens the listing; nothing, where nobody is asked who they are."""

    def next_of(self, cursor: str) -> str | None:
        """What goes wrong with this request, if something does."""
        self.asked[cursor] += 1
        left = self.refused.get(cursor)
        return left.pop(0) if left else None


class _Listing(FaultyHandler):
    """A bucket's server that only lists, as S3, Google or Azure do, ``PAGE`` names at a time."""

    refusals: ClassVar[Refusals]

    def do_GET(self) -> None:  # noqa: N802  the name is the library's
        query = parse_qs(urlsplit(self.path).query)
        cursor = next(
            (
                query[name][0]
                for name in ("continuation-token", "pageToken", "marker")
                if name in query
            ),
            "",
        )
        sent = self.headers.get("Authorization")
        if self.refusals.tokens and sent != f"Bearer {self.refusals.tokens[-1]}":
            self.answer(HTTPStatus.UNAUTHORIZED, b"", {})
            return
        wrong = self.refusals.next_of(cursor)
        if wrong == "ended":
            self.refusals.tokens.append("granted-by-somebody-else")
            self.answer(HTTPStatus.UNAUTHORIZED, b"", {})
            return
        if wrong == "busy":
            self.answer(HTTPStatus.TOO_MANY_REQUESTS, b"", {"Retry-After": "1"})
            return
        start = int(cursor or 0)
        names, after = NAMES[start : start + PAGE], start + PAGE
        following = str(after) if after < len(NAMES) else ""
        body = self._body(query, names, following)
        self.head(HTTPStatus.OK, len(body), {})
        self.wfile.write(body[: len(body) // 2] if wrong == "cut" else body)
        self.close_connection = self.close_connection or wrong == "cut"

    def _body(self, query: dict[str, list[str]], names: list[str], following: str) -> bytes:
        if "list-type" in query:
            rows = "".join(
                f"<Contents><Key>llm/{name}</Key><Size>4</Size><ETag>e</ETag></Contents>"
                for name in names
            )
            more = f"<NextContinuationToken>{following}</NextContinuationToken>"
            return f"<R xmlns='s3'>{rows}{more if following else ''}</R>".encode()
        if "comp" in query:
            rows = "".join(
                f"<Blob><Name>llm/{name}</Name><Properties><Etag>e</Etag>"
                "<Content-Length>4</Content-Length></Properties></Blob>"
                for name in names
            )
            more = f"<NextMarker>{following}</NextMarker>"
            return f"<E><Blobs>{rows}</Blobs>{more}</E>".encode()
        items = [{"name": f"llm/{name}", "size": "4", "generation": "1"} for name in names]
        return json.dumps({"items": items, "nextPageToken": following}).encode()


Opened = tuple[WeightSource, str, Credential | None]


@pytest.fixture(params=["hf", "s3", "gs", "azure", "azure by a token"])
def upstream(
    request: pytest.FixtureRequest,
) -> Iterator[tuple[Opened, Refusals]]:
    """A source whose files are told on seven pages, and what is asked for them."""
    GATES.clear()
    refusals = Refusals(Counter(), {})
    if request.param == "hf":
        with _paged_hub(refusals) as url:
            yield (HubSource(url), "hf://acme/model", None), refusals
    else:
        handler = type("Handler", (_Listing,), {"refusals": refusals, "closing": threading.Event()})
        with listening(handler) as url:
            scheme, _, way = request.param.partition(" by ")
            uri = "azure://account/box/llm" if scheme == "azure" else f"{scheme}://box/llm"
            yield (source_for(scheme), uri, _credential(way, refusals, url)), refusals
    GATES.clear()


def _credential(way: str, refusals: Refusals, url: str) -> Credential:
    if not way:
        return Credential("", "nobody", url)

    def granted() -> Credential:
        refusals.tokens.append(f"granted-{len(refusals.tokens)}")
        ends = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        document = {"access_token": refusals.tokens[-1], "expires_at": ends}
        return Credential(json.dumps(document), "the test", url, granted)

    return granted()


@contextmanager
def _paged_hub(refusals: Refusals) -> Iterator[str]:
    with serve() as hub:

        def next_fault(path: str) -> Fault | None:
            if "/tree/" not in path:
                return None
            cursor = parse_qs(hub.seen[-1].query).get("cursor", [""])[0]
            wrong = refusals.next_of(cursor)
            busy = Fault("status", "", status=429, headers={"Retry-After": "1"})
            return {None: None, "busy": busy, "cut": Fault("status", "", status=502)}[wrong]

        hub.next_fault = next_fault  # type: ignore[method-assign]
        hub.add("acme/model", dict.fromkeys(NAMES, b"1234"))
        hub.page_size = PAGE
        yield hub.url


def resolved(opened: Opened, place: Path) -> list[str]:
    source, uri, credential = opened
    found = resolve(
        Wanted(uri, place), credential, retry=impatient(), open_source=lambda scheme: source
    )
    return [file.path for file in found.resolved.files]


@pytest.mark.parametrize("wrong", ["busy", "cut"])
def test_a_listing_goes_on_at_the_page_that_failed(
    upstream: tuple[Opened, Refusals], wrong: str, tmp_path: Path
) -> None:
    """Pages that failed are asked for again, also more of them than there are tries for one, and no other."""
    opened, refusals = upstream
    cursors = [str(number * PAGE) for number in range(1, PAGES)]
    refusals.refused = {cursor: [wrong, wrong] for cursor in cursors}

    assert resolved(opened, tmp_path) == NAMES
    assert refusals.asked == {"": 1, **dict.fromkeys(cursors, 3)}


def test_a_page_that_is_never_told_ends_it(
    upstream: tuple[Opened, Refusals], tmp_path: Path
) -> None:
    """As often as any request is tried, and no listing is begun again for it."""
    opened, refusals = upstream
    refusals.refused = {str(PAGE): ["busy"] * 1000}

    with pytest.raises(SourceBusy):
        resolved(opened, tmp_path)
    assert refusals.asked[""] == 1
    assert refusals.asked[str(PAGE)] > impatient().attempts


@pytest.mark.parametrize("upstream", ["azure by a token"], indirect=True)
def test_a_token_that_ends_amid_a_listing_is_renewed(
    upstream: tuple[Opened, Refusals], tmp_path: Path
) -> None:
    """The page that was refused is asked for by the next token, and no other page again."""
    opened, refusals = upstream
    cursors = [str(number * PAGE) for number in range(1, PAGES)]
    refusals.refused = {cursors[2]: ["ended"], cursors[4]: ["ended"]}

    assert resolved(opened, tmp_path) == NAMES
    assert refusals.asked == {"": 1, **dict.fromkeys(cursors, 1), cursors[2]: 2, cursors[4]: 2}
