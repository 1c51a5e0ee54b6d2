"""What opens a bucket, as secrets and platforms write it. No error shows a value."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

from trainctl.errors import SourceDenied
from trainctl.objects.location import BucketLocation, connection_parts


@dataclass(frozen=True)
class AwsKeys:
    """An access key, with its session where it has one. ``expires_at`` is when it stops to work."""

    key_id: str
    secret: str = field(repr=False)
    session: str | None = field(default=None, repr=False)
    region: str | None = None
    expires_at: datetime | None = None


@dataclass(frozen=True)
class ServiceAccount:
    """A key of a Google service account: the JSON document that Google hands out."""

    document: str = field(repr=False)


@dataclass(frozen=True)
class BearerToken:
    """A token that is sent as it is."""

    token: str = field(repr=False)
    expires_at: datetime | None = None


@dataclass(frozen=True)
class AzureKey:
    """A storage account's key. ``account`` and ``endpoint`` are known where a connection string names them."""

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
"""What a secret of each scheme holds."""

_REGION = re.compile(r"[A-Za-z0-9_-]+")


def parse_credential(scheme: str, text: str, origin: str) -> BucketCredential:
    """Read a credential; ``origin`` names it in errors. SourceDenied says which field is missing or wrong, and what to write."""
    return _READERS[scheme](text.strip(), _CredentialParser(scheme, origin))


def encode_token(token: str, expires_at: datetime | None) -> str:
    """An access token as a credential's text."""
    return json.dumps(
        {"access_token": token, **({"expires_at": expires_at.isoformat()} if expires_at else {})}
    )


def secret_values(access: BucketCredential) -> tuple[str, ...]:
    """What of a credential must not be shown."""
    parts = (getattr(access, one.name) for one in fields(access) if not one.repr)
    return tuple(part for part in parts if part)


@dataclass(frozen=True)
class _CredentialParser:
    scheme: str
    origin: str

    def wrong(self, problem: str) -> SourceDenied:
        return SourceDenied(
            f"{self.origin} {problem}",
            f"For {self.scheme}://, set it to {CREDENTIAL_FORMATS[self.scheme]}.",
            code="unusable-secret",
        )

    def document(self, text: str) -> Mapping[str, object]:
        try:
            found = json.loads(text)
        except ValueError:
            raise self.wrong("is not JSON") from None
        if not isinstance(found, dict):
            raise self.wrong("is not a JSON object")
        return found

    def text(self, document: Mapping[str, object], name: str) -> str | None:
        """A member, if it is there and says something."""
        value = document.get(name)
        if value is None or value == "":
            return None
        if not isinstance(value, str) or not (value.isascii() and value.isprintable()):
            raise self.wrong(f"contains {name!r}, which is not valid text")
        return value.strip()

    def needed(self, document: Mapping[str, object], name: str) -> str:
        value = self.text(document, name)
        if value is None:
            near = self._near(document, name)
            raise self.wrong(f"lacks {name!r}" + (f" ({near!r} is ignored)" if near else ""))
        return value

    def _near(self, document: Mapping[str, object], name: str) -> str | None:
        """A member that is probably meant: without the platform's prefix, or in another case."""
        plain = name.removeprefix("aws_").replace("_", "")
        for one in document:
            if one.lower().replace("_", "").removeprefix("aws") in (plain, name.replace("_", "")):
                return one if one != name and one.isprintable() and len(one) < 40 else None
        return None


def _aws(text: str, form: _CredentialParser) -> AwsKeys:
    document = form.document(text)
    return AwsKeys(
        form.needed(document, "aws_access_key_id"),
        form.needed(document, "aws_secret_access_key"),
        form.text(document, "aws_session_token"),
        _region(form.text(document, "aws_region"), form),
        _moment(form.text(document, "expires_at"), form),
    )


def _region(text: str | None, form: _CredentialParser) -> str | None:
    """It becomes part of a server's name, whatever servers of S3's kind call theirs."""
    if text is not None and not _REGION.fullmatch(text):
        raise form.wrong("contains an invalid 'aws_region'")
    return text


def _bearer(document: Mapping[str, object], form: _CredentialParser) -> BearerToken:
    expires_at = _moment(form.text(document, "expires_at"), form)
    return BearerToken(form.needed(document, "access_token"), expires_at)


def _google(text: str, form: _CredentialParser) -> ServiceAccount | BearerToken:
    document = form.document(text)
    if "access_token" in document:
        return _bearer(document, form)
    if document.get("type") != "service_account":
        raise form.wrong("is not a service account key (its \"type\" isn't 'service_account')")
    for name in ("client_email", "token_uri"):
        form.needed(document, name)
    if not isinstance(document.get("private_key"), str):
        raise form.wrong("has no 'private_key'")
    return ServiceAccount(text)


def _azure(
    text: str, form: _CredentialParser
) -> AzureKey | AzureSas | AzurePrincipal | BearerToken:
    if not text.startswith("{"):
        return _connection_string(text, form)
    document = form.document(text)
    if "access_token" in document:
        return _bearer(document, form)
    if "connection_string" in document:
        return _connection_string(form.needed(document, "connection_string"), form)
    if "sas_token" in document:
        return AzureSas(form.needed(document, "sas_token").lstrip("?"))
    if "client_id" in document or "client_secret" in document:
        return AzurePrincipal(
            form.needed(document, "tenant_id"),
            form.needed(document, "client_id"),
            form.needed(document, "client_secret"),
        )
    key = form.needed(document, "account_key")
    return AzureKey(_account_key(key, form), form.text(document, "account_name"))


def _connection_string(text: str, form: _CredentialParser) -> AzureKey | AzureSas:
    parts = connection_parts(text)
    account, endpoint = parts.get("accountname"), parts.get("blobendpoint")
    if key := parts.get("accountkey"):
        return AzureKey(_account_key(key, form), account, endpoint)
    if query := parts.get("sharedaccesssignature"):
        return AzureSas(query.lstrip("?"), account, endpoint)
    raise form.wrong(
        "is not a connection string: it has neither 'AccountKey' nor 'SharedAccessSignature'"
    )


def _account_key(text: str, form: _CredentialParser) -> str:
    try:
        base64.b64decode(text, validate=True)
    except binascii.Error:
        raise form.wrong("contains an account key that is not base64") from None
    return text


def _moment(text: str | None, form: _CredentialParser) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise form.wrong("contains an 'expires_at' that is not an ISO 8601 time") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


_READERS = {"s3": _aws, "r2": _aws, "gs": _google, "azure": _azure}


SAS_VERSION = "2021-08-06"
_CLOCK_SKEW = timedelta(minutes=5)
"""How far behind the server's clock may be."""


def sign_sas_query(
    access: AzureKey, place: BucketLocation, blob: str, permissions: str, seconds: int, now: float
) -> str:
    """The query of a URL that permits this on a blob for so many seconds. ``now`` is Unix time."""
    start = datetime.fromtimestamp(now, UTC)
    resource = f"/blob/{place.account}/{place.bucket}/{blob}"
    signed = {
        "sp": permissions,
        "st": f"{start - _CLOCK_SKEW:%Y-%m-%dT%H:%M:%SZ}",
        "se": f"{start + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%SZ}",
        "spr": "https,http" if (place.endpoint or "").startswith("http:") else "https",
        "sv": SAS_VERSION,
        "sr": "b",
    }
    # Between them: an identifier and addresses; then a snapshot, an encryption scope, and five headers of the answer.
    lines = [signed["sp"], signed["st"], signed["se"], resource, "", "", *list(signed.values())[3:]]
    text = "\n".join([*lines, "", "", "", "", "", "", ""])
    key = base64.b64decode(access.key)
    signature = hmac.new(key, text.encode(), hashlib.sha256).digest()
    return urlencode({**signed, "sig": base64.b64encode(signature).decode()})
