"""Review servers: requests, comments, checks and approvals of GitHub and GitLab."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, urlsplit

from trainctl.base.lazy_dataclass import dataclass, field
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.retry import RetryPolicy
from trainctl.errors import SourceDenied, SourceNotFound, TrainctlError
from trainctl.plugin_api.sources import SourceCredential
from trainctl.sources.client import SourceClient

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

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Send a request to a path of the API, or a URL; return the JSON of the response."""
        url = path if "://" in path else f"{self._api}/{path}"
        return self._retry.run(lambda: self._send(method, url, body), threading.Event())

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
        posts = self.posts(place, marker)
        for post in posts[0 if body is None else 1 :]:
            method = "DELETE" if place.closing is None else self.update_method
            self.call(method, f"{place.item}/{post.id}", place.closing)
        if body is None:
            return "removed" if posts else "unchanged"
        if not posts:
            path, new = place.items.partition("?")[0], {**place.new, place.body: body}
            self.call("POST", path, new)
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


_QUEUE = compile_lazily(r"refs/heads/gh-readonly-queue/.+/pr-(\d+)-[0-9a-f]+")
_MEMBERS = frozenset({"OWNER", "MEMBER", "COLLABORATOR"})
"""Associations of reviewers whose approval counts; anyone can review in a public repository."""


class GitHub(ReviewServer):
    """A repository on GitHub, by the variables of GitHub Actions."""

    update_method = "PATCH"
    author_members = ("user", "login")

    def __init__(self, environ: Mapping[str, str], retry: RetryPolicy) -> None:
        api, token = required(environ, "GITHUB_API_URL"), required(environ, "GITHUB_TOKEN")
        super().__init__(api, token, retry, required(environ, "GITHUB_SHA"))
        self._repository = f"repos/{required(environ, 'GITHUB_REPOSITORY')}"
        self._ref = environ.get("GITHUB_REF", "")
        self._event: Any = json.loads(
            Path(required(environ, "GITHUB_EVENT_PATH")).read_text("utf-8")
        )
        # Tokens of apps can't read /user.
        query = {"query": "{viewer{login}}"}
        viewer = self.call("POST", required(environ, "GITHUB_GRAPHQL_URL"), query)
        self.account_name = viewer["data"]["viewer"]["login"]

    def request(self) -> ReviewRequest | None:
        """Return the request of this job, or that of a merged commit; None without one."""
        pull = self._event.get("pull_request")
        if not pull and (queued := _QUEUE.fullmatch(self._ref)):
            pull = self.call("GET", f"{self._repository}/pulls/{queued[1]}")
        if not pull:
            path, commit = f"commits/{self.commit}/pulls", self.commit
            if run := self._event.get("workflow_run"):  # of a fork, whose commits are elsewhere
                head = f"{run['head_repository']['owner']['login']}:{run['head_branch']}"
                path, commit = f"pulls?state=open&head={quote(head)}", run["head_sha"]
            for found in self.get_all(f"{self._repository}/{path}"):
                if commit in (found["merge_commit_sha"], found["head"]["sha"]):
                    pull = found
        if not pull:
            return None
        is_own = "workflow_run" not in self._event
        return ReviewRequest(pull["number"], pull["head"]["sha"], self.author_of(pull), is_own)

    def comments(self, request: ReviewRequest) -> PostPlace:
        """Return the place of a request's comments."""
        path = f"{self._repository}/issues"
        return PostPlace(f"{path}/{request.number}/comments", f"{path}/comments")

    def issues(self, title: str) -> PostPlace:
        """Return the place of open issues with the label."""
        path, new = f"{self._repository}/issues", {"title": title, "labels": [LABEL]}
        items = f"{path}?state=open&labels={LABEL}"
        return PostPlace(items, path, "number", new=new, closing={"state": "closed"})

    def checks(self, commit: str, name: str) -> Iterator[ReviewRecord]:
        """Yield this account's checks of a commit."""
        path = f"{self._repository}/commits/{commit}/check-runs?check_name={quote(name, safe='')}"
        for run in self.get_all(path, "check_runs"):
            is_own = f"{(run['app'] or {}).get('slug')}[bot]" == self.account_name
            if is_own and run["completed_at"] and run["external_id"]:
                yield ReviewRecord(run["external_id"], datetime.fromisoformat(run["completed_at"]))

    def create_check(
        self, commit: str, name: str, digest: str, title: str, *, passed: bool
    ) -> None:
        """Write a check with a digest; it has the time of the server."""
        check = {
            "name": name,
            "head_sha": commit,
            "external_id": digest,
            "conclusion": "success" if passed else "failure",
            "output": {"title": title, "summary": f"Plan digest: `{digest}`"},
        }
        self.call("POST", f"{self._repository}/check-runs", check)

    def approvals(self, request: ReviewRequest) -> Iterator[datetime]:
        """Yield the times of approvals of the head; of each member the newest verdict counts."""
        verdicts: dict[str, Any] = {}
        for verdict in self.get_all(f"{self._repository}/pulls/{request.number}/reviews"):
            if verdict["state"] != "COMMENTED" and verdict["author_association"] in _MEMBERS:
                verdicts[self.author_of(verdict)] = verdict
        for user, verdict in verdicts.items():
            is_current = verdict["state"] == "APPROVED" and verdict["commit_id"] == request.head
            if is_current and user != request.author:
                yield datetime.fromisoformat(verdict["submitted_at"])


_MERGED = ("merge_commit_sha", "squash_commit_sha", "sha")


class GitLab(ReviewServer):
    """A project on GitLab, by the variables of GitLab CI."""

    update_method = "PUT"
    author_members = ("author", "username")

    def __init__(self, environ: Mapping[str, str], retry: RetryPolicy) -> None:
        api, token = required(environ, "CI_API_V4_URL"), required(environ, "GITLAB_TOKEN")
        # Pipelines of merged results run on a commit that is on no branch.
        commit = required(environ, "CI_MERGE_REQUEST_SOURCE_BRANCH_SHA", "CI_COMMIT_SHA")
        super().__init__(api, token, retry, commit)
        self._project = f"projects/{required(environ, 'CI_PROJECT_ID')}"
        self._number = environ.get("CI_MERGE_REQUEST_IID")
        self.account_name = self.call("GET", "user")["username"]

    def request(self) -> ReviewRequest | None:
        """Return the request of this job, or that of a merged commit; None without one."""
        if self._number:
            found = self.call("GET", f"{self._project}/merge_requests/{self._number}")
            return ReviewRequest(found["iid"], self.commit, self.author_of(found))
        path = f"{self._project}/repository/commits/{self.commit}/merge_requests"
        for found in self.get_all(path):
            if self.commit in (found.get(name) for name in _MERGED):
                return ReviewRequest(found["iid"], found["sha"], self.author_of(found))
        return None

    def comments(self, request: ReviewRequest) -> PostPlace:
        """Return the place of a request's comments."""
        path = f"{self._project}/merge_requests/{request.number}/notes"
        return PostPlace(path, path)

    def issues(self, title: str) -> PostPlace:
        """Return the place of open issues with the label."""
        path, new = f"{self._project}/issues", {"title": title, "labels": LABEL}
        items = f"{path}?state=opened&labels={LABEL}"
        return PostPlace(items, path, "iid", "description", new, {"state_event": "close"})

    def checks(self, commit: str, name: str) -> Iterator[ReviewRecord]:
        """Yield this account's statuses of a commit, also of earlier pipelines."""
        path = f"{self._project}/repository/commits/{commit}/statuses"
        for status in self.get_all(f"{path}?all=true&name={quote(name, safe='')}"):
            digest = (status["description"] or "").partition(" ")[0]
            if digest and self.author_of(status) == self.account_name:
                yield ReviewRecord(digest, datetime.fromisoformat(status["created_at"]))

    def create_check(
        self, commit: str, name: str, digest: str, title: str, *, passed: bool
    ) -> None:
        """Write a commit status with a digest."""
        state = "success" if passed else "failed"
        status = {"state": state, "name": name, "description": f"{digest} {title}"[:255]}
        self.call("POST", f"{self._project}/statuses/{commit}", status)

    def approvals(self, request: ReviewRequest) -> Iterator[datetime]:
        """Yield the times of approvals; they have no commit, and a time since GitLab 18."""
        path = f"{self._project}/merge_requests/{request.number}/approvals"
        for approval in self.call("GET", path)["approved_by"]:
            if approval["user"]["username"] != request.author and approval.get("approved_at"):
                yield datetime.fromisoformat(approval["approved_at"])
