"""AWS Signature Version 4 for S3.

Source: "Authenticating Requests (AWS Signature Version 4)" in the Amazon S3 API Reference,
https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-authenticating-requests.html.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from typing import Dict, Mapping, Optional, Sequence, Tuple
from urllib.parse import quote

from trainctl.base.lazy_named_tuple import NamedTuple

UNSIGNED = "UNSIGNED-PAYLOAD"

_ALGORITHM = "AWS4-HMAC-SHA256"
_NONE: Mapping[str, str] = {}
Query = Sequence[Tuple[str, str]]


class S3Credential(NamedTuple):
    """An access key; all but the key id is secret."""

    key_id: str
    secret: str
    token: Optional[str] = None


class RequestTarget(NamedTuple):
    """A request to sign: ``host`` with its port, ``path`` not yet quoted."""

    method: str
    host: str
    path: str
    query: Query = ()


def quote_path(path: str) -> str:
    """Percent-encode all of a path but unreserved characters and ``/``."""
    return quote(path, safe="/~")


def quote_query(query: Query) -> str:
    """Return the canonical query: sorted, names and values percent-encoded."""
    pairs = sorted((quote(name, safe="~"), quote(value, safe="~")) for name, value in query)
    return "&".join(f"{name}={value}" for name, value in pairs)


def signed_headers(
    target: RequestTarget,
    credential: S3Credential,
    region: str,
    payload_sha256: str,
    now: float,
    more: Mapping[str, str] = _NONE,
) -> Dict[str, str]:
    """Return ``more`` headers and the signature, ``now`` in Unix seconds."""
    moment = _timestamp(now)
    signed = {
        **more,
        "host": target.host,
        "x-amz-content-sha256": payload_sha256,
        "x-amz-date": moment,
    }
    if credential.token:
        signed["x-amz-security-token"] = credential.token
    scope = f"{moment[:8]}/{region}/s3/aws4_request"
    signature = _signature(target, signed, payload_sha256, scope, moment, credential)
    names = ";".join(sorted(signed))
    return {
        **signed,
        "authorization": f"{_ALGORITHM} Credential={credential.key_id}/{scope}, "
        f"SignedHeaders={names}, Signature={signature}",
    }


def presigned_query(
    target: RequestTarget,
    credential: S3Credential,
    region: str,
    seconds: int,
    now: float,
    headers: Query = (),
) -> str:
    """Return the query of a presigned URL that is valid for ``seconds`` from ``now``; requests must send the headers."""
    signed = {"host": target.host, **dict(headers)}
    moment = _timestamp(now)
    scope = f"{moment[:8]}/{region}/s3/aws4_request"
    query = [
        *target.query,
        ("X-Amz-Algorithm", _ALGORITHM),
        ("X-Amz-Credential", f"{credential.key_id}/{scope}"),
        ("X-Amz-Date", moment),
        ("X-Amz-Expires", str(seconds)),
        ("X-Amz-SignedHeaders", ";".join(sorted(signed))),
    ]
    if credential.token:
        query.append(("X-Amz-Security-Token", credential.token))
    unsigned = target._replace(query=query)
    signature = _signature(unsigned, signed, UNSIGNED, scope, moment, credential)
    return f"{quote_query(query)}&X-Amz-Signature={signature}"


def _signature(
    target: RequestTarget,
    signed: Mapping[str, str],
    payload: str,
    scope: str,
    moment: str,
    credential: S3Credential,
) -> str:
    names = sorted(signed)
    request = "\n".join(
        [
            target.method,
            quote_path(target.path),
            quote_query(target.query),
            *(f"{name}:{signed[name].strip()}" for name in names),
            "",
            ";".join(names),
            payload,
        ]
    )
    text = "\n".join([_ALGORITHM, moment, scope, hashlib.sha256(request.encode()).hexdigest()])
    key = ("AWS4" + credential.secret).encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _timestamp(now: float) -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
