"""Lists and metadata of objects, with the storage classes and directory markers that obstore omits."""

from __future__ import annotations

import hashlib
import html
import json
import re
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, unquote_plus, urlencode, urlsplit

from trainctl.base import sigv4
from trainctl.base.checkpoints.s3 import element_text, elements
from trainctl.base.http import HttpClient, Response
from trainctl.base.http.urls import host_of
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.objects import ObjectStat
from trainctl.buckets import credentials as kinds
from trainctl.buckets.location import entra_authority
from trainctl.buckets.obstore_client import BucketSettings, is_expired

CHECKSUM_MODE = {"x-amz-checksum-mode": "ENABLED"}
"""Header by which S3 reports the checksums of an object."""
_ARCHIVED = {"GLACIER", "DEEP_ARCHIVE", "ARCHIVE_ACCESS", "DEEP_ARCHIVE_ACCESS", "Archive"}
"""Classes of S3, tiers of its Intelligent-Tiering and of Azure; all of Google's are readable."""
_MAX_BYTES = 64 * 2**20  # a page has thousands of objects, whose keys have up to 3 kB when quoted
_NO_BODY = hashlib.sha256(b"").hexdigest()
_SIGNED_SECONDS = 300  # a signature is used at once; clocks differ by minutes
_GOOGLE_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_FIELD = compile_lazily(r'<([\w-]+)( Encoded="true")?>([^<]*)</')
_PREFIX = compile_lazily(r"^x-(amz|goog|ms-meta|ms)-|[-_]")


class UnexpectedResponse(OSError):
    """A refusal by ``host`` or no metadata; worded as obstore's errors, for ``translate_errors``."""

    def __init__(self, text: str, host: str = "") -> None:
        super().__init__(text)
        self.host = host


class ObjectInfo(ObjectStat):
    """An object's metadata. ``etag`` always includes its quotes.

    ``is_directory``: it only marks a directory. ``archived``: its storage class if it must be restored first.
    """

    etag: str | None = None
    is_directory: bool = False
    archived: str = ""


class MetadataClient:
    """Requests of one bucket with one credential; thread-safe. Errors are OSError."""

    def __init__(self, settings: BucketSettings, http: HttpClient) -> None:
        self._settings = settings
        self._http = http
        self._token: kinds.BearerToken | None = None

    def list_page(
        self, prefix: str, after: str, cursor: str | None
    ) -> tuple[list[ObjectInfo], str | None]:
        """Return a page of the objects below ``prefix``, and the cursor of the next page."""
        location = self._settings.location
        is_azure, top = location.scheme == "azure", location.prefix
        root = f"{top}/" if top else ""
        query = {"prefix": root + (f"{prefix.rstrip('/')}/" if prefix else "")}
        if is_azure:
            query |= {"restype": "container", "comp": "list", "include": "metadata"}
        else:
            query |= {"list-type": "2", "encoding-type": "url"}
        if cursor:
            query["marker" if is_azure else "continuation-token"] = cursor
        elif after and not is_azure:
            query["start-after"] = root + after
        _, body = self._send("GET", "", query)
        is_cut = b"<IsTruncated>true<" in body and b"<NextContinuationToken>" not in body
        if is_cut or not re.search(rb"<(ListBucketResult|EnumerationResults)\b", body):
            raise UnexpectedResponse("the response is not a complete list of objects")
        is_quoted = element_text(body, "EncodingType") == "url"
        listed = []
        for entry in elements(body, "Blob" if is_azure else "Contents"):
            found = _FIELD.findall(entry.decode(errors="surrogateescape"))
            fields = [(name, html.unescape(value)) for name, _, value in found]
            key = next((value for name, value in fields if name in ("Key", "Name")), "")
            if is_quoted or (is_azure and any(encoded for _, encoded, _ in found)):
                key = unquote_plus(key) if is_quoted else unquote(key)
            if key.startswith(root) and key[len(root) :] > after:
                listed.append(_object_info(key[len(root) :], fields))
        cursor = element_text(body, "NextMarker" if is_azure else "NextContinuationToken")
        return listed, cursor or None

    def head(self, key: str) -> ObjectInfo | None:
        """Return an object's metadata; None if it doesn't exist."""
        headers, _ = self._send("HEAD", key, {})
        return _object_info(key, headers.items()) if headers else None

    def _send(
        self, method: str, key: str, query: Mapping[str, str]
    ) -> tuple[Mapping[str, str], bytes]:
        """Return headers and body of a signed request; no headers if the object doesn't exist."""
        location, access = self._settings.location, self._settings.access
        url, headers = self._settings.url(key), {"User-Agent": "trainctl"}
        text = sigv4.quote_query([*query.items()])
        if location.scheme == "gs" and method == "HEAD":
            headers["Accept-Encoding"] = "gzip"  # otherwise Google decompresses
        if location.scheme == "gs":
            headers |= self._settings.billing_headers
        if location.scheme == "azure":
            headers["x-ms-version"] = kinds.SAS_VERSION
        if isinstance(access, kinds.AwsKeys):
            headers |= self._signature(access, method, url, query)
        elif isinstance(access, kinds.AzureKey):
            blob = "/".join(filter(None, (location.prefix, key))) if key else ""
            may = "r" if key else "l"
            sas = kinds.sign_sas_query(access, location, blob, may, _SIGNED_SECONDS, time.time())
            text = f"{text}&{sas}"
        elif isinstance(access, kinds.AzureSas):
            text = f"{text}&{access.query}"
        elif access is not None and not location.emulated:
            headers["Authorization"] = f"Bearer {self._bearer_token(access)}"
        url = f"{url}?{text.lstrip('&')}" if text else url
        with self._http.request(method, url, headers, follow=False) as response:
            if response.status == 404 and method == "HEAD":
                return {}, b""
            # an error of HEAD has no body, but perhaps the region
            region = response.headers.get("x-amz-bucket-region")
            is_other = region not in (None, self._settings.region)
            if response.status in (301, 400) and is_other:
                error = f"<Code>PermanentRedirect</Code><Region>{region}</Region>"
                raise UnexpectedResponse(f"non-2xx status code: {response.status}: {error}")
            return response.headers, _read_success(response)

    def presigned_query(self, access: kinds.AwsKeys, method: str, url: str, seconds: int) -> str:
        """Return the query that signs a URL, for that time; HEAD requests must send CHECKSUM_MODE."""
        target = _target(method, url, self._settings.billing_headers)
        more = CHECKSUM_MODE.items() if method == "HEAD" else ()
        return sigv4.presigned_query(
            target, _key(access), self._settings.region, seconds, time.time(), [*more]
        )

    def _signature(
        self, access: kinds.AwsKeys, method: str, url: str, query: Mapping[str, str]
    ) -> Mapping[str, str]:
        more = dict(self._settings.billing_headers)
        if query and (urlsplit(url).hostname or "").endswith(
            (".amazonaws.com", ".amazonaws.com.cn")
        ):
            more["x-amz-optional-object-attributes"] = "RestoreStatus"
        target, region = _target(method, url, query), self._settings.region
        return sigv4.signed_headers(target, _key(access), region, _NO_BODY, time.time(), more)

    def _bearer_token(self, access: Any) -> str:
        """Return an access token; that of an account or principal is used until it expires."""
        if isinstance(access, kinds.BearerToken):
            return access.token
        if self._token is not None and not is_expired(self._token):
            return self._token.token
        if isinstance(access, kinds.ServiceAccount):
            self._token = _self_signed_token(access)
            return self._token.token
        url = f"{entra_authority(self._settings.environ)}/{access.tenant}/oauth2/v2.0/token"
        form = {"grant_type": "client_credentials", "scope": "https://storage.azure.com/.default"}
        form |= {"client_id": access.client, "client_secret": access.secret}
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        with self._http.request("POST", url, headers, body=urlencode(form).encode()) as response:
            document = json.loads(_read_success(response))
        lifetime = timedelta(seconds=int(document["expires_in"]))
        self._token = kinds.BearerToken(document["access_token"], datetime.now(UTC) + lifetime)
        return self._token.token


def _target(method: str, url: str, query: Mapping[str, str]) -> sigv4.RequestTarget:
    parts = urlsplit(url)
    return sigv4.RequestTarget(method, parts.netloc, unquote(parts.path), [*query.items()])


def _key(access: kinds.AwsKeys) -> sigv4.S3Credential:
    return sigv4.S3Credential(access.key_id, access.secret, access.session)


def _read_success(response: Response) -> bytes:
    body = response.read_all(_MAX_BYTES)
    if response.status == 200:
        return body
    raise UnexpectedResponse(
        f"non-2xx status code: {response.status}: {body.decode(errors='replace')}",
        host_of(urlsplit(response.url)),
    )


def _self_signed_token(access: kinds.ServiceAccount) -> kinds.BearerToken:
    """Return a token that needs no exchange, see https://google.aip.dev/auth/4111."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    def encode(data: bytes) -> str:
        return urlsafe_b64encode(data).rstrip(b"=").decode()

    document, now = json.loads(access.document), int(time.time())
    email = document["client_email"]
    claims = {"iss": email, "sub": email, "scope": _GOOGLE_SCOPE, "iat": now, "exp": now + 3600}
    header = {"alg": "RS256", "typ": "JWT", "kid": document.get("private_key_id")}
    text = ".".join(encode(json.dumps(part).encode()) for part in (header, claims))
    private: Any = load_pem_private_key(document["private_key"].encode(), None)
    signature = private.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
    return kinds.BearerToken(f"{text}.{encode(signature)}", datetime.fromtimestamp(now + 3600, UTC))


@lru_cache(maxsize=256)
def _plain_name(name: str) -> str:
    return _PREFIX.sub("", name.lower())


def _object_info(key: str, fields: Iterable[tuple[str, str]]) -> ObjectInfo:
    """Return the metadata in an object's headers or in its elements of a list."""
    found: dict[str, str] = {}
    for name, value in fields:  # the first, as others may be the user's metadata
        found.setdefault(_plain_name(name), value)
    tiers = {found.get(name, "") for name in ("archivestatus", "storageclass", "accesstier")}
    is_restored = "restoreexpirydate" in found or '="false"' in found.get("restore", "")
    try:
        size = int(found.get("storedcontentlength") or found.get("contentlength") or found["size"])
        when = found["lastmodified"]
        moment = parsedate_to_datetime(when) if "," in when else datetime.fromisoformat(when)
    except (KeyError, ValueError):
        raise UnexpectedResponse("the response has no size or no time of an object") from None
    tag = found.get("etag") or None
    info = ObjectInfo(key, size, moment.timestamp())
    info.etag = f'"{tag}"' if tag and not tag.endswith('"') else tag
    info.is_directory = (
        (not size and key[-1:] in ("", "/"))
        or found.get("resourcetype") == "directory"
        or found.get("hdiisfolder", "").lower() == "true"
    )
    info.archived = "" if is_restored else next(iter(tiers & _ARCHIVED), "")
    return info
