"""HTTP statuses as errors that say what to do."""

from __future__ import annotations

from typing import Mapping

from trainctl.base.http.limits import retry_after
from trainctl.errors import SourceBusy, SourceDenied, SourceError, SourceGone, SourceWrong

_PASSING = {408, 425, 429, 500, 502, 503, 504}


def error_for(
    status: int, headers: Mapping[str, str], what: str, host: str, token: str | None
) -> SourceError:
    """The error that a status means. ``token`` only decides what to advise and is never shown."""
    if status == 429:
        return SourceBusy(
            f"{what}: {host} asks for fewer requests (429)",
            "" if token else "It may allow more to those who send a token.",
            retry_after=retry_after(headers),
        )
    if status in _PASSING:
        return SourceBusy(
            f"{what}: {host} can't answer now ({status})", retry_after=retry_after(headers)
        )
    if headers.get("X-Error-Code") == "GatedRepo":
        return _gated(what, token)
    if status in (401, 403):
        return _denied(what, host, status, token)
    if status in (404, 410):
        return _gone(what, host, status, headers.get("X-Error-Code"), token)
    if status in (412, 416):
        return SourceWrong(f"{what}: it has changed since it was resolved", "Plan again.")
    return SourceError(
        f"{what}: {host} answered {status}", "It may not be the server that this source is on."
    )


_USE_AUTH = (
    "Declare a secret with a token that may read it, and name it in the source's "
    "auth: {auth_method: CUSTOM_SECRET, auth_secret_name: NAME}."
)


def _gated(what: str, token: str | None) -> SourceError:
    accept = "Accept its licence on its Hugging Face page with the account that reads it"
    if token is None:
        return SourceDenied(
            f"{what}: the repository is gated and no token was sent",
            f"{accept}. {_USE_AUTH}",
            code="gated-source",
        )
    return SourceDenied(
        f"{what}: the repository is gated and the token's account has no access",
        f"{accept}, or use a token of one that has access.",
        code="gated-source",
    )


def _denied(what: str, host: str, status: int, token: str | None) -> SourceError:
    if token is None:
        return SourceDenied(
            f"{what}: {host} wants a credential ({status}); it may be private, or not exist",
            f"Check its name. {_USE_AUTH}",
        )
    return SourceDenied(
        f"{what}: {host} refused the token ({status})",
        "It may have expired, or not be allowed to read this; make a new one and change the secret.",
    )


def _gone(what: str, host: str, status: int, code: str | None, token: str | None) -> SourceError:
    if code == "RevisionNotFound":
        return SourceGone(
            f"{what}: {host} has no such revision (404)",
            "Write an existing branch, tag or commit after @.",
        )
    if code == "EntryNotFound":
        return SourceGone(
            f"{what}: {host} lists the file and does not have it at this revision (404)",
            "Leave it out with ignore_patterns, or have it put back upstream.",
        )
    private = f" If it is private: {_USE_AUTH[0].lower()}{_USE_AUTH[1:]}" if token is None else ""
    return SourceGone(f"{what}: {host} does not have it ({status})", f"Check its name.{private}")
