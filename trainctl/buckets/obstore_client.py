"""Open obstore clients (location, credential, timeouts, proxies, certificates), and translate their errors."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from trainctl.base.checkpoints.s3 import PATH_STYLE_REFUSED
from trainctl.base.http.refusals import RefusedRequest, request_error, server_message
from trainctl.base.lazy_dataclass import dataclass, field
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.network.http_errors import HttpError
from trainctl.base.throughput import StalledError
from trainctl.buckets.credentials import (
    AwsKeys,
    AzureKey,
    AzurePrincipal,
    AzureSas,
    BearerToken,
    BucketCredential,
    ServiceAccount,
)
from trainctl.buckets.location import BucketLocation, entra_authority
from trainctl.errors import (
    SourceDenied,
    SourceError,
    SourceInterrupted,
    SourceMismatch,
    SourceUnreachable,
)
from trainctl.model.single_flight import SingleFlight

if TYPE_CHECKING:
    from obstore.store import AzureStore, GCSStore, S3Store

    ObstoreClient = S3Store | GCSStore | AzureStore

SILENCE_SECONDS = 30.0
RENEWAL_MARGIN = timedelta(minutes=2)
"""Time before its expiry when a credential is renewed."""
MIN_BYTES_PER_SECOND = 2**17
"""Slowest upload before it times out."""
UNREACHABLE_PROXY = "127.0.0.1:0"
"""An address on which nothing can listen."""
_CONNECT_SECONDS = 5.0  # a server that is up answers within one round trip
_NO_END = timedelta(days=30)
_HOST_NAME = compile_lazily(r"([a-z0-9_-]+\.)*[a-z][a-z0-9-]*")
_CERTIFICATES = (
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "AWS_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
)
"""Variables that name certificate files or directories, trusted in addition to the system's."""


@dataclass(frozen=True)
class BucketSettings:
    """How requests of a bucket are sent; without ``access`` they are not signed.

    ``read_timeout``: longest wait for a byte, in seconds.
    """

    location: BucketLocation
    access: BucketCredential | None
    environ: Mapping[str, str] = field(repr=False)
    read_timeout: float

    @property
    def region(self) -> str:
        """The region to sign requests for."""
        if self.location.scheme == "r2":
            return "auto"
        declared = self.access.region if isinstance(self.access, AwsKeys) else None
        default = self.environ.get("AWS_REGION") or self.environ.get("AWS_DEFAULT_REGION")
        return declared or default or "us-east-1"

    @property
    def endpoint(self) -> str:
        """The server's URL, without a trailing ``/``; with virtual-hosted addresses the bucket's."""
        location, region = self.location, self.region
        suffix = ".cn" if region.startswith("cn-") else ""
        host = f"s3.{region}.amazonaws.com{suffix}" if location.scheme == "s3" else location.host
        endpoint = self._configured_endpoint or f"https://{host}"
        return (
            endpoint.replace("://", f"://{location.bucket}.", 1) if location.virtual else endpoint
        )

    @property
    def billing_headers(self) -> Mapping[str, str]:
        """Headers that say who pays for requests; Google bills a project."""
        if not self.location.requester_pays:
            return {}
        if self.location.scheme == "s3":
            return {"x-amz-request-payer": "requester"}
        names = ("GOOGLE_CLOUD_QUOTA_PROJECT", "GOOGLE_CLOUD_PROJECT")
        own = getattr(self.access, "project", None)
        project = next(filter(None, (*map(self.environ.get, names), own)), None)
        if project is None:
            raise SourceError(
                f"{self.location.url}: no project to bill for requester_pays",
                "Set GOOGLE_CLOUD_PROJECT to the project.",
            )
        return {"x-goog-user-project": project}

    @property
    def custom_endpoint(self) -> str | None:
        """The server's URL if it is not the platform's own."""
        configured = self._configured_endpoint
        return None if configured is None or self.location.is_own(configured) else configured

    @property
    def _configured_endpoint(self) -> str | None:
        """The endpoint of the caller, the environment or the credential."""
        endpoint, access = self.location.endpoint, self.access
        if endpoint is None and isinstance(access, (AzureKey, AzureSas)) and access.endpoint:
            return access.endpoint.rstrip("/")
        return endpoint

    def url(self, key: str) -> str:
        """Return the unsigned URL of an object; of the bucket if ``key`` is empty."""
        location = self.location
        bucket, prefix = "" if location.virtual else location.bucket, location.prefix if key else ""
        path = quote("/".join(filter(None, (bucket, prefix, key))), safe="/~")
        return f"{self.endpoint}/{path}"


def open_client(settings: BucketSettings, *, long: bool = False, sent: int = 0) -> ObstoreClient:
    """Open a client of the bucket.

    A request may take twice the ``read_timeout``, unless ``long``. obstore counts the time of an upload as waiting, so
    the timeout grows with the bytes to be ``sent``.
    """
    location, environ = settings.location, settings.environ
    read_timeout = settings.read_timeout + sent / MIN_BYTES_PER_SECOND
    options: dict[str, Any] = {
        "timeout": _NO_END if long else timedelta(seconds=2 * read_timeout),
        "connect_timeout": timedelta(seconds=min(read_timeout, _CONNECT_SECONDS)),
        "read_timeout": timedelta(seconds=read_timeout),
        "allow_http": (location.endpoint or "").startswith("http://"),
        "user_agent": "trainctl",
    }
    if location.scheme == "gs":
        # otherwise Google decompresses objects that are stored with Content-Encoding: gzip
        options["default_headers"] = {"Accept-Encoding": "gzip", **settings.billing_headers}
    if certificates := read_certificates(environ):
        options["root_certificate"] = certificates
    if settings.access is not None:
        also = [entra_authority(environ)] if isinstance(settings.access, AzurePrincipal) else []
        options |= _block_other_hosts(settings.endpoint, *also)
    common: dict[str, Any] = {
        "prefix": location.prefix or None,
        "client_options": options,
        "retry_config": {"max_retries": 0},
    }
    return _CONNECT[location.scheme](settings, common)


def _s3(settings: BucketSettings, common: dict[str, Any]) -> ObstoreClient:
    from obstore.store import S3Store

    location, access, endpoint = settings.location, settings.access, settings.endpoint
    auth: dict[str, Any] = {"skip_signature": True}
    if isinstance(access, AwsKeys):
        # as obstore's callbacks return it; ``Bucket`` renews it, with a new client
        keys = {
            "access_key_id": access.key_id,
            "secret_access_key": access.secret,
            "token": access.session,
            "expires_at": None,
        }
        auth = {"skip_signature": False, "credential_provider": lambda: keys}
    if location.encryption:
        auth["server_side_encryption"] = location.encryption
    if location.kms_key:
        auth["sse_kms_key_id"] = location.kms_key
    return S3Store(
        location.bucket,
        region=settings.region,
        aws_endpoint_url_s3=endpoint,
        endpoint=endpoint,
        virtual_hosted_style_request=location.virtual,
        request_payer=location.requester_pays,
        conditional_put="etag",
        **auth,
        **common,
    )


_NO_SERVICE_ACCOUNT = (
    '{"disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": ""}'
)
"""Keeps obstore from reading GOOGLE_SERVICE_ACCOUNT_KEY."""


def _gs(settings: BucketSettings, common: dict[str, Any]) -> ObstoreClient:
    from obstore.store import GCSStore

    location, access = settings.location, settings.access
    # obstore signs writes regardless, and would request a token from the metadata server
    auth: dict[str, Any] = {
        "skip_signature": True,
        "credential_provider": partial(_bearer_options, BearerToken("")),
        "service_account_key": _NO_SERVICE_ACCOUNT,
    }
    if isinstance(access, ServiceAccount) and not location.emulated:
        auth = {"skip_signature": False, "service_account_key": access.document}
    elif isinstance(access, BearerToken) and not location.emulated:
        auth = {
            "skip_signature": False,
            "credential_provider": partial(_bearer_options, access),
            "service_account_key": _NO_SERVICE_ACCOUNT,
        }
    if location.endpoint:
        auth["base_url"] = location.endpoint
    return GCSStore(location.bucket, **auth, **common)


def _azure(settings: BucketSettings, common: dict[str, Any]) -> ObstoreClient:
    from obstore.store import AzureStore

    location, access, endpoint = settings.location, settings.access, settings.endpoint
    account = access.account if isinstance(access, (AzureKey, AzureSas)) else None
    if account not in (None, location.account):
        raise SourceDenied(
            f"the credential is for the storage account {account!r}, but the bucket is {location.url}",
            f"Use azure://{account}/CONTAINER, or name the secret of {location.account}.",
            code="unusable-secret",
        )
    # otherwise obstore reads the environment's key, and fails if that is malformed
    auth: dict[str, Any] = {"account_key": ""}
    if isinstance(access, AzureKey):
        auth = {"credential_type": "access_key", "account_key": access.key}
    elif isinstance(access, AzureSas):
        auth = {"credential_type": "sas_token", "sas_key": access.query}
    elif isinstance(access, AzurePrincipal):
        auth = {
            "credential_type": "client_secret",
            "tenant_id": access.tenant,
            "client_id": access.client,
            "client_secret": access.secret,
        }
    elif isinstance(access, BearerToken):
        auth = {"credential_provider": partial(_bearer_options, access)}
    common["client_options"]["allow_http"] = endpoint.startswith("http://")
    return AzureStore(
        location.bucket,
        account_name=location.account,
        endpoint=endpoint,
        skip_signature=access is None,
        **auth,
        **common,
    )


_CONNECT = {"s3": _s3, "r2": _s3, "gs": _gs, "azure": _azure}


def _bearer_options(access: BearerToken) -> dict[str, Any]:
    return {"token": access.token, "expires_at": None}


def is_expired(access: BucketCredential | None) -> bool:
    """Return whether a credential expires before the end of a request that begins now."""
    expires_at = getattr(access, "expires_at", None)
    return expires_at is not None and expires_at - RENEWAL_MARGIN <= datetime.now(UTC)


def _block_other_hosts(*servers: str) -> dict[str, str]:
    """Return options that make obstore's redirects fail.

    obstore can't disable redirects, so all other hosts get a proxy that doesn't exist. Empty if the environment sets a
    proxy for one of the servers, as there can be only one, or if a host name is not in plain form.
    """
    import urllib.request

    hosts = []
    for part in map(urlsplit, servers):
        has_proxy = not {part.scheme, "all"}.isdisjoint(urllib.request.getproxies())
        if has_proxy and not urllib.request.proxy_bypass(part.netloc):
            return {}
        hosts.append(part.hostname or "")
        try:
            ipaddress.IPv4Address(hosts[-1])
        except ValueError:
            if not _HOST_NAME.fullmatch(hosts[-1]):
                return {}
    return {"proxy_url": f"http://{UNREACHABLE_PROXY}", "proxy_excludes": ",".join(hosts)}


_READ: SingleFlight[bytes] = SingleFlight(forget_errors=True)


def read_certificates(environ: Mapping[str, str]) -> bytes:
    """Return the certificates that variables name; SourceError if one can't be read."""
    named = tuple((name, environ[name]) for name in _CERTIFICATES if environ.get(name))
    return _READ.get(named, lambda: b"\n".join(starmap(_read, named)))


def _read(name: str, location: str) -> bytes:
    path = Path(location)
    try:
        if path.is_dir():
            texts = (file.read_bytes() for file in sorted(path.iterdir()) if file.is_file())
            return b"\n".join(text for text in texts if b"BEGIN CERTIFICATE" in text)
        return path.read_bytes()
    except OSError as error:
        raise SourceError(
            f"cannot read certificates from {location}, named by {name} ({error.strerror})",
            "Set it to a PEM file or a directory of PEM files, or unset it.",
            code="untrusted-certificate",
        ) from None


_STATUS = compile_lazily(r"non-2xx status code: (\d{3})[^:]*:?(.*)", re.DOTALL)
_CODE = compile_lazily(r"<Code>\s*([A-Za-z0-9]{1,64})\s*</Code>")
_REDIRECTS = {302, 303, 307, 308}
_BUCKET_REGION = compile_lazily(
    r"<Region>([a-z0-9-]{4,32})</Region>|<Endpoint>[^<]*\.s3[.-]([a-z0-9-]{4,32})\.amazonaws\.com"
)
_ARCHIVED = {"InvalidObjectState", "BlobArchived", "BlobBeingRehydrated"}
_REGION_CODES = {
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
        path = re.search(r'[Pp]ath "((?:[^"\\]|\\.){0,300})"', brief)
        shown = f" {path[1]!r}" if path else ""
        return SourceError(
            f"{subject}: object name{shown} is not a valid file name",
            "Rename the object (no empty, . or .. parts), or use a prefix that excludes it.",
            code="unsafe-file-name",
        )
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
    if status == 301 or code in _REGION_CODES:
        region = _BUCKET_REGION.search(brief)
        return WrongRegion(subject, why, (region[1] or region[2]) if region else None)
    if status in _REDIRECTS:
        return _redirect_error(subject, host)
    if PATH_STYLE_REFUSED.search(brief.encode(errors="replace")):
        return PathStyleRefused(
            f"{subject}: {host} requires virtual-hosted addresses, BUCKET.HOST ({why})",
            "Set endpoint_url to the host name of the server, not to an IP address.",
        )
    if code in _ARCHIVED:
        return SourceDenied(
            f"{subject} is archived ({why})",
            "Restore it first, or exclude it with ignore_patterns.",
            code="archived-source",
        )
    if answer and status:
        message = server_message({}, answer[2].encode())
        refusal = RefusedRequest(status, host, code or "", message, origin)
        # some servers answer 400 to unsigned requests
        return refusal.error(subject, 401 if status == 400 and origin is None else 0)
    return _connection_error(kind, text, subject, host)


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
