"""Links into Azure's storage, signed by an account's key: a service SAS of version 2020-12-06 or later.

The form is https://learn.microsoft.com/rest/api/storageservices/create-service-sas. obstore signs a name as a URL quotes it, and Azure checks it as it is.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

from trainctl.objects.access import AzureKey
from trainctl.objects.place import Place

VERSION = "2021-08-06"
_LATE = timedelta(minutes=5)
"""How far behind the server's clock may be."""


def shared_signature(
    access: AzureKey, place: Place, blob: str | None, permissions: str, seconds: int, now: float
) -> str:
    """The query of a URL by which anybody may do this with a blob, or with the container, for so many seconds. ``now`` is Unix time."""
    start = datetime.fromtimestamp(now, UTC)
    resource = "/".join(
        ("/blob", place.account, place.bucket, *([blob] if blob is not None else []))
    )
    signed = {
        "sp": permissions,
        "st": f"{start - _LATE:%Y-%m-%dT%H:%M:%SZ}",
        "se": f"{start + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%SZ}",
        "spr": "https,http" if (place.endpoint or "").startswith("http:") else "https",
        "sv": VERSION,
        "sr": "c" if blob is None else "b",
    }
    # Between them: an identifier and addresses; then a snapshot, an encryption scope, and five headers of the answer.
    lines = [signed["sp"], signed["st"], signed["se"], resource, "", "", *list(signed.values())[3:]]
    text = "\n".join([*lines, "", "", "", "", "", "", ""])
    key = base64.b64decode(access.key)
    signature = hmac.new(key, text.encode(), hashlib.sha256).digest()
    return urlencode({**signed, "sig": base64.b64encode(signature).decode()})
