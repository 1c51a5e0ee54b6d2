"""The location of a bucket, from its URL, the environment and perhaps an endpoint."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from trainctl.errors import SourceError
from trainctl.model.source_uri import BUCKETS, parse_source

SCHEMES = BUCKETS
_EMULATORS = re.compile(r"localhost|[0-9.]+|[0-9a-f:]*:[0-9a-f:.]*")
_ENDPOINT_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "r2": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "gs": ("STORAGE_EMULATOR_HOST",),
    "azure": ("AZURE_STORAGE_ENDPOINT", "AZURE_STORAGE_BLOB_ENDPOINT"),
}


@dataclass(frozen=True)
class BucketLocation:
    """A bucket. ``account`` is for ``r2`` and ``azure``. ``endpoint`` is None where it is the platform's own.

    ``prefix`` is the directory in the bucket, without a ``/`` at either end; empty for the whole bucket.
    ``named`` says who named the endpoint: a variable of the environment, or None for the caller; ``PLATFORM`` where the caller
    named the server that is asked anyway.
    """

    scheme: str
    bucket: str
    account: str = ""
    prefix: str = ""
    endpoint: str | None = None
    named: str | None = None

    @property
    def url(self) -> str:
        """As a manifest writes it."""
        owner = {"r2": f"{self.account}.", "azure": f"{self.account}/"}.get(self.scheme, "")
        return f"{self.scheme}://{owner}{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")

    @property
    def host(self) -> str:
        """The host and port that requests go to, as far as it is known without a region."""
        if self.endpoint:
            return urlsplit(self.endpoint).netloc
        return _PLATFORM[self.scheme].format(account=self.account)

    def is_own(self, server: str) -> bool:
        """Whether that is the platform's own server, for which this is the bucket of that name whatever its region."""
        if self.scheme == "s3":
            return _AWS.fullmatch(server) is not None
        return server == f"https://{_PLATFORM[self.scheme].format(account=self.account)}"

    @property
    def emulated(self) -> bool:
        """Whether it is an emulator of Google's storage, which needs no credential."""
        return self.named == "STORAGE_EMULATOR_HOST"

    @property
    def trusted(self) -> bool:
        """Whether the endpoint is the platform's own or the environment's, and not only its caller's.

        Where the environment names a server, credentials that lie here are for that: the platform's own is another then.
        """
        return self.endpoint is None or self.named is not None


_PLATFORM = {
    "s3": "s3.amazonaws.com",
    "r2": "{account}.r2.cloudflarestorage.com",
    "gs": "storage.googleapis.com",
    "azure": "{account}.blob.core.windows.net",
}
_AWS = re.compile(
    r"https://s3\.((dualstack\.)?(?!us-gov-)[a-z]{2}(-[a-z]+)+-[0-9]+\.)?amazonaws\.com"
)
"""The regions that share their names of buckets: China's and the government's have their own."""

PLATFORM = "the platform"


def parse_bucket_location(
    url: str, endpoint_url: str | None = None, environ: Mapping[str, str] = os.environ
) -> BucketLocation:
    """The bucket of ``s3://BUCKET/PREFIX`` and its like. ValueError for another URL, SourceError for an endpoint that is none.

    An ``endpoint_url`` that is also the environment's is the environment's; so it is with the platform's own.
    """
    uri = parse_source(url)
    if uri.scheme not in SCHEMES:
        raise ValueError(f"{url!r} is not a bucket; use s3://, gs://, r2:// or azure://")
    account, bucket = _account_and_bucket(uri.scheme, uri.location)
    usual, named = _environment(uri.scheme, environ)
    endpoint = endpoint_url or usual
    if endpoint is not None:
        checked = _endpoint(endpoint, named if endpoint_url is None else "endpoint_url")
        endpoint = _with_account(checked, account) if uri.scheme == "azure" else checked
        if endpoint_url and (usual is None or _normalize(usual) != _normalize(endpoint_url)):
            named = None
    place = BucketLocation(uri.scheme, bucket, account, uri.path.strip("/"), endpoint, named)
    if usual is None and endpoint is not None and place.is_own(endpoint):
        return replace(place, named=PLATFORM)
    return place


def _account_and_bucket(scheme: str, location: str) -> tuple[str, str]:
    if scheme == "r2":
        account, _, bucket = location.partition(".")
        return account, bucket
    if scheme == "azure":
        account, _, container = location.partition("/")
        return account, container
    return "", location


def _environment(scheme: str, environ: Mapping[str, str]) -> tuple[str | None, str | None]:
    for name in _ENDPOINT_VARIABLES[scheme]:
        if value := environ.get(name, "").strip():
            # Google's own libraries take a bare HOST:PORT here too.
            bare = scheme == "gs" and "://" not in value
            return (f"http://{value}" if bare else value), name
    if scheme == "azure":
        parts = connection_parts(environ.get("AZURE_STORAGE_CONNECTION_STRING", ""))
        if endpoint := parts.get("blobendpoint"):
            return endpoint, "AZURE_STORAGE_CONNECTION_STRING"
    return None, None


def entra_authority(environ: Mapping[str, str] = os.environ) -> str:
    """Whom service principals of Entra ID ask for tokens, without a ``/`` at its end."""
    named = environ.get("AZURE_AUTHORITY_HOST") or "https://login.microsoftonline.com"
    return named.rstrip("/")


def connection_parts(text: str) -> dict[str, str]:
    """What an Azure connection string holds, by lower-case name; values may hold ``=``."""
    pairs = (part.partition("=") for part in text.strip().split(";"))
    return {name.strip().lower(): value.strip() for name, _, value in pairs if value.strip()}


def _endpoint(text: str, who: str | None) -> str:
    parts = urlsplit(_normalize(text))
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
        raise SourceError(
            f"{who} is not the URL of a server",
            "Use https://HOST or https://HOST:PORT, without a user or query.",
            code="invalid-endpoint",
        )
    return _normalize(text)


def _with_account(endpoint: str, account: str) -> str:
    parts = urlsplit(endpoint)
    if parts.path or not (_EMULATORS.fullmatch(parts.hostname or "")):
        return endpoint
    return f"{endpoint}/{account}"


def _normalize(endpoint: str) -> str:
    return endpoint.strip().rstrip("/")
