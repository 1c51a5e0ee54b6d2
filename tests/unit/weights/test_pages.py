"""Listings of many pages: one that is refused, or breaks off, is asked for again, and none before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from tests.support.servers.hub import HttpFault, serve
from tests.support.storage.mirrors import immediate_retry
from trainctl.base.http.limits import LIMITS
from trainctl.errors import SourceUnavailable
from trainctl.plugin_api.sources import SourceCredential, WeightSource
from trainctl.sources.hf import HubSource
from trainctl.weights.resolution import SourceRequest, resolve

NAMES = [f"{number:02}.bin" for number in range(20)]
PAGE = 3
PAGES = 7


@dataclass
class Refusals:
    """What is asked of a server, by the cursor of the page, and what it makes of that."""

    asked: Counter[str]
    refused: dict[str, list[str]]

    def next_of(self, cursor: str) -> str | None:
        """What goes wrong with this request, if something does."""
        self.asked[cursor] += 1
        left = self.refused.get(cursor)
        return left.pop(0) if left else None


Opened = tuple[WeightSource, str, SourceCredential | None]


@pytest.fixture
def upstream() -> Iterator[tuple[Opened, Refusals]]:
    """A source whose files are told on seven pages, and what is asked for them."""
    LIMITS.clear()
    refusals = Refusals(Counter(), {})
    with _paged_hub(refusals) as url:
        yield (HubSource(url), "hf://acme/model", None), refusals
    LIMITS.clear()


@contextmanager
def _paged_hub(refusals: Refusals) -> Iterator[str]:
    with serve() as hub:

        def next_fault(path: str) -> HttpFault | None:
            if "/tree/" not in path:
                return None
            cursor = parse_qs(hub.seen[-1].query).get("cursor", [""])[0]
            wrong = refusals.next_of(cursor)
            busy = HttpFault("status", "", status=429, headers={"Retry-After": "1"})
            return {None: None, "busy": busy, "cut": HttpFault("status", "", status=502)}[wrong]

        hub.next_fault = next_fault  # type: ignore[method-assign]
        hub.add("acme/model", dict.fromkeys(NAMES, b"1234"))
        hub.page_size = PAGE
        yield hub.url


def resolved(opened: Opened, place: Path) -> list[str]:
    source, uri, credential = opened
    found = resolve(
        SourceRequest(uri, place),
        credential,
        retry=immediate_retry(),
        open_source=lambda scheme: source,
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

    with pytest.raises(SourceUnavailable):
        resolved(opened, tmp_path)
    assert refusals.asked[""] == 1
    assert refusals.asked[str(PAGE)] > immediate_retry().attempts
