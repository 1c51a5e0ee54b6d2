"""obstore's clients: location, credential, time limits, proxies and certificates."""

from __future__ import annotations

import ipaddress
import os
import re
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from trainctl.errors import SourceDenied, SourceError
from trainctl.objects.credentials import (
    AwsKeys,
    AzureKey,
    AzurePrincipal,
    AzureSas,
    BearerToken,
    BucketCredential,
    ServiceAccount,
)
from trainctl.objects.location import BucketLocation, entra_authority

if TYPE_CHECKING:
    from obstore.store import AzureStore, GCSStore, S3Store

    ObstoreClient = S3Store | GCSStore | AzureStore

RenewFn = Callable[[], BucketCredential]

SILENCE_SECONDS = 30.0
RENEWAL_MARGIN = timedelta(minutes=2)
"""How long before its end a credential is replaced."""
MIN_BYTES_PER_SECOND = 2**17
"""In a second: what is sent more slowly is given up."""
UNREACHABLE_PROXY = "127.0.0.1:0"
"""An address where nothing can listen."""
_CONNECT_SECONDS = 5.0
_NO_END = timedelta(days=30)
_HOST_NAME = re.compile(r"([a-z0-9_-]+\.)*[a-z][a-z0-9-]*")
_CERTIFICATES = (
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "AWS_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
)
"""What names certificates, files or directories; they are trusted beside the system's."""


def open_client(
    place: BucketLocation,
    access: BucketCredential | None,
    renew: RenewFn | None = None,
    environ: Mapping[str, str] = os.environ,
    read_timeout: float = SILENCE_SECONDS,
    *,
    long: bool = False,
    sent: int = 0,
) -> ObstoreClient:
    """A client of the bucket, below its prefix. Without access no request is signed, whatever the environment holds.

    ``read_timeout`` is the longest wait for a byte, in seconds; a whole request may take twice that, unless it is a ``long`` one.
    For obstore a server is silent while it is sent something, so the wait grows with the bytes to send.
    """
    read_timeout += sent / MIN_BYTES_PER_SECOND
    common: dict[str, Any] = {
        "prefix": place.prefix or None,
        "client_options": _options(place, environ, read_timeout, long=long),
        "retry_config": {"max_retries": 0},
    }
    if access is not None:
        also = [entra_authority(environ)] if isinstance(access, AzurePrincipal) else []
        common["client_options"] |= _block_other_hosts(endpoint_of(place, access, environ), *also)
    return _CONNECT[place.scheme](place, access, renew, environ, common)


def region_of(
    place: BucketLocation, access: BucketCredential | None, environ: Mapping[str, str] = os.environ
) -> str:
    """The region that requests are signed for."""
    if place.scheme == "r2":
        return "auto"
    declared = access.region if isinstance(access, AwsKeys) else None
    usual = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    return declared or usual or "us-east-1"


def endpoint_of(
    place: BucketLocation, access: BucketCredential | None, environ: Mapping[str, str] = os.environ
) -> str:
    """The server that requests go to, without a ``/`` at its end."""
    if named := _configured_endpoint(place, access):
        return named
    if place.scheme != "s3":
        return f"https://{place.host}"
    region = region_of(place, access, environ)
    return f"https://s3.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}"


def custom_endpoint(place: BucketLocation, access: BucketCredential | None) -> str | None:
    """The same where it is not the platform's own."""
    named = _configured_endpoint(place, access)
    return None if named is None or place.is_own(named) else named


def _configured_endpoint(place: BucketLocation, access: BucketCredential | None) -> str | None:
    """The server that the caller, the environment or the credential names."""
    if place.endpoint is None and isinstance(access, (AzureKey, AzureSas)) and access.endpoint:
        return access.endpoint.rstrip("/")
    return place.endpoint


def _s3(
    place: BucketLocation,
    access: BucketCredential | None,
    renew: RenewFn | None,
    environ: Mapping[str, str],
    common: dict[str, Any],
) -> ObstoreClient:
    from obstore.store import S3Store

    region = region_of(place, access, environ)
    endpoint = endpoint_of(place, access, environ)
    opened: dict[str, Any] = {"skip_signature": True}
    if isinstance(access, AwsKeys):
        opened = {
            "skip_signature": False,
            "credential_provider": _CredentialProvider(access, renew, _aws_options),
        }
    return S3Store(
        place.bucket,
        region=region,
        aws_endpoint_url_s3=endpoint,
        endpoint=endpoint,
        virtual_hosted_style_request=False,
        conditional_put="etag",
        **opened,
        **common,
    )


def _gs(
    place: BucketLocation,
    access: BucketCredential | None,
    renew: RenewFn | None,
    environ: Mapping[str, str],
    common: dict[str, Any],
) -> ObstoreClient:
    from obstore.store import GCSStore

    # What isn't read but written it wants to sign all the same, and would ask this machine's metadata server for a token.
    empty = _CredentialProvider(BearerToken(""), None, _bearer_options)
    opened: dict[str, Any] = {"skip_signature": True, "credential_provider": empty}
    if isinstance(access, ServiceAccount) and not place.emulated:
        opened = {"skip_signature": False, "service_account_key": access.document}
    elif isinstance(access, BearerToken) and not place.emulated:
        opened = {
            "skip_signature": False,
            "credential_provider": _CredentialProvider(access, renew, _bearer_options),
        }
    if place.endpoint:
        opened["base_url"] = place.endpoint
    return GCSStore(place.bucket, **opened, **common)


def _azure(
    place: BucketLocation,
    access: BucketCredential | None,
    renew: RenewFn | None,
    environ: Mapping[str, str],
    common: dict[str, Any],
) -> ObstoreClient:
    from obstore.store import AzureStore

    named = access.account if isinstance(access, (AzureKey, AzureSas)) else None
    if named not in (None, place.account):
        raise SourceDenied(
            f"the credential is for the storage account {named!r}, but the bucket is {place.url}",
            f"Use azure://{named}/CONTAINER, or name the secret of {place.account}.",
            code="unusable-secret",
        )
    endpoint = endpoint_of(place, access)
    common["client_options"]["allow_http"] = endpoint.startswith("http://")
    return AzureStore(
        place.bucket,
        account_name=place.account,
        endpoint=endpoint,
        skip_signature=access is None,
        **_azure_options(access, renew),
        **common,
    )


def _azure_options(access: BucketCredential | None, renew: RenewFn | None) -> dict[str, Any]:
    if isinstance(access, AzureKey):
        return {"credential_type": "access_key", "account_key": access.key}
    if isinstance(access, AzureSas):
        return {"credential_type": "sas_token", "sas_key": access.query}
    if isinstance(access, AzurePrincipal):
        return {
            "credential_type": "client_secret",
            "tenant_id": access.tenant,
            "client_id": access.client,
            "client_secret": access.secret,
        }
    if isinstance(access, BearerToken):
        return {"credential_provider": _CredentialProvider(access, renew, _bearer_options)}
    # Else obstore takes the environment's, and though it signs nothing with it, stops at one that is malformed.
    return {"account_key": ""}


_CONNECT = {"s3": _s3, "r2": _s3, "gs": _gs, "azure": _azure}


class _CredentialProvider:
    """What obstore asks for a credential: when it needs the first, and shortly before that ends. Called from any thread."""

    def __init__(
        self, access: Any, renew: RenewFn | None, form: Callable[[Any], dict[str, Any]]
    ) -> None:
        self._access = access
        self._renew = renew
        self._form = form
        self._lock = threading.Lock()
        self._asked = False

    def __call__(self) -> dict[str, Any]:
        with self._lock:
            over = self._asked or is_expired(self._access)
            if over and self._renew is not None:
                self._access = self._renew()
            self._asked = True
            return self._form(self._access)


def _aws_options(access: AwsKeys) -> dict[str, Any]:
    return {
        "access_key_id": access.key_id,
        "secret_access_key": access.secret,
        "token": access.session,
        "expires_at": _renewal_time(access.expires_at),
    }


def _bearer_options(access: BearerToken) -> dict[str, Any]:
    return {"token": access.token, "expires_at": _renewal_time(access.expires_at)}


def is_expired(access: BucketCredential | None) -> bool:
    """Whether a credential has ended, or is about to."""
    expires_at = _renewal_time(getattr(access, "ends", None))
    return expires_at is not None and expires_at <= datetime.now(UTC)


def _renewal_time(expires_at: datetime | None) -> datetime | None:
    """When obstore renews: before the end, so that no request is under way with an expired credential."""
    return None if expires_at is None else expires_at - RENEWAL_MARGIN


def _options(
    place: BucketLocation, environ: Mapping[str, str], read_timeout: float, *, long: bool
) -> dict[str, Any]:
    options: dict[str, Any] = {
        "timeout": _NO_END if long else timedelta(seconds=2 * read_timeout),
        "connect_timeout": timedelta(seconds=min(read_timeout, _CONNECT_SECONDS)),
        "read_timeout": timedelta(seconds=read_timeout),
        "allow_http": (place.endpoint or "").startswith("http://"),
        "user_agent": "trainctl",
    }
    certificates = b"\n".join(
        _read(name, environ[name]) for name in _CERTIFICATES if environ.get(name)
    )
    if certificates:
        options["root_certificate"] = certificates
    return options


def _block_other_hosts(*servers: str) -> dict[str, str]:
    """Options that keep obstore from following redirects, which would take credentials along.

    It has none for that, so every host but these gets a proxy that doesn't exist. Nothing if the environment names a
    proxy for one of them, as there can be only one, or if obstore may spell a host's name in another way.
    """
    parts = [urlsplit(server) for server in servers]
    hosts = [part.hostname or "" for part in parts]
    if any(map(_has_proxy, parts)) or not all(map(_is_plain, hosts)):
        return {}
    return {"proxy_url": f"http://{UNREACHABLE_PROXY}", "proxy_excludes": ",".join(hosts)}


def _has_proxy(server: SplitResult) -> bool:
    import urllib.request

    if urllib.request.proxy_bypass(server.netloc):
        return False
    return not {server.scheme, "all"}.isdisjoint(urllib.request.getproxies())


def _is_plain(host: str) -> bool:
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return _HOST_NAME.fullmatch(host) is not None
    return True


def _read(name: str, place: str) -> bytes:
    path = Path(place)
    try:
        if path.is_dir():
            found = (one.read_bytes() for one in sorted(path.iterdir()) if one.is_file())
            return b"\n".join(one for one in found if b"BEGIN CERTIFICATE" in one)
        return path.read_bytes()
    except OSError as error:
        raise SourceError(
            f"cannot read certificates from {place}, named by {name} ({error.strerror})",
            "Set it to a PEM file or a directory of PEM files, or unset it.",
            code="untrusted-certificate",
        ) from None
