"""Comments, checks and approvals on stubs of GitHub and GitLab."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers.reviews import BOT, ReviewStub, review_stub
from trainctl.base.retry import RetryPolicy
from trainctl.errors import StalePlan, TrainctlError
from trainctl.model.diagnostics import Diagnostic, Severity
from trainctl.operations.review import approved_digest, comment_text, publish_comment, publish_issue
from trainctl.plan.values import Plan
from trainctl.review.servers import GitHub, GitLab

pytestmark = pytest.mark.integration
NAME = "trainctl demo 0a1b2c"
DIGEST, OTHER = (f"sha256:{letter * 64}" for letter in "ab")
RETRY = RetryPolicy(attempts=4, wait=lambda cancelled, seconds: None)


@pytest.fixture(params=["github", "gitlab"])
def stub(request: pytest.FixtureRequest) -> Iterator[ReviewStub]:
    """A request with one commit."""
    with review_stub(request.param) as stub:
        stub.head = "a1" * 20
        yield stub


def _server(stub: ReviewStub, place: Path, event: str = "pull_request") -> GitHub | GitLab:
    file = place / "event.json"
    file.write_text(json.dumps(stub.event(event)))
    commit = stub.merged if event == "push" else stub.head
    environ = {**stub.environment(event, commit, str(file)), "GITHUB_TOKEN": stub.token}
    return GitHub(environ, RETRY) if stub.kind == "github" else GitLab(environ, RETRY)


def _plan(digest: str = DIGEST, *, usable: bool = False) -> Plan:
    """A plan with an error, which is worth a comment; a usable one has nothing to say."""
    problems = () if usable else (Diagnostic(Severity.ERROR, "policy", "forbidden"),)
    return Plan("lineage", 3, "sha256:m", (), digest=digest, diagnostics=problems)


def _publish(stub: ReviewStub, place: Path, digest: str = DIGEST, *, usable: bool = False) -> None:
    body = comment_text(NAME, digest, "the plan")
    publish_comment(_server(stub, place), NAME, _plan(digest, usable=usable), "title", body)


def _approved(stub: ReviewStub, place: Path, *, from_comment: bool = False) -> str:
    stub.merged = "b2" * 20
    return approved_digest(_server(stub, place, "push"), NAME, from_comment=from_comment)


def test_one_comment_is_kept_among_others(stub: ReviewStub, tmp_path: Path) -> None:
    """Behind a hundred others, not that of another account with the marker; a second own one is removed."""
    body = comment_text(NAME, OTHER, "forged")
    for text, author in (*[("hello", "ada")] * 120, (body, "mallory")):
        stub.post(stub.comments, {"body": text}, author)
    _publish(stub, tmp_path)
    stub.post(stub.comments, {"body": comment_text(NAME, OTHER, "late")}, BOT)
    stub.post(stub.comments, {"body": comment_text(f"{NAME}0", OTHER, "another state")}, BOT)
    _publish(stub, tmp_path, OTHER)
    own = [post["body"] for post in stub.comments if stub.by(BOT).items() <= post.items()]
    assert [OTHER in text for text in own] == [True, True]
    assert f"For commit {stub.head}" in own[0]
    assert len(stub.checks) == 2
    _publish(stub, tmp_path, OTHER)
    assert len(stub.checks) == 2
    _publish(stub, tmp_path, OTHER, usable=True)
    assert len(stub.comments) == 122
    assert body in [post["body"] for post in stub.comments]


@pytest.mark.parametrize("from_comment", [False, True], ids=["check", "comment"])
def test_an_approval_is_newer_than_its_plan(
    stub: ReviewStub, tmp_path: Path, *, from_comment: bool
) -> None:
    """A new digest, an edited comment and a push take it away."""

    def refused() -> bool:
        with pytest.raises(StalePlan) as caught:
            _approved(stub, tmp_path, from_comment=from_comment)
        return caught.value.code == "not-approved"

    stub.approve()
    assert refused()  # nothing is published
    _publish(stub, tmp_path)
    assert refused()  # approved before that
    stub.approve()
    assert _approved(stub, tmp_path, from_comment=from_comment) == DIGEST
    _publish(stub, tmp_path, OTHER)
    assert refused()
    stub.approve()
    assert _approved(stub, tmp_path, from_comment=from_comment) == OTHER
    stub.comments[0] |= {"body": comment_text(NAME, DIGEST, ""), "updated_at": stub.now()}
    assert refused() if from_comment else _approved(stub, tmp_path) == OTHER
    stub.head = "c3" * 20
    _publish(stub, tmp_path, OTHER)
    assert refused()


def test_the_plan_of_a_fork_is_no_check(tmp_path: Path) -> None:
    """A second workflow comments a plan that anyone may have written."""
    with review_stub("github") as stub:
        stub.head = "a1" * 20
        server = _server(stub, tmp_path, "workflow_run")
        publish_comment(server, NAME, _plan(), "title", comment_text(NAME, DIGEST, "the plan"))
        assert "The author of the fork chose this text" in stub.comments[0]["body"]
        assert not stub.checks
        stub.approve()
        with pytest.raises(StalePlan, match="has no comment"):
            _approved(stub, tmp_path, from_comment=True)


def test_only_members_approve_and_not_their_own(stub: ReviewStub, tmp_path: Path) -> None:
    """Nor a verdict that was taken back; a later remark changes nothing."""
    _publish(stub, tmp_path)
    stub.approve(stub.author)
    if stub.kind == "github":
        stub.approve("mallory", association="CONTRIBUTOR")
        stub.approve("eve")
        stub.approve("eve", state="CHANGES_REQUESTED")
        stub.approve("joan", state="DISMISSED")
    with pytest.raises(StalePlan, match="is not approved"):
        _approved(stub, tmp_path)
    stub.approve("grace")
    stub.approve("grace", state="COMMENTED")
    assert _approved(stub, tmp_path) == DIGEST


def test_a_check_of_another_account_does_not_count(stub: ReviewStub, tmp_path: Path) -> None:
    _publish(stub, tmp_path)
    stub.checks[0] |= {"app": {"slug": "mallory"}, **stub.by("mallory")}
    stub.approve()
    with pytest.raises(StalePlan, match="has no check"):
        _approved(stub, tmp_path)


def test_requests_to_a_busy_server_are_repeated(stub: ReviewStub, tmp_path: Path) -> None:
    """Limits are 429 or 403 with the time to wait; not for ever."""
    server = _server(stub, tmp_path)
    stub.refusals = [(502, {}), (429, {"Retry-After": "0"}), (403, {"Retry-After": "0"})]
    text = comment_text(NAME, DIGEST, "x")
    assert "created" in publish_issue(server, NAME, _plan(), text)
    assert "unchanged" in publish_issue(server, NAME, _plan(), text)
    assert "removed" in publish_issue(server, NAME, _plan(usable=True), "")
    stub.refusals = [(500, {})] * 9
    with pytest.raises(TrainctlError, match="is unavailable"):
        publish_issue(server, NAME, _plan(), "x")


def test_a_token_that_may_not_write_is_reported_without_its_text(
    stub: ReviewStub, tmp_path: Path
) -> None:
    """As in jobs for forks."""
    stub.writable = False
    with pytest.raises(TrainctlError, match="permission denied") as caught:
        _publish(stub, tmp_path)
    assert caught.value.code == "review-denied"
    assert "fork" in caught.value.detail
    assert stub.token not in str(caught.value)


def test_a_commit_without_review_is_refused(stub: ReviewStub, tmp_path: Path) -> None:
    """As one that was pushed to the branch."""
    stub.merged = "b2" * 20
    server = _server(stub, tmp_path, "push")
    stub.merged = "d4" * 20
    with pytest.raises(TrainctlError, match="belongs to no pull or merge request"):
        approved_digest(server, NAME, from_comment=False)
