"""Error classes of trainctl, with the exit code of each.

    TrainctlError             1
      UsageError             64
      ManifestError           1
      TrustError              1
      LockHeld               10
      StalePlan              11
        AlreadyApplied       11
      PartialApply           12
      PermissionDenied       13
      UserInterrupt         130
      StateError              1
        StateMoved            1
        AppendConflict        1
      SecretUnavailable       1
      SourceError             1
        SourceNotFound        1
        SourceDenied          1
        SourceUnavailable     1
          SourceThrottled     1
        SourceInterrupted     1
          SourceUnreachable   1
        SourceMismatch        1
      StorageError            1
        InsufficientSpace     1
      NodeError               1
        UnknownOnNode         1
        RequirementsError     1
        NodeUnreachable       1
          NodeTimeout         1

``trainctl explain CODE`` explains the code of an error. Errors never contain secrets.
"""

from __future__ import annotations

from typing import ClassVar


class TrainctlError(Exception):
    """Base class of all errors.

    ``summary`` is one short line, ``detail`` says what to do, ``address`` names the resource. ``code`` names the
    cause more precisely than the class; ``errors.md`` explains every code.
    """

    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False
    default_code: ClassVar[str] = "failed"

    def __init__(
        self,
        summary: str,
        detail: str = "",
        *,
        address: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(summary)
        self.summary = summary
        self.detail = detail
        self.address = address
        self.code = code or self.default_code

    def __str__(self) -> str:
        prefix = f"{self.address}: " if self.address else ""
        return f"{prefix}{self.summary}" + (f"\n{self.detail}" if self.detail else "")


def error_class(name: str) -> type[TrainctlError] | None:
    """Return the error class that the node program reported, None if unknown."""
    cls = globals().get(name)
    if not isinstance(cls, type) or not issubclass(cls, TrainctlError):
        return None
    return None if cls in (ManifestError, TrustError) else cls


class UsageError(TrainctlError):
    """Invalid command line."""

    exit_code = 64
    default_code = "wrong-usage"


class ManifestError(TrainctlError):
    """Invalid manifest; ``diagnostics`` holds all problems."""

    default_code = "invalid-manifest"

    def __init__(self, diagnostics: tuple[object, ...]) -> None:
        count = len(diagnostics)
        super().__init__(f"the manifest has {count} problem{'' if count == 1 else 's'}")
        self.diagnostics = diagnostics


class TrustError(TrainctlError):
    """Invalid or unsafe trust file; ``diagnostics`` holds all problems."""

    default_code = "invalid-trust"

    def __init__(self, diagnostics: tuple[object, ...]) -> None:
        super().__init__("the trust file is invalid")
        self.diagnostics = diagnostics


class LockHeld(TrainctlError):
    """Another process holds the lock of an address; the summary names its owner."""

    exit_code = 10
    default_code = "lock-held"


class StalePlan(TrainctlError):
    """The state changed after the plan was saved; the detail lists the changes."""

    exit_code = 11
    default_code = "stale-plan"


class AlreadyApplied(StalePlan):
    """Another apply of the same plan has already made this change."""


class PartialApply(TrainctlError):
    """Apply failed or skipped some steps of its plan."""

    exit_code = 12
    default_code = "partial-apply"


class PermissionDenied(TrainctlError):
    """Forbidden by a policy, a limit or missing trust."""

    exit_code = 13
    default_code = "permission-denied"


class UserInterrupt(TrainctlError):
    """Stopped by the user."""

    exit_code = 130
    default_code = "interrupted"


class StateError(TrainctlError):
    """The state can't be read or written."""

    default_code = "state-failed"


class StateMoved(StateError):
    """The state moved to another place."""

    default_code = "state-moved"


class AppendConflict(StateError):
    """Another process appended at this position first; read its entry, then retry."""

    retryable = True
    default_code = "append-conflict"


class SecretUnavailable(TrainctlError):
    """A secret store is unreachable or denies access; not for missing secrets."""

    default_code = "secret-unavailable"


class SourceError(TrainctlError):
    """A weight source can't be resolved or read; ``bare_status``: without an error code of the platform."""

    default_code = "source-failed"
    bare_status: int = 0


class SourceNotFound(SourceError):
    """No such repository, revision or file upstream."""

    default_code = "source-not-found"


class SourceDenied(SourceError):
    """Upstream rejects the credentials (401), or the account lacks permission (403)."""

    default_code = "source-denied"


class SourceUnavailable(SourceError):
    """Upstream is overloaded or failing (429, 5xx); ``retry_after`` is in seconds."""

    retryable = True
    default_code = "source-unavailable"

    def __init__(
        self,
        summary: str,
        detail: str = "",
        *,
        retry_after: float | None = None,
        **context: str | None,
    ) -> None:
        super().__init__(summary, detail, **context)
        self.retry_after = retry_after


class SourceThrottled(SourceUnavailable):
    """Request not sent: upstream must not be contacted for ``retry_after`` seconds."""


class SourceInterrupted(SourceError):
    """The connection was closed or timed out before the end of the body."""

    retryable = True
    default_code = "source-interrupted"


class SourceUnreachable(SourceInterrupted):
    """No connection to upstream."""


class SourceMismatch(SourceError):
    """The received bytes don't match the announced digest or size."""

    default_code = "source-mismatch"


class StorageError(TrainctlError):
    """A disk is full, read-only or corrupt."""

    default_code = "storage-failed"


class InsufficientSpace(StorageError):
    """Weights fit on a node only after other runs there have ended."""

    default_code = "waiting-for-disk-space"


class NodeError(TrainctlError):
    """A request failed on a node; the detail holds the node's output."""

    default_code = "node-failed"


class UnknownOnNode(NodeError):
    """The object of a request is unknown on the node."""

    default_code = "unknown-on-node"


class RequirementsError(NodeError):
    """A node could not install the requirements of a job."""

    default_code = "requirements-failed"


class NodeUnreachable(NodeError):
    """No connection to a node."""

    retryable = True
    default_code = "node-unreachable"


class NodeTimeout(NodeUnreachable):
    """A process on a node was stopped because it produced no output in time."""


def missing_extra(origin: str, package: str, extra: str) -> TrainctlError:
    """Return the error for an optional package that is not installed on the client."""
    return TrainctlError(
        f"{origin} requires {package}, which is not installed",
        f"Install it: pip install 'trainctl[{extra}]'.",
        code="missing-extra",
    )
