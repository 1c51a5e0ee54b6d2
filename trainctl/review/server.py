"""A repository on a review server: requests, own posts found by a marker, values of reviews."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import count
from typing import Any, ClassVar
from urllib.parse import urlsplit

from trainctl.base.retry import RetryPolicy
from trainctl.errors import SourceDenied, SourceNotFound, TrainctlError
from trainctl.plugin_api.sources import SourceCredential
from trainctl.sources.client import SourceClient

IsDone = Callable[[], bool]
"""Check whether a change took effect although the request failed; called before each retry."""
LABEL = "trainctl"
"""Label of issues, by which they are found."""
_PAGE, _PAGES = 100, 1000


@dataclass(frozen=True, slots=True)
class ReviewRequest:
    """A pull or merge request; ``head`` is the commit under review.

    ``writes_check``: whether this job is one of the request, not one that comments a fork's plan.
    """

    number: int
    head: str
    author: str
    writes_check: bool = True


@dataclass(frozen=True, slots=True)
class ReviewRecord:
    """A post, or the digest in a check."""

    text: str
    written_at: datetime
    id: int = 0


@dataclass(frozen=True, slots=True)
class PostPlace:
    """Comments of a request, or issues: paths of the list and of an item, and names of members.

    ``new``: further members of a new post. ``closing``: those that close a post; None deletes it.
    """

    items: str
    item: str
    key: str = "id"
    body: str = "body"
    new: Mapping[str, Any] = field(default_factory=dict)
    closing: Mapping[str, Any] | None = None


class ReviewServer:
    """Calls the REST API; the token stays at its origin, and busy servers are tried again."""

    update_method: ClassVar[str]
    author_members: ClassVar[tuple[str, str]]
    account_name: str = ""

    def __init__(self, api: str, token: str, retry: RetryPolicy, commit: str) -> None:
        self.commit = commit
        self._api = api.rstrip("/")
        self._credential = SourceCredential(token, "")
        self._retry = retry
        self._http = SourceClient()

    def call(
        self, method: str, path: str, body: object = None, is_done: IsDone = lambda: False
    ) -> Any:
        """Send a request to a path of the API, or a URL; return the JSON of the response."""
        url, sends = path if "://" in path else f"{self._api}/{path}", count()

        def send() -> Any:
            return None if next(sends) and is_done() else self._send(method, url, body)

        return self._retry.run(send, threading.Event())

    def get_all(self, path: str, member: str | None = None) -> Iterator[Any]:
        """Yield the items of all pages of a list, or of a list that is a ``member`` of each page."""
        for number in range(1, _PAGES + 1):
            joint = "&" if "?" in path else "?"
            page = self.call("GET", f"{path}{joint}per_page={_PAGE}&page={number}")
            items = page[member] if member else page
            yield from items
            if len(items) < _PAGE:
                return

    def author_of(self, item: Any) -> str:
        """Return the account that wrote an item; empty if it was deleted."""
        account, name = self.author_members
        return str((item[account] or {}).get(name, ""))

    def posts(self, place: PostPlace, marker: str) -> list[ReviewRecord]:
        """Return this account's posts that begin with the marker, the oldest first."""
        found = [
            ReviewRecord(
                item[place.body], datetime.fromisoformat(item["updated_at"]), item[place.key]
            )
            for item in self.get_all(place.items)
            if (item[place.body] or "").startswith(marker)
            and self.author_of(item) == self.account_name
        ]
        return sorted(found, key=lambda post: post.id)

    def publish(self, place: PostPlace, marker: str, body: str | None) -> str:
        """Keep one post with the marker, or none if ``body`` is None; return what was done."""

        def is_gone(number: int) -> bool:
            return all(post.id != number for post in self.posts(place, marker))

        posts = self.posts(place, marker)
        for post in posts[0 if body is None else 1 :]:
            method = "DELETE" if place.closing is None else self.update_method
            path = f"{place.item}/{post.id}"
            self.call(method, path, place.closing, partial(is_gone, post.id))
        if body is None:
            return "removed" if posts else "unchanged"
        if not posts:
            path, new = place.items.partition("?")[0], {**place.new, place.body: body}
            self.call("POST", path, new, lambda: bool(self.posts(place, marker)))
            return "created"
        if posts[0].text.strip() == body.strip():
            return "unchanged"
        self.call(self.update_method, f"{place.item}/{posts[0].id}", {place.body: body})
        return "updated"

    def _send(self, method: str, url: str, body: object) -> Any:
        subject = f"{method} {urlsplit(url).path}"
        headers = {"Content-Type": "application/json", "User-Agent": "trainctl"}
        data = None if body is None else json.dumps(body).encode()
        try:
            with self._http.get(url, subject, headers, self._credential, method, data) as response:
                return json.loads(response.read(2**25) or b"null")
        except (SourceDenied, SourceNotFound) as error:
            raise TrainctlError(
                error.summary,
                "The token may lack a permission of the recipe. Jobs for pull requests of forks get one that can't write.",
                code="review-denied",
            ) from None


def required(environ: Mapping[str, str], *names: str) -> str:
    """Return the first variable that is set; TrainctlError if none is."""
    value = next(filter(None, map(environ.get, names)), None)
    if value is None:
        raise TrainctlError(
            f"{names[0]} is not set",
            "Run this command in a job of GitHub Actions or GitLab CI, with the variables of the recipe.",
            code="no-review",
        )
    return value
