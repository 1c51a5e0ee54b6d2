"""GitHub and GitLab as far as trainctl uses them: requests, comments, issues, checks and approvals, in memory."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.servers.hub import FaultyHandler, listen

BOT = "github-actions[bot]"
Route = Callable[..., Any]


@dataclass
class ReviewStub:
    """Request 7 of a repository; ``head`` is its newest commit. Each write is a second later than the one before."""

    kind: str
    url: str = ""
    token: str = "token-of-the-job"
    author: str = "ada"
    head: str = ""
    merged: str = ""
    """The commit that merged it."""
    repository: str = "acme/train"
    """Where the head is: a fork's is another."""
    writable: bool = True
    refusals: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    """Statuses and headers of the next answers."""
    comments: list[dict[str, Any]] = field(default_factory=list)
    issues: list[dict[str, Any]] = field(default_factory=list)
    checks: list[dict[str, Any]] = field(default_factory=list)
    approvals: list[dict[str, Any]] = field(default_factory=list)
    seen: list[tuple[str, str, str]] = field(default_factory=list)
    """Methods, paths and bodies."""
    clock: int = 0

    def now(self) -> str:
        """The next second."""
        self.clock += 1
        return (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.clock)).isoformat()

    def by(self, name: str) -> dict[str, Any]:
        """The members that name an account."""
        return (
            {"user": {"login": name}} if self.kind == "github" else {"author": {"username": name}}
        )

    def post(self, posts: list[dict[str, Any]], values: dict[str, Any], author: str) -> None:
        number = len(self.comments) + len(self.issues) + 100
        created = {"id": number, "number": number, "iid": number, "state": "open", **values}
        posts.append({**created, **self.by(author), "updated_at": self.now()})

    def approve(
        self, user: str = "grace", *, state: str = "APPROVED", association: str = "MEMBER"
    ) -> None:
        """Review the newest commit."""
        review = {"state": state, "author_association": association, "commit_id": self.head}
        if self.kind == "github":
            self.approvals.append({**self.by(user), **review, "submitted_at": self.now()})
        else:
            self.approvals.append({"user": {"username": user}, "approved_at": self.now()})

    def environment(self, event: str, commit: str, event_file: str) -> dict[str, str]:
        """What a job's steps find, besides the file of the event."""
        if self.kind == "github":
            return {
                "CI": "true",
                "GITHUB_ACTIONS": "true",
                "GITHUB_API_URL": self.url,
                "GITHUB_GRAPHQL_URL": f"{self.url}/graphql",
                "GITHUB_REPOSITORY": "acme/train",
                "GITHUB_EVENT_NAME": event,
                "GITHUB_EVENT_PATH": event_file,
                "GITHUB_SHA": commit,
                "GITHUB_REF": f"refs/heads/gh-readonly-queue/main/pr-7-{'0' * 40}"
                if event == "merge_group"
                else "refs/heads/main",
            }
        is_request = event in ("pull_request", "merge_group")
        source = {"pull_request": "merge_request_event", "merge_group": "merge_request_event"}
        return {
            "CI": "true",
            "GITLAB_CI": "true",
            "CI_API_V4_URL": self.url,
            "CI_PROJECT_ID": "42",
            "CI_COMMIT_SHA": commit,
            "CI_PIPELINE_SOURCE": source.get(event, event),
            "CI_COMMIT_BRANCH": "" if is_request else "main",
            "CI_DEFAULT_BRANCH": "main",
            "CI_MERGE_REQUEST_EVENT_TYPE": "merge_train" if event == "merge_group" else "detached",
            "CI_MERGE_REQUEST_IID": "7" if is_request else "",
            "CI_MERGE_REQUEST_SOURCE_BRANCH_SHA": self.head if is_request else "",
            "GITLAB_TOKEN": self.token,
        }

    def event(self, event: str) -> dict[str, Any]:
        owner = {"owner": {"login": "eve"}, "full_name": self.repository}
        of_fork = {"head_repository": owner, "head_branch": "fix/1", "event": "pull_request"}
        is_run = event == "workflow_run"
        run = {"workflow_run": {"head_sha": self.head, **of_fork}} if is_run else {}
        return {"pull_request": self._pull()} if event == "pull_request" else run

    def _pull(self) -> dict[str, Any]:
        head = {"sha": self.head, "repo": {"full_name": self.repository}}
        pull = {"number": 7, "head": head, "merge_commit_sha": self.merged, **self.by(self.author)}
        return {**pull, "iid": 7, "sha": self.head}

    def answer(self, method: str, path: str, body: Any) -> Any:
        """Return the document of a request; LookupError if there is nothing there."""
        for pattern, route in self._routes().items():
            if match := re.fullmatch(pattern, f"{method} {path}"):
                return route(body, *match.groups())
        raise LookupError(path)

    def _creates(self, posts: list[dict[str, Any]]) -> Route:
        return lambda body: self.post(posts, body, BOT)

    def _changes(self, posts: list[dict[str, Any]]) -> Route:
        def route(body: Any, number: str) -> None:
            post = next(post for post in posts if post["id"] == int(number))
            closed = {"state": "closed"} if body.get("state_event") == "close" else {}
            post.update(body, **closed, updated_at=self.now())

        return route

    def _delete(self, _: Any, number: str) -> None:
        self.comments[:] = [post for post in self.comments if post["id"] != int(number)]

    def _create_check(self, body: Any, *commit: str) -> None:
        time = {"completed_at": self.now(), "created_at": self.now()}
        app = {"app": {"slug": BOT.removesuffix("[bot]")}, **self.by(BOT)}
        self.checks.append({"head_sha": "".join(commit), **body, **app, **time})

    def _checks_of(self, _: Any, commit: str) -> list[dict[str, Any]]:
        return [check for check in self.checks if check["head_sha"] == commit]

    def _open_issues(self, _: Any) -> list[dict[str, Any]]:
        return [issue for issue in self.issues if issue["state"] == "open"]

    def _requests_of(self, _: Any, commit: str) -> list[dict[str, Any]]:
        return [self._pull()] if commit in (self.head, self.merged) else []

    def _routes(self) -> dict[str, Route]:
        if self.kind == "github":
            top = "/repos/acme/train"
            return {
                "POST /graphql": lambda _: {"data": {"viewer": {"login": BOT}}},
                f"GET {top}/pulls/7": lambda _: self._pull(),
                f"GET {top}/commits/(.+)/pulls": self._requests_of,
                f"GET {top}/pulls": lambda _: [self._pull()],
                f"GET {top}/issues/7/comments": lambda _: self.comments,
                f"POST {top}/issues/7/comments": self._creates(self.comments),
                rf"PATCH {top}/issues/comments/(\d+)": self._changes(self.comments),
                rf"DELETE {top}/issues/comments/(\d+)": self._delete,
                f"GET {top}/issues": self._open_issues,
                f"POST {top}/issues": self._creates(self.issues),
                rf"PATCH {top}/issues/(\d+)": self._changes(self.issues),
                f"GET {top}/commits/(.+)/check-runs": lambda _, commit: {
                    "check_runs": self._checks_of(_, commit)
                },
                f"POST {top}/check-runs": self._create_check,
                f"GET {top}/pulls/7/reviews": lambda _: self.approvals,
            }
        top = "/projects/42"
        return {
            "GET /user": lambda _: {"username": BOT},
            f"GET {top}/merge_requests/7": lambda _: self._pull(),
            f"GET {top}/repository/commits/(.+)/merge_requests": self._requests_of,
            f"GET {top}/merge_requests/7/notes": lambda _: self.comments,
            f"POST {top}/merge_requests/7/notes": self._creates(self.comments),
            rf"PUT {top}/merge_requests/7/notes/(\d+)": self._changes(self.comments),
            rf"DELETE {top}/merge_requests/7/notes/(\d+)": self._delete,
            f"GET {top}/issues": self._open_issues,
            f"POST {top}/issues": self._creates(self.issues),
            rf"PUT {top}/issues/(\d+)": self._changes(self.issues),
            f"GET {top}/repository/commits/(.+)/statuses": self._checks_of,
            f"POST {top}/statuses/(.+)": self._create_check,
            f"GET {top}/merge_requests/7/approvals": lambda _: {"approved_by": self.approvals},
        }


def _page(document: Any, query: dict[str, list[str]]) -> Any:
    size, number = int(query.get("per_page", ["30"])[0]), int(query.get("page", ["1"])[0])
    if isinstance(document, list):
        return document[size * (number - 1) : size * number]
    if isinstance(document, dict) and "check_runs" in document:
        return {"check_runs": _page(document["check_runs"], query)}
    return document


class _Handler(FaultyHandler):
    stub: ReviewStub

    def serve(self) -> None:
        parts, stub = urlsplit(self.path), self.stub
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        stub.seen.append((self.command, parts.path, text))
        is_write = self.command != "GET" and parts.path != "/graphql"
        if stub.refusals:
            status, headers = stub.refusals.pop(0)
            self._send(status, {"message": "busy"}, headers)
        elif self.headers.get("Authorization") != f"Bearer {stub.token}":
            self._send(401, {"message": "Bad credentials"})
        elif is_write and not stub.writable:
            self._send(403, {"message": "Resource not accessible by integration"})
        else:
            try:
                document = stub.answer(self.command, parts.path, json.loads(text or "null"))
            except LookupError:
                self._send(404, {"message": "Not Found"})
            else:
                self._send(200, _page(document, parse_qs(parts.query)))

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = serve  # noqa: N815

    def _send(self, status: int, document: Any, headers: Mapping[str, str] = {}) -> None:
        self.answer(status, json.dumps(document).encode(), headers)


@contextmanager
def review_stub(kind: str) -> Iterator[ReviewStub]:
    """Serve it on loopback."""
    stub = ReviewStub(kind)
    handler = type("Handler", (_Handler,), {"stub": stub})
    with listen(handler) as stub.url:
        yield stub
