"""Location of a bucket from its URL, an endpoint and the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from trainctl.base.lazy_dataclass import dataclass, replace
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.errors import SourceError
from trainctl.model.source_uri import BUCKETS, parse_source
from trainctl.model.trust import SecretDestination, host_of_url

SCHEMES = BUCKETS
_EMULATORS = compile_lazily(r"localhost|[0-9.]+|[0-9a-f:]*:[0-9a-f:.]*")
_ENDPOINT_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "r2": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "gs": ("STORAGE_EMULATOR_HOST",),
    "azure": ("AZURE_STORAGE_ENDPOINT", "AZURE_STORAGE_BLOB_ENDPOINT"),
}


@dataclass(frozen=True)
class BucketLocation:
    """A bucket; ``endpoint`` is None for the platform's default.

    ``prefix``: directory in the bucket, without a ``/`` at either end, or empty. ``endpoint_source``: the environment
    variable that sets the endpoint, None if the caller does, ``PLATFORM`` if the caller sets the platform's default.
    ``encryption`` and ``kms_key``: S3's server-side encryption of new objects, None for the bucket's default.
    ``requester_pays``: S3 or Google bills this client. ``virtual``: the bucket's name is part of the host name.
    """

    scheme: str
    bucket: str
    account: str = ""
    prefix: str = ""
    endpoint: str | None = None
    endpoint_source: str | None = None
    encryption: str | None = None
    kms_key: str | None = None
    requester_pays: bool = False
    virtual: bool = False

    @property
    def url(self) -> str:
        """The URL as in a manifest."""
        owner = {"r2": f"{self.account}.", "azure": f"{self.account}/"}.get(self.scheme, "")
        return f"{self.scheme}://{owner}{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")

    @property
    def host(self) -> str:
        """Host and port of the server; for S3 without the region."""
        if self.endpoint:
            return urlsplit(self.endpoint).netloc
        return _PLATFORM[self.scheme].format(account=self.account)

    def is_own(self, server: str) -> bool:
        """Return whether this is the platform's own server, in any region."""
        if self.scheme == "s3":
            return _AWS.fullmatch(server) is not None
        return server == f"https://{_PLATFORM[self.scheme].format(account=self.account)}"

    @property
    def emulated(self) -> bool:
        """Whether this is an emulator of Google's storage, which needs no credential."""
        return self.endpoint_source == "STORAGE_EMULATOR_HOST"

    @property
    def trusted(self) -> bool:
        """Whether default credentials are meant for the endpoint."""
        return self.endpoint is None or self.endpoint_source is not None

    @property
    def destination(self) -> SecretDestination:
        """The host that receives the credential of the bucket."""
        host = host_of_url(self.endpoint or f"https://{self.host}")
        return SecretDestination(host, given=self.trusted)


_PLATFORM = {
    "s3": "s3.amazonaws.com",
    "r2": "{account}.r2.cloudflarestorage.com",
    "gs": "storage.googleapis.com",
    "azure": "{account}.blob.core.windows.net",
}
_AWS = compile_lazily(
    r"https://s3\.((dualstack\.)?(?!us-gov-)[a-z]{2}(-[a-z]+)+-[0-9]+\.)?amazonaws\.com"
)
"""Regions of the same partition; China and GovCloud have bucket names of their own."""

PLATFORM = "the platform"


def parse_bucket_location(
    url: str, endpoint_url: str | None = None, environ: Mapping[str, str] = os.environ
) -> BucketLocation:
    """Parse ``s3://BUCKET/PREFIX`` and the like; ValueError for other URLs.

    An ``endpoint_url`` equal to the environment's or the platform's counts as theirs.
    """
    uri = parse_source(url)
    if uri.scheme not in SCHEMES:
        raise ValueError(f"{url!r} is not a bucket; use s3://, gs://, r2:// or azure://")
    separator = {"r2": ".", "azure": "/"}.get(uri.scheme, "")
    account, _, bucket = uri.location.partition(separator) if separator else ("", "", uri.location)
    default, source = _environment(uri.scheme, environ)
    endpoint = endpoint_url or default
    if endpoint is not None:
        endpoint = _normalize(endpoint)
        parts = urlsplit(endpoint)
        is_url = parts.scheme in ("http", "https") and parts.hostname
        if not is_url or parts.query or parts.username:
            raise SourceError(
                f"{source if endpoint_url is None else 'endpoint_url'} is not the URL of a server",
                "Use https://HOST or https://HOST:PORT, without a user or query.",
                code="invalid-endpoint",
            )
        is_emulator = not parts.path and _EMULATORS.fullmatch(parts.hostname or "")
        if uri.scheme == "azure" and is_emulator:  # the account is its first directory
            endpoint = f"{endpoint}/{account}"
        if endpoint_url and (default is None or _normalize(default) != _normalize(endpoint_url)):
            source = None
    location = BucketLocation(uri.scheme, bucket, account, uri.path.strip("/"), endpoint, source)
    if default is None and endpoint is not None and location.is_own(endpoint):
        return replace(location, endpoint_source=PLATFORM)
    return location


def _environment(scheme: str, environ: Mapping[str, str]) -> tuple[str | None, str | None]:
    for name in _ENDPOINT_VARIABLES[scheme]:
        if value := environ.get(name, "").strip():
            # Google's own libraries also accept HOST:PORT
            bare = scheme == "gs" and "://" not in value
            return (f"http://{value}" if bare else value), name
    if scheme == "azure":
        parts = connection_parts(environ.get("AZURE_STORAGE_CONNECTION_STRING", ""))
        if endpoint := parts.get("blobendpoint"):
            return endpoint, "AZURE_STORAGE_CONNECTION_STRING"
    return None, None


def entra_authority(environ: Mapping[str, str] = os.environ) -> str:
    """Return the token server of Entra ID, without a trailing ``/``."""
    authority = environ.get("AZURE_AUTHORITY_HOST") or "https://login.microsoftonline.com"
    return authority.rstrip("/")


def connection_parts(text: str) -> dict[str, str]:
    """Parse an Azure connection string into values by lower-case name."""
    pairs = (part.partition("=") for part in text.strip().split(";"))
    return {name.strip().lower(): value.strip() for name, _, value in pairs if value.strip()}


def _normalize(endpoint: str) -> str:
    return endpoint.strip().rstrip("/")
