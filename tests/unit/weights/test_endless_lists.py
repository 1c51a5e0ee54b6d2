"""A list whose pages go in a circle, as a proxy makes one that ignores the query, ends with an error instead of never."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.servers.raw_server import RawRequest, RawServer, raw_response, serve_responses
from tests.support.storage.mirrors import immediate_retry
from trainctl.base.checkpoints.stores import open_checkpoint_store
from trainctl.base.failure import Failure
from trainctl.base.http.limits import LIMITS
from trainctl.base.pagination import MAX_PAGES, CursorCycleDetector, PaginationCycle
from trainctl.errors import SourceError
from trainctl.objects.bucket_client import Bucket
from trainctl.objects.location import parse_bucket_location
from trainctl.plugin_api.sources import SourceCredential, WeightSource
from trainctl.sources import source_for
from trainctl.sources.hf import HubSource
from trainctl.weights.resolution import SourceRequest, resolve

COMMIT = "a" * 40
MANY = 100
"""Requests after which somebody who goes on is told that it is gone."""


def hub_page(cursor: str) -> bytes:
    row = {"type": "file", "path": "x", "size": 4, "oid": COMMIT}
    return raw_response(json.dumps([row]), Link=f'</api/tree/?cursor={cursor}>; rel="next"')


def s3_page(cursor: str) -> bytes:
    told = "<Size>4</Size><ETag>e</ETag><LastModified>2024-01-01T00:00:00.000Z</LastModified>"
    rows = "".join(f"<Contents><Key>llm/{one:03}</Key>{told}</Contents>" for one in range(500))
    more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{cursor}</NextContinuationToken>"
    return raw_response(f"<R xmlns='s3'>{rows}{more}</R>")


@pytest.fixture(params=[1, 3])
def circling(
    request: pytest.FixtureRequest,
) -> Iterator[Callable[[Callable[[str], bytes]], RawServer]]:
    """A server whose pages name so many cursors, over and over."""
    LIMITS.clear()
    cursors = itertools.cycle([f"cursor{number}" for number in range(request.param)])
    pages: list[Callable[[str], bytes]] = []

    def tell(heard: RawRequest) -> bytes:
        if len(liar.heard) > MANY:
            return raw_response(status="404 Not Found")
        if "/revision/" in heard.target:
            return raw_response(json.dumps({"sha": COMMIT}))
        return pages[0](next(cursors))

    def made(page: Callable[[str], bytes]) -> RawServer:
        pages.append(page)
        return liar

    with serve_responses(tell) as liar:
        yield made
    LIMITS.clear()


@pytest.mark.parametrize(
    ("uri", "page"),
    [
        ("hf://acme/model", hub_page),
        ("s3://box/llm", s3_page),
    ],
)
def test_a_source_whose_list_goes_in_a_circle_is_an_error(
    circling: Callable[[Callable[[str], bytes]], RawServer],
    uri: str,
    page: Callable[[str], bytes],
    tmp_path: Path,
) -> None:
    """It says so after some requests, whatever number of pages the circle has."""
    liar = circling(page)
    scheme = uri.partition(":")[0]
    source: WeightSource = HubSource(liar.url) if scheme == "hf" else source_for(scheme)
    nobody = None if scheme == "hf" else SourceCredential("", "nobody", liar.url)

    with pytest.raises(SourceError, match=f"^{uri}.*has no end"):
        resolve(
            SourceRequest(uri, tmp_path),
            nobody,
            retry=immediate_retry(),
            open_source=lambda scheme: source,
        )


def test_a_bucket_that_is_listed_in_a_circle_is_an_error(
    circling: Callable[[Callable[[str], bytes]], RawServer],
) -> None:
    """The engine follows it; whoever asks it notices."""
    liar = circling(s3_page)

    with pytest.raises(SourceError, match="has no end"):
        list(Bucket(parse_bucket_location("s3://box/llm", liar.url, {})).list())


def test_checkpoints_that_are_listed_in_a_circle_are_a_failure(
    circling: Callable[[Callable[[str], bytes]], RawServer],
) -> None:
    """A node's own requests, too."""
    liar = circling(s3_page)
    store = open_checkpoint_store({"url": "s3://box/llm", "endpoint_url": liar.url}, {})

    with closing(store), pytest.raises(Failure, match="has no end"):
        list(store.list(""))


def test_pages_of_a_long_list_are_no_circle() -> None:
    """As long as they are others, and not more than anybody has."""
    cursors = CursorCycleDetector()
    for number in range(MAX_PAGES):
        cursors.record(number)

    with pytest.raises(PaginationCycle):
        cursors.record(MAX_PAGES)
