"""Reviews of plans: publish them on a server, read the approved digest there, and sign plan files."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.retry import RetryPolicy
from trainctl.errors import PermissionDenied, StalePlan, TrainctlError, UsageError
from trainctl.manifest.checkout import repository_of
from trainctl.model.redaction import Redactor
from trainctl.plan.values import Plan

if TYPE_CHECKING:
    from trainctl.review.servers import GitHub, GitLab, ReviewRequest
_DIGEST = compile_lazily(r"sha256:[0-9a-f]{64}")


def review_server(
    environ: Mapping[str, str],
    redactor: Redactor,
    notify: Callable[[str], None],
    provider: str | None = None,
) -> GitHub | GitLab:
    """Return the server of this CI job; TrainctlError outside of CI or without a token."""
    from trainctl.review.servers import GitHub, GitLab

    for variable in ("GITHUB_TOKEN", "GITLAB_TOKEN"):
        redactor.register(environ.get(variable, ""))
    retry = RetryPolicy(attempts=4, patience=60.0, notify=notify)
    detected = "gitlab" if environ.get("GITLAB_CI") else "github"
    if provider not in (None, "github", "gitlab"):
        raise UsageError(f"--provider {provider}: must be github or gitlab")
    server = GitLab if (provider or detected) == "gitlab" else GitHub
    return server(environ, retry)


def review_name(directory: Path, state_url: str) -> str:
    """Return the name of a manifest and its state in comments and checks.

    It is the same in every checkout: directories below the repository are relative to it.
    """
    root = repository_of(directory)
    path = re.sub(r"[^\w./]+", "-", str(directory.relative_to(root)))
    place = f"{path} {state_url.replace(root.as_uri(), '', 1).rstrip('/')}"
    words = ["trainctl", *([] if path == "." else [path]), sha256(place.encode()).hexdigest()[:6]]
    return " ".join(words)


def comment_text(name: str, digest: str, text: str) -> str:
    """Return the body of a comment: a hidden first line with name and digest, then the text."""
    return f"<!-- {name} {digest} -->\n{text}"


def publish_comment(
    server: GitHub | GitLab, name: str, plan: Plan, title: str, body: str
) -> list[str]:
    """Write comment and check of a plan; return what was done.

    A check is not repeated for the same digest, as approvals must be newer than their check.
    """
    request = _request(server)
    body = f"{body}\n\nFor commit {request.head}."
    if not request.writes_check:  # so that its digest can't be approved
        body = body.replace(plan.digest, "fork", 1) + " The author of the fork chose this text."
    done = server.publish(server.comments(request), f"<!-- {name} ", _body(plan, body))
    if request.writes_check:
        checks = sorted(server.checks(request.head, name), key=lambda check: check.written_at)
        if not checks or checks[-1].text != plan.digest:
            server.create_check(request.head, name, plan.digest, title, passed=plan.usable)
    return [f"#{request.number}: comment {done}.", f"{name} of {request.head[:12]}: {title}"]


def publish_issue(server: GitHub | GitLab, name: str, plan: Plan, body: str) -> str:
    """Keep an issue open while a plan has changes or drift; return what was done."""
    place = server.issues(f"{name}: the machines differ from the manifest")
    return f"Issue {server.publish(place, f'<!-- {name} ', _body(plan, body))}."


def _body(plan: Plan, body: str) -> str | None:
    return body if plan.has_changes or plan.drift or not plan.usable else None


def approved_digest(server: GitHub | GitLab, name: str, *, from_comment: bool) -> str:
    """Return the approved digest; StalePlan without an approval that is newer than it.

    The digest is in a check of the head, or in this account's comment, which must not be edited after the approval.
    """
    request = _request(server)
    if from_comment:
        records = server.posts(server.comments(request), f"<!-- {name} ")
    else:
        records = list(server.checks(request.head, name))
    newest = max(records, key=lambda record: record.written_at, default=None)
    digest = _DIGEST.search(newest.text.partition("\n")[0]) if newest else None
    approved = max(server.approvals(request), default=None)
    problem = ""
    if newest is None or digest is None:
        problem = f"has no {'comment' if from_comment else 'check'} {name!r}"
    elif approved is None:
        problem = "is not approved"
    elif approved < newest.written_at:
        problem = f"was approved at {approved}, before its plan of {newest.written_at}"
    if problem or digest is None:
        raise StalePlan(
            f"commit {request.head[:12]} of #{request.number} {problem}",
            "Run the job that plans, review its plan, and have the newest commit approved.",
            code="not-approved",
        )
    return digest[0]


def _request(server: GitHub | GitLab) -> ReviewRequest:
    request = server.request()
    if request is None:
        raise TrainctlError(
            f"commit {server.commit[:12]} belongs to no pull or merge request",
            "Run this in a job for a pull or merge request, or for the commit that merged it.",
            code="no-review",
        )
    return request


_NAMESPACE = "trainctl-plan"


def signature_of(plan: Path) -> Path:
    """Return the path of a plan file's signature, next to it."""
    return plan.with_name(f"{plan.name}.sig")


def sign(data: bytes, key: Path) -> str:
    """Return a signature; with a public key, ssh-agent signs. TrainctlError if that fails."""
    done = _ssh_keygen("sign", "-f", str(key), data=data)
    if done.returncode:
        raise TrainctlError(
            f"cannot sign the plan with {key}", _reason(done), code="signing-failed"
        )
    return done.stdout.decode()


def require_signature(data: bytes, signature: Path, signers: Path) -> str:
    """Return the signer, one of the file ``signers``; PermissionDenied without a valid signature."""
    if not signers.is_file():
        raise UsageError(f"--require-signature {signers}: file not found")
    if not signature.is_file():
        raise PermissionDenied(
            f"the plan is not signed: {signature} not found",
            "To sign a plan, run: trainctl plan --out FILE --sign KEY",
            code="untrusted-signature",
        )
    places = ("-s", str(signature), "-f", str(signers))
    found = _ssh_keygen("find-principals", *places)
    reason = _reason(found)
    for signer in found.stdout.decode(errors="replace").splitlines():
        verified = _ssh_keygen("verify", *places, "-I", signer, data=data)
        if verified.returncode == 0:
            return signer
        reason = _reason(verified)
    raise PermissionDenied(
        f"no signer in {signers} has signed this plan",
        f"ssh-keygen reports: {reason}\nThe plan was changed after signing, or its key is unknown or expired.",
        code="untrusted-signature",
    )


def _ssh_keygen(act: str, *args: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            ["ssh-keygen", "-Y", act, "-n", _NAMESPACE, *args],
            input=data, capture_output=True, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise TrainctlError(
            "ssh-keygen not found", "Install OpenSSH 8.2 or newer.", code="signing-failed"
        ) from None


def _reason(done: subprocess.CompletedProcess[bytes]) -> str:
    text = (done.stderr or done.stdout).decode(errors="replace").strip()
    return text[-500:] or f"exit status {done.returncode}"
