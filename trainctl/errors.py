"""Every error that trainctl raises on purpose, and the exit code each one means.

TrainctlError                  1    failed
├── UsageError                64    a command was called wrongly
├── ManifestError              1    the manifest is wrong; carries every diagnostic
├── TrustError                 1    the user's trust file is wrong; carries every diagnostic
├── Busy                      10    an address or state is being changed by another
├── StalePlan                 11    the world moved since the plan was saved
├── PartialApply                12    something failed or was left alone
├── Forbidden                 13    a policy, limit or missing trust forbids it
├── Interrupted              130    the user stopped it
├── StateError                 1    the state can't be read or written
│   └── AppendConflict          1    someone else appended at that position first
├── SecretUnavailable             1    who keeps a secret was asked, and doesn't give it
├── SourceError                1    a weight source can't be resolved or read
│   ├── SourceNotFound             1    404: no such repository, revision or file
│   ├── SourceDenied           1    401 or 403
│   ├── SourceUnavailable             1    429 or 5xx; may be tried again after ``retry_after``
│   │   └── SourceThrottled      1    it asked another request of ours for a pause: this one was not made
│   ├── SourceInterrupted              1    the connection ended early or fell silent; may be tried again
│   └── SourceMismatch            1    the bytes are not what upstream said they are
├── StorageError               1    this machine's or a node's disk is full, read-only or damaged
└── NodeError                  1    a node did not do what it was asked
    ├── UnknownOnNode             1    it knows nothing of what it was asked about
    ├── RequirementsError     1    it could not make the environment of a job
    └── NodeUnreachable        1    it could not even be asked; may be tried again
        └── NodeTimeout         1    what was begun there said nothing for too long

An error says where, what is wrong and what to do instead, under a code that ``trainctl explain`` explains. It never holds a
secret.
"""

from __future__ import annotations

from typing import ClassVar


class TrainctlError(Exception):
    """Something failed. ``summary`` is one short line, ``detail`` says what to do, ``address`` names the resource.

    ``code`` names the cause where the class alone does not; ``errors.md`` explains every code.
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
        where = f"{self.address}: " if self.address else ""
        return f"{where}{self.summary}" + (f"\n{self.detail}" if self.detail else "")


def error_class(kind: str) -> type[TrainctlError] | None:
    """The class of that name, of an error that another program of ours reported; None where it is none of these."""
    found = globals().get(kind)
    ours = (
        isinstance(found, type)
        and issubclass(found, TrainctlError)
        and found not in (ManifestError, TrustError)
    )
    return found if ours else None


class UsageError(TrainctlError):
    """A command was called wrongly."""

    exit_code = 64
    default_code = "wrong-usage"


class ManifestError(TrainctlError):
    """The manifest is wrong. ``diagnostics`` holds everything that is, not the first thing only."""

    default_code = "invalid-manifest"

    def __init__(self, diagnostics: tuple[object, ...]) -> None:
        super().__init__(
            f"the manifest has {len(diagnostics)} problem{'s' if len(diagnostics) != 1 else ''}"
        )
        self.diagnostics = diagnostics


class TrustError(TrainctlError):
    """The user's trust file is wrong, or somebody else may have written it. ``diagnostics`` holds everything that is."""

    default_code = "invalid-trust"

    def __init__(self, diagnostics: tuple[object, ...]) -> None:
        super().__init__("the trust file is invalid")
        self.diagnostics = diagnostics


class LockHeld(TrainctlError):
    """An address is being changed by another; the summary says by whom, since when and until when."""

    exit_code = 10
    default_code = "lock-held"


class StalePlan(TrainctlError):
    """What a saved plan was made for is not what is there any more; the detail lists what moved."""

    exit_code = 11
    default_code = "stale-plan"


class AlreadyApplied(StalePlan):
    """Another apply of the very same plan has made this change already, and its outcome stands."""


class PartialApply(TrainctlError):
    """Apply did part of its plan: something failed or was left alone."""

    exit_code = 12
    default_code = "partial-apply"


class PermissionDenied(TrainctlError):
    """A policy, a limit or missing trust forbids it."""

    exit_code = 13
    default_code = "permission-denied"


class UserInterrupt(TrainctlError):
    """The user stopped it."""

    exit_code = 130
    default_code = "interrupted"


class StateError(TrainctlError):
    """The state can't be read or written."""

    default_code = "state-failed"


class AppendConflict(StateError):
    """Someone else appended at that position first: read on from there and decide again."""

    retryable = True
    default_code = "append-conflict"


class SecretUnavailable(TrainctlError):
    """Who keeps a secret was asked, and doesn't give it: it is away, or refuses. What isn't there, or is malformed, is none of these."""

    default_code = "secret-unavailable"


class SourceError(TrainctlError):
    """A weight source can't be resolved or read."""

    default_code = "source-failed"


class SourceNotFound(SourceError):
    """No such repository, revision or file upstream."""

    default_code = "source-not-found"


class SourceDenied(SourceError):
    """Upstream wants other credentials, or the account may not read this."""

    default_code = "source-denied"


class SourceUnavailable(SourceError):
    """Upstream asks to come back later; ``retry_after`` is in seconds where it said so."""

    retryable = True
    default_code = "source-unavailable"

    def __init__(
        self,
        summary: str,
        detail: str = "",
        *,
        address: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(summary, detail, address=address, code=code)
        self.retry_after = retry_after


class SourceThrottled(SourceUnavailable):
    """Upstream asked another request for a pause that lasts for ``retry_after`` seconds more; whoever was asked has told so."""


class SourceInterrupted(SourceError):
    """The connection ended before the body did, or fell silent."""

    retryable = True
    default_code = "source-interrupted"


class SourceUnreachable(SourceInterrupted):
    """Nobody answered at all."""


class SourceMismatch(SourceError):
    """The bytes received are not those whose digest or size upstream announced."""

    default_code = "source-mismatch"


class StorageError(TrainctlError):
    """A disk is full, read-only or damaged."""

    default_code = "storage-failed"


class InsufficientSpace(StorageError):
    """Weights would fit on a node once the runs that have theirs there have ended."""

    default_code = "waiting-for-disk-space"


class NodeError(TrainctlError):
    """A node did not do what it was asked; the detail holds what it said."""

    default_code = "node-failed"


class UnknownOnNode(NodeError):
    """A node knows nothing, or nothing any more, of what it was asked about."""

    default_code = "unknown-on-node"


class RequirementsError(NodeError):
    """A node could not make the environment that a job's requirements are."""

    default_code = "requirements-failed"


class NodeUnreachable(NodeError):
    """A node could not be asked."""

    retryable = True
    default_code = "node-unreachable"


class NodeTimeout(NodeUnreachable):
    """What was begun on a node said nothing for so long that it was ended."""


def missing_extra(origin: str, package: str, extra: str) -> TrainctlError:
    """An optional package isn't installed where trainctl runs."""
    return TrainctlError(
        f"{origin} requires {package}, which is not installed",
        f"Install it: pip install 'trainctl[{extra}]'.",
        code="missing-extra",
    )
