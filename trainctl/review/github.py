"""Pull requests of GitHub.

https://docs.github.com/en/rest
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from trainctl.base.retry import RetryPolicy
from trainctl.review import server as review
from trainctl.review.server import LABEL, IsDone, PostPlace, ReviewRecord, ReviewRequest, required

_QUEUE = re.compile(r"refs/heads/gh-readonly-queue/.+/pr-(\d+)-[0-9a-f]+")
_MEMBERS = frozenset({"OWNER", "MEMBER", "COLLABORATOR"})
"""Associations of reviewers whose approval counts; anyone can review in a public repository."""


class GitHub(review.ReviewServer):
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
        self, commit: str, name: str, digest: str, title: str, is_done: IsDone, *, passed: bool
    ) -> None:
        """Write a check with a digest; it has the time of the server."""
        check = {
            "name": name,
            "head_sha": commit,
            "external_id": digest,
            "conclusion": "success" if passed else "failure",
            "output": {"title": title, "summary": f"Plan digest: `{digest}`"},
        }
        self.call("POST", f"{self._repository}/check-runs", check, is_done)

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
