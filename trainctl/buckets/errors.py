"""Translate obstore's errors by status, error code and the server's message."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from trainctl.base.checkpoints.s3_client import PATH_STYLE_REFUSED
from trainctl.base.http.refusals import RefusedRequest, request_error, server_message
from trainctl.base.network.http_errors import HttpError
from trainctl.base.throughput import StalledError
from trainctl.buckets.obstore_client import UNREACHABLE_PROXY
from trainctl.errors import (
    SourceDenied,
    SourceError,
    SourceInterrupted,
    SourceMismatch,
    SourceUnreachable,
)

_STATUS = re.compile(r"non-2xx status code: (\d{3})[^:]*:?(.*)", re.DOTALL)
_CODE = re.compile(r"<Code>\s*([A-Za-z0-9]{1,64})\s*</Code>")
_REDIRECTS = {302, 303, 307, 308}
_BUCKET_REGION = re.compile(
    r"<Region>([a-z0-9-]{4,32})</Region>|<Endpoint>[^<]*\.s3[.-]([a-z0-9-]{4,32})\.amazonaws\.com"
)
_ARCHIVED = {"InvalidObjectState", "BlobArchived", "BlobBeingRehydrated"}
_REGION = {
    "PermanentRedirect",
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
}


class WrongRegion(SourceError):
    """The bucket is in another ``region``, None if unknown."""

    default_code = "wrong-region"

    def __init__(self, subject: str, status_text: str, region: str | None) -> None:
        super().__init__(
            f"{subject}: the bucket is in {region or 'another region'} ({status_text})",
            'Set "aws_region" in the secret, or AWS_REGION in the environment.',
        )
        self.region = region


class PathStyleRefused(SourceError):
    """The server wants the bucket's name in the host name."""


@contextmanager
def translate_errors(subject: str, host: str, origin: str | None) -> Iterator[None]:
    """Translate obstore's errors; ``origin`` is the source of the credential."""
    try:
        yield
    except (SourceError, KeyboardInterrupt, GeneratorExit):
        raise
    except HttpError as error:
        raise request_error(error, subject) from None
    except StalledError as error:
        raise SourceInterrupted(f"{subject}: {host} is too slow ({error})") from None
    except Exception as error:
        # obstore's errors have no common base; some are builtins, such as FileNotFoundError
        translated = _translate(error, subject, host, origin)
        if translated is None:
            raise
        raise translated from None


def _translate(error: Exception, subject: str, host: str, origin: str | None) -> SourceError | None:
    kind, text, host = type(error).__name__, str(error), getattr(error, "host", "") or host
    brief = text.partition("Debug source")[0]
    if kind == "InvalidPathError" or brief.startswith("Could not parse path"):
        return _name_error(subject, brief)
    if not (type(error).__module__.startswith("obstore") or isinstance(error, OSError)):
        return None
    answer = _STATUS.search(brief)
    status = int(answer[1]) if answer else None
    code = match[1] if (match := _CODE.search(brief)) else None
    if kind in ("PreconditionError", "NotModifiedError") or status in (412, 416):
        return SourceMismatch(
            f"{subject} has changed since it was resolved", "Plan and apply again."
        )
    why = ", ".join(str(part) for part in (status, code) if part)
    if status == 301 or code in _REGION:
        return _wrong_region_error(why, subject, brief)
    if status in _REDIRECTS:
        return _redirect_error(subject, host)
    if known := _known_error(f"({why})", code, brief, subject, host):
        return known
    if answer and status:
        message = server_message({}, answer[2].encode())
        refusal = RefusedRequest(status, host, code or "", message, origin)
        # some servers answer 400 to unsigned requests
        return refusal.error(subject, 401 if status == 400 and origin is None else 0)
    return _connection_error(kind, text, subject, host)


def _known_error(
    status_text: str, code: str | None, brief: str, subject: str, host: str
) -> SourceError | None:
    """Return the error of a refusal that isn't one of the credential."""
    if PATH_STYLE_REFUSED.search(brief.encode(errors="replace")):
        return PathStyleRefused(
            f"{subject}: {host} requires virtual-hosted addresses, BUCKET.HOST {status_text}",
            "Set endpoint_url to the host name of the server, not to an IP address.",
        )
    if code in _ARCHIVED:
        return SourceDenied(
            f"{subject} is archived {status_text}",
            "Restore it first, or exclude it with ignore_patterns.",
            code="archived-source",
        )
    return None


def _connection_error(kind: str, text: str, subject: str, host: str) -> SourceError:
    """Return the error for a missing or incomplete response."""
    if "InvalidCertificate" in text or "certificate" in text:
        return SourceError(
            f"{subject}: the certificate of {host} is not trusted",
            "Set SSL_CERT_FILE to the certificates to trust.",
            code="untrusted-certificate",
        )
    if kind == "OSError" or "HttpError" in text or "error sending request" in text:
        if UNREACHABLE_PROXY in text:
            return _redirect_error(subject, host)
        error_type: type[SourceError] = SourceUnreachable
        if any(words in text for words in ("kind: Timeout", "timed out")):
            problem = "timed out waiting for"
        elif "kind: Connect" in text:
            problem = "cannot connect to"
        else:
            problem, error_type = "connection lost to", SourceInterrupted
        return error_type(
            f"{subject}: {problem} {host}", "Check the network and, behind a proxy, HTTPS_PROXY."
        )
    return SourceError(
        f"{subject}: unexpected response from {host}",
        "Check that endpoint_url points to an S3-compatible server.",
    )


def _redirect_error(subject: str, host: str) -> SourceError:
    return SourceError(
        f"{subject}: {host} redirects to another server",
        "Credentials are not sent to the other server. If it is the right server, set endpoint_url to it.",
        code="unsafe-redirect",
    )


def _wrong_region_error(status_text: str, subject: str, brief: str) -> WrongRegion:
    region = _BUCKET_REGION.search(brief)
    return WrongRegion(subject, status_text, (region[1] or region[2]) if region else None)


def _name_error(subject: str, brief: str) -> SourceError:
    path = re.search(r'[Pp]ath "((?:[^"\\]|\\.){0,300})"', brief)
    shown = f" {path[1]!r}" if path else ""
    return SourceError(
        f"{subject}: object name{shown} is not a valid file name",
        "Rename the object (no empty, . or .. parts), or use a prefix that excludes it.",
        code="unsafe-file-name",
    )
