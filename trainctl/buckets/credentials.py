"""Bucket credentials: types, parsing, SAS signatures. Errors hide values."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

from trainctl.base.lazy_dataclass import dataclass, field, fields
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.buckets.location import BucketLocation, connection_parts
from trainctl.errors import SourceDenied


@dataclass(frozen=True)
class AwsKeys:
    """An access key, perhaps with a session token."""

    key_id: str
    secret: str = field(repr=False)
    session: str | None = field(default=None, repr=False)
    region: str | None = None
    expires_at: datetime | None = None


@dataclass(frozen=True)
class ServiceAccount:
    """The JSON key of a Google service account."""

    document: str = field(repr=False)
    project: str | None = None


@dataclass(frozen=True)
class BearerToken:
    """A bearer token; ``project``: to bill, only for Google."""

    token: str = field(repr=False)
    expires_at: datetime | None = None
    project: str | None = None


@dataclass(frozen=True)
class AzureKey:
    """A storage account's key, perhaps from a connection string."""

    key: str = field(repr=False)
    account: str | None = None
    endpoint: str | None = None


@dataclass(frozen=True)
class AzureSas:
    """A shared access signature: a URL's query."""

    query: str = field(repr=False)
    account: str | None = None
    endpoint: str | None = None


@dataclass(frozen=True)
class AzurePrincipal:
    """A service principal of Entra ID."""

    tenant: str
    client: str
    secret: str = field(repr=False)


BucketCredential = AwsKeys | ServiceAccount | BearerToken | AzureKey | AzureSas | AzurePrincipal

CREDENTIAL_FORMATS = {
    "s3": '{"aws_access_key_id": …, "aws_secret_access_key": …}, and where needed "aws_session_token" and "aws_region"',
    "r2": '{"aws_access_key_id": …, "aws_secret_access_key": …}',
    "gs": "the JSON key of a service account, as downloaded from Google",
    "azure": 'a connection string, {"account_key": …}, {"sas_token": …} or {"tenant_id": …, "client_id": …, "client_secret": …}',
}
"""Format of a secret by scheme."""

_REGION = compile_lazily(r"[A-Za-z0-9_-]+")


def parse_credential(scheme: str, text: str, origin: str) -> BucketCredential:
    """Parse a credential of ``origin``; SourceDenied if malformed."""
    return _READERS[scheme](text.strip(), _CredentialParser(scheme, origin))


def encode_token(token: str, expires_at: datetime | None, project: str | None = None) -> str:
    """Encode an access token as a credential's text."""
    document = {"access_token": token, "project_id": project}
    document["expires_at"] = expires_at.isoformat() if expires_at else None
    return json.dumps({name: value for name, value in document.items() if value})


def secret_values(access: BucketCredential) -> tuple[str, ...]:
    """Return the secret parts of a credential."""
    parts = (getattr(access, field.name) for field in fields(access) if not field.repr)
    return tuple(part for part in parts if part)


@dataclass(frozen=True)
class _CredentialParser:
    scheme: str
    origin: str

    def error(self, problem: str) -> SourceDenied:
        return SourceDenied(
            f"{self.origin} {problem}",
            f"For {self.scheme}://, set it to {CREDENTIAL_FORMATS[self.scheme]}.",
            code="unusable-secret",
        )

    def document(self, text: str) -> Mapping[str, object]:
        try:
            document = json.loads(text)
        except ValueError:
            raise self.error("is not JSON") from None
        if not isinstance(document, dict):
            raise self.error("is not a JSON object")
        return document

    def text(self, document: Mapping[str, object], name: str) -> str | None:
        """Return a member that is not empty; None otherwise."""
        value = document.get(name)
        if value is None or value == "":
            return None
        if not isinstance(value, str) or not (value.isascii() and value.isprintable()):
            raise self.error(f"contains {name!r}, which is not valid text")
        return value.strip()

    def require(self, document: Mapping[str, object], name: str) -> str:
        value = self.text(document, name)
        if value is None:
            # the name in another case, or without the platform's prefix
            plain = {key: key.lower().replace("_", "").removeprefix("aws") for key in document}
            wanted = name.replace("_", "").removeprefix("aws")
            near = next((key for key in document if plain[key] == wanted and key != name), "")
            hint = f" ({near!r} is ignored)" if near.isprintable() and 0 < len(near) < 40 else ""
            raise self.error(f"lacks {name!r}{hint}")
        return value


def _aws(text: str, parser: _CredentialParser) -> AwsKeys:
    document = parser.document(text)
    keys = AwsKeys(
        parser.require(document, "aws_access_key_id"),
        parser.require(document, "aws_secret_access_key"),
        parser.text(document, "aws_session_token"),
        parser.text(document, "aws_region"),
        _parse_time(parser.text(document, "expires_at"), parser),
    )
    # the region becomes part of a host name
    if keys.region is not None and not _REGION.fullmatch(keys.region):
        raise parser.error("contains an invalid 'aws_region'")
    return keys


def _bearer(document: Mapping[str, object], parser: _CredentialParser) -> BearerToken:
    expires_at = _parse_time(parser.text(document, "expires_at"), parser)
    project = parser.text(document, "project_id")
    return BearerToken(parser.require(document, "access_token"), expires_at, project)


def _google(text: str, parser: _CredentialParser) -> ServiceAccount | BearerToken:
    document = parser.document(text)
    if "access_token" in document:
        return _bearer(document, parser)
    if document.get("type") != "service_account":
        raise parser.error("is not a service account key (its \"type\" isn't 'service_account')")
    for name in ("client_email", "token_uri"):
        parser.require(document, name)
    if not isinstance(document.get("private_key"), str):
        raise parser.error("has no 'private_key'")
    return ServiceAccount(text, parser.text(document, "project_id"))


def _azure(
    text: str, parser: _CredentialParser
) -> AzureKey | AzureSas | AzurePrincipal | BearerToken:
    if not text.startswith("{"):
        return _connection_string(text, parser)
    document = parser.document(text)
    if "access_token" in document:
        return _bearer(document, parser)
    if "connection_string" in document:
        return _connection_string(parser.require(document, "connection_string"), parser)
    if "sas_token" in document:
        return AzureSas(parser.require(document, "sas_token").lstrip("?"))
    if "client_id" in document or "client_secret" in document:
        return AzurePrincipal(
            parser.require(document, "tenant_id"),
            parser.require(document, "client_id"),
            parser.require(document, "client_secret"),
        )
    key = parser.require(document, "account_key")
    return AzureKey(_account_key(key, parser), parser.text(document, "account_name"))


def _connection_string(text: str, parser: _CredentialParser) -> AzureKey | AzureSas:
    parts = connection_parts(text)
    account, endpoint = parts.get("accountname"), parts.get("blobendpoint")
    if key := parts.get("accountkey"):
        return AzureKey(_account_key(key, parser), account, endpoint)
    if query := parts.get("sharedaccesssignature"):
        return AzureSas(query.lstrip("?"), account, endpoint)
    raise parser.error(
        "is not a connection string: it has neither 'AccountKey' nor 'SharedAccessSignature'"
    )


def _account_key(text: str, parser: _CredentialParser) -> str:
    try:
        base64.b64decode(text, validate=True)
    except binascii.Error:
        raise parser.error("contains an account key that is not base64") from None
    return text


def _parse_time(text: str | None, parser: _CredentialParser) -> datetime | None:
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise parser.error("contains an 'expires_at' that is not an ISO 8601 time") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


_READERS = {"s3": _aws, "r2": _aws, "gs": _google, "azure": _azure}


SAS_VERSION = "2021-08-06"
_CLOCK_SKEW = timedelta(minutes=5)
"""Tolerated clock skew of the server."""


def sign_sas_query(
    access: AzureKey,
    location: BucketLocation,
    blob: str,
    permissions: str,
    seconds: int,
    now: float,
) -> str:
    """Return a SAS query for a blob, or if empty the container, valid ``seconds`` from ``now`` (Unix time)."""
    start = datetime.fromtimestamp(now, UTC)
    resource = f"/blob/{location.account}/{location.bucket}/{blob}".rstrip("/")
    signed = {
        "sp": permissions,
        "st": f"{start - _CLOCK_SKEW:%Y-%m-%dT%H:%M:%SZ}",
        "se": f"{start + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%SZ}",
        "spr": "https,http" if (location.endpoint or "").startswith("http:") else "https",
        "sv": SAS_VERSION,
        "sr": "b" if blob else "c",
    }
    # Empty lines: identifier, addresses; snapshot, encryption scope, five response headers.
    lines = [signed["sp"], signed["st"], signed["se"], resource, "", "", *list(signed.values())[3:]]
    text = "\n".join([*lines, "", "", "", "", "", "", ""])
    key = base64.b64decode(access.key)
    signature = hmac.new(key, text.encode(), hashlib.sha256).digest()
    return urlencode({**signed, "sig": base64.b64encode(signature).decode()})
