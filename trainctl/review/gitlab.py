"""Merge requests of GitLab.

https://docs.gitlab.com/api/rest/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from urllib.parse import quote

from trainctl.base.retry import RetryPolicy
from trainctl.review import server as review
from trainctl.review.server import LABEL, IsDone, PostPlace, ReviewRecord, ReviewRequest, required

_MERGED = ("merge_commit_sha", "squash_commit_sha", "sha")


class GitLab(review.ReviewServer):
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
        self, commit: str, name: str, digest: str, title: str, is_done: IsDone, *, passed: bool
    ) -> None:
        """Write a commit status with a digest."""
        state = "success" if passed else "failed"
        status = {"state": state, "name": name, "description": f"{digest} {title}"[:255]}
        self.call("POST", f"{self._project}/statuses/{commit}", status, is_done)

    def approvals(self, request: ReviewRequest) -> Iterator[datetime]:
        """Yield the times of approvals; they have no commit, and a time since GitLab 18."""
        path = f"{self._project}/merge_requests/{request.number}/approvals"
        for approval in self.call("GET", path)["approved_by"]:
            if approval["user"]["username"] != request.author and approval.get("approved_at"):
                yield datetime.fromisoformat(approval["approved_at"])
