"""What obstore raises, as our errors: by status and by the platform's own code, never with its text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from trainctl.base.throughput import StalledError
from trainctl.errors import (
    SourceDenied,
    SourceError,
    SourceInterrupted,
    SourceMismatch,
    SourceNotFound,
    SourceUnavailable,
    SourceUnreachable,
)
from trainctl.objects.obstore_client import UNREACHABLE_PROXY

_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_CODE = re.compile(r"<Code>\s*([A-Za-z0-9]{1,64})\s*</Code>")
_TRANSIENT_STATUSES = {408, 425, 429, 500, 502, 503, 504}
_REDIRECTS = {302, 303, 307, 308}
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"}
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound", "InvalidBucketName"}
_BUCKET_REGION = re.compile(
    r"<Region>([a-z0-9-]{4,32})</Region>|<Endpoint>[^<]*\.s3[.-]([a-z0-9-]{4,32})\.amazonaws\.com"
)
_REGION = {
    "PermanentRedirect",
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
}


class WrongRegion(SourceError):
    """A bucket of S3 is in another region than requests were signed for; which one, where the server says so."""

    default_code = "wrong-region"

    def __init__(self, what: str, said: str, region: str | None) -> None:
        super().__init__(
            f"{what}: the bucket is in {region or 'another region'} ({said})",
            'Set "aws_region" in the secret, or AWS_REGION in the environment.',
        )
        self.region = region


@contextmanager
def translate_errors(what: str, host: str, origin: str | None) -> Iterator[None]:
    """Raise our errors for obstore's. ``what`` is the thing, ``origin`` where its credential came from, if one was sent."""
    try:
        yield
    except (SourceError, KeyboardInterrupt, GeneratorExit):
        raise
    except StalledError as error:
        raise SourceInterrupted(f"{what}: {host} is too slow ({error})") from None
    except Exception as error:
        # obstore's errors have no base of their own: some are builtins, such as FileNotFoundError.
        found = _translate(error, what, host, origin)
        if found is None:
            raise
        raise found from None


def _translate(error: Exception, what: str, host: str, origin: str | None) -> SourceError | None:
    kind, text = type(error).__name__, str(error)
    brief = text.partition("Debug source")[0]
    if kind == "InvalidPathError" or brief.startswith("Could not parse path"):
        return _name_error(what, brief)
    if not (type(error).__module__.startswith("obstore") or isinstance(error, OSError)):
        return None
    status = int(found[1]) if (found := _STATUS.search(brief)) else None
    code = found[1] if (found := _CODE.search(brief)) else None
    if kind in ("PreconditionError", "NotModifiedError") or status in (412, 416):
        return SourceMismatch(f"{what} has changed since it was resolved", "Plan and apply again.")
    if status == 301 or code in _REGION:
        return _wrong_region_error(f"{status}, {code}" if code else str(status), what, brief)
    if status in _REDIRECTS:
        return _redirect_error(what, host)
    if status is not None:
        return error_for_status(status, code, what, host, origin)
    return _connection_error(kind, text, what, host)


def _connection_error(kind: str, text: str, what: str, host: str) -> SourceError:
    """The error without a status: no response, or an incomplete one."""
    if "InvalidCertificate" in text or "certificate" in text:
        return SourceError(
            f"{what}: the certificate of {host} is not trusted",
            "Set SSL_CERT_FILE to the certificates to trust.",
            code="untrusted-certificate",
        )
    if _is_network_error(kind, text):
        if UNREACHABLE_PROXY in text:
            return _redirect_error(what, host)
        silent = "kind: Timeout" in text or "timed out" in text
        away = "kind: Connect" in text
        happened = (
            "timed out waiting for"
            if silent
            else "cannot connect to"
            if away
            else "connection lost to"
        )
        made = SourceUnreachable if silent or away else SourceInterrupted
        return made(
            f"{what}: {happened} {host}", "Check the network and, behind a proxy, HTTPS_PROXY."
        )
    return SourceError(
        f"{what}: unexpected response from {host}",
        "Check that endpoint_url points to an S3-compatible server.",
    )


def error_for_status(
    status: int, code: str | None, what: str, host: str, origin: str | None
) -> SourceError:
    """The error that a status, and the platform's code beside it, mean."""
    said = f"{status}, {code}" if code else str(status)
    if status in _TRANSIENT_STATUSES or code in ("SlowDown", "RequestTimeTooSkewed"):
        return SourceUnavailable(f"{what}: {host} is unavailable ({said})")
    if code in _EXPIRED:
        return SourceDenied(
            f"{what}: the credential has expired ({said})",
            f"It was read from {origin}. Create a new credential, or check the clock of this machine.",
            code="expired-credential",
        )
    if code in _NO_BUCKET:
        return SourceNotFound(f"{what}: bucket not found on {host} ({said})", "Check the name.")
    # Some servers call a request that isn't signed a bad one.
    unsigned = status == 400 and origin is None
    if status in (401, 403) or unsigned or code in ("InvalidAccessKeyId", "SignatureDoesNotMatch"):
        return _denied_error(what, host, said, origin)
    if status in (404, 410):
        return SourceNotFound(f"{what}: not found on {host} ({said})", "Check the name.")
    return SourceError(
        f"{what}: {host} answered {said}",
        "Check that endpoint_url points to an S3-compatible server.",
    )


def _redirect_error(what: str, host: str) -> SourceError:
    return SourceError(
        f"{what}: {host} redirects to another server",
        "Credentials are not sent to the other server. If it is the right server, set endpoint_url to it.",
        code="unsafe-redirect",
    )


def _wrong_region_error(said: str, what: str, brief: str) -> WrongRegion:
    region = _BUCKET_REGION.search(brief)
    return WrongRegion(what, said, (region[1] or region[2]) if region else None)


def _denied_error(what: str, host: str, said: str, origin: str | None) -> SourceDenied:
    if origin is None:
        return SourceDenied(
            f"{what}: {host} requires authentication ({said}), and no credential was sent",
            "Declare a secret with read access, and name it in auth: {auth_method: CUSTOM_SECRET, auth_secret_name: NAME}.",
        )
    return SourceDenied(
        f"{what}: permission denied by {host} ({said})",
        f"The credential was read from {origin}. Check that it is valid and may list and read this bucket.",
    )


def _name_error(what: str, brief: str) -> SourceError:
    path = re.search(r'[Pp]ath "((?:[^"\\]|\\.){0,300})"', brief)
    shown = f" {path[1]!r}" if path else ""
    return SourceError(
        f"{what}: object name{shown} is not a valid file name",
        "Rename the object (no empty, . or .. parts), or use a prefix that excludes it.",
        code="unsafe-file-name",
    )


def _is_network_error(kind: str, text: str) -> bool:
    return "HttpError" in text or "error sending request" in text or kind == "OSError"
