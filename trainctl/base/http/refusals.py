"""Errors of requests: by exception, or by status, the platform's error code and the server's message."""

from __future__ import annotations

import contextlib
import json
from typing import Any, Mapping, Optional, Type

from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.network.http_errors import (
    HostThrottled,
    HttpError,
    HttpInterrupted,
    HttpUnreachable,
    UnsafeRedirect,
    UntrustedCertificate,
    UnusableProxy,
)
from trainctl.errors import (
    SourceDenied,
    SourceError,
    SourceInterrupted,
    SourceMismatch,
    SourceNotFound,
    SourceThrottled,
    SourceUnavailable,
    SourceUnreachable,
)

ERROR_BYTES = 2**14  # messages come first; error pages may be large
_MAX_MESSAGE = 300  # some lines of a terminal
_STATUS_WORDS = 3
"""Messages of so few words only repeat the status, such as ``Access Denied``."""
_XML = compile_lazily(r"<(Details|Message)>([^<]+)</\1>")
_QUERY = compile_lazily(r"\?[^\s\"'<>]+")
_MEMBERS = ("error_description", "message", "error", "errors", "detail")
_AUTH = "auth: {auth_method: CUSTOM_SECRET, auth_secret_name: NAME}"
_USE_AUTH = f"If it is private, declare a secret with read access, and name it in {_AUTH}."


class _ErrorRow(NamedTuple):
    kind: Type[SourceError]
    text: str
    advice: str = ""
    code: Optional[str] = None


# fmt: off
_ANONYMOUS = _ErrorRow(SourceDenied, "{host} requires authentication", f"Check the name. {_USE_AUTH}")
_DENIED = _ErrorRow(SourceDenied, "permission denied by {host}", "It may be expired, or lack read access. Create a new one and update the secret.")
_EXPIRED = _ErrorRow(SourceDenied, "the credential has expired", "Create a new credential, or check the clock of this machine.", code="expired-credential")
_GATED = _ErrorRow(SourceDenied, "the repository is gated", f"Accept the licence on the page of the repository, and use a token of that account: {_AUTH}.", code="gated-source")
_MISSING = _ErrorRow(SourceNotFound, "not found on {host}", f"Check the name. {_USE_AUTH}")
_NO_BUCKET = _ErrorRow(SourceNotFound, "bucket not found on {host}", "Check the name.")
_NO_FILE = _ErrorRow(SourceNotFound, "{host} lists the file, but doesn't have it at this revision", "Exclude it with ignore_patterns, or have it restored upstream.")
_NO_REVISION = _ErrorRow(SourceNotFound, "revision not found on {host}", "Use an existing branch, tag or commit after @.")
_UNPAID = _ErrorRow(SourceDenied, "the requester pays on {host}", "Set requester_pays: true; only sources can.")
_LIMITED = _ErrorRow(SourceUnavailable, "rate limited by {host}", "A token may have a higher limit.")
_PREPARING = _ErrorRow(SourceUnavailable, "{host} is still preparing the file")
_UNAVAILABLE = _ErrorRow(SourceUnavailable, "{host} is unavailable")
_REPLACED = _ErrorRow(SourceMismatch, "the file has changed since it was resolved", "Plan again.")
_OTHER = _ErrorRow(SourceError, "unexpected status from {host}", "Check that the URL and endpoint_url are those of the right server.")
# fmt: on
_BY_CODE = {
    "EntryNotFound": _NO_FILE,
    "GatedRepo": _GATED,
    "RevisionNotFound": _NO_REVISION,
    "UserProjectMissing": _UNPAID,
    **dict.fromkeys(("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"), _EXPIRED),
    **dict.fromkeys(("InvalidAccessKeyId", "SignatureDoesNotMatch"), _DENIED),
    **dict.fromkeys(("NoSuchBucket", "ContainerNotFound", "InvalidBucketName"), _NO_BUCKET),
    **dict.fromkeys(("RequestTimeTooSkewed", "SlowDown"), _UNAVAILABLE),
}
_BY_STATUS = {
    202: _PREPARING,
    429: _LIMITED,
    **dict.fromkeys((401, 403), _DENIED),
    **dict.fromkeys((404, 410), _MISSING),
    **dict.fromkeys((412, 416), _REPLACED),
    **dict.fromkeys((408, 425, 500, 502, 503, 504), _UNAVAILABLE),
}

_CODES = {
    UnsafeRedirect: "unsafe-redirect",
    UntrustedCertificate: "untrusted-certificate",
    UnusableProxy: "unusable-proxy",
}


def request_error(error: HttpError, subject: str) -> SourceError:
    """Return the error of a request without a response."""
    summary = f"{subject}: {error.reason}"
    if isinstance(error, HostThrottled):
        return SourceThrottled(summary, retry_after=error.retry_after)
    if isinstance(error, HttpUnreachable):
        return SourceUnreachable(summary, error.advice)
    if isinstance(error, HttpInterrupted):
        return SourceInterrupted(summary, error.advice)
    if isinstance(error, UnusableProxy):
        summary = error.reason
    return SourceError(summary, error.advice, code=_CODES.get(type(error)))


class RefusedRequest(NamedTuple):
    """A response that isn't the requested one. ``origin``: that of the credential, or empty; None without one."""

    status: int
    host: str
    code: str
    message: str
    origin: Optional[str]

    def error(self, subject: str, acts_as: int = 0) -> SourceError:
        """Return the error, as for status ``acts_as``; the server's message replaces advice that it may contradict."""
        row = _BY_CODE.get(self.code) or _BY_STATUS.get(acts_as or self.status, _OTHER)
        explained = len(self.message.split()) > _STATUS_WORDS
        if row is _DENIED and self.origin is None and not (explained and self.status != 401):
            row = _ANONYMOUS
        kind, text, advice, code = row
        if self.origin is not None:
            advice = "" if row is _LIMITED else advice.replace(_USE_AUTH, "").strip()
        guesses = (_DENIED, _MISSING, _OTHER, *((_GATED,) if self.origin is not None else ()))
        if explained and row in guesses:
            advice = _USE_AUTH if self.origin is None and (row is _MISSING or acts_as) else ""
        if self.origin and kind is SourceDenied:
            advice = f"The credential was read from {self.origin}. {advice}".strip()
        why = f"{self.status}, {self.code}" if self.code else self.status
        said = f": {self.message}" if self.message else ""
        return kind(f"{subject}: {text.format(host=self.host)} ({why}){said}", advice, code=code)


def server_message(headers: Mapping[str, str], body: bytes) -> str:
    """Return what the server says about an error, in one line without queries of URLs, or ``""``."""
    text = body.decode("utf-8", "replace").strip()
    message = headers.get("X-Error-Message") or ""
    if not message and text.startswith(("{", "[", '"')):
        with contextlib.suppress(ValueError, RecursionError):
            message = _json_message(json.loads(text))
    if not message and (found := dict(reversed(_XML.findall(text)))):
        import html  # its table of names is large

        message = html.unescape(found.get("Details") or found["Message"])
    if not message and (headers.get("Content-Type") or "").startswith("text/plain"):
        message = text
    message = _QUERY.sub("?…", " ".join(message.strip().partition("\n")[0].split())).rstrip(".")
    return "".join(filter(str.isprintable, message[:_MAX_MESSAGE]))


def _json_message(value: Any) -> str:
    if isinstance(value, list):
        return _json_message(value[0]) if value else ""
    if isinstance(value, dict):
        return next(filter(None, (_json_message(value.get(name)) for name in _MEMBERS)), "")
    return value if isinstance(value, str) else ""
