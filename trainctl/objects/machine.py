"""What a machine of a cloud says of itself: whose it is, and the tokens of its own account. Asked only where it is known to be one.

A token is had from addresses that the platforms document, or that the environment names in their place; no manifest can.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from trainctl.objects.straight import opener
from trainctl.spi.sources import Credential

_DMI = Path("/sys/class/dmi/id")
_FIRMWARE = {
    "s3": ("sys_vendor", "Amazon EC2"),
    "gs": ("product_name", "Google Compute Engine"),
    "azure": ("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77"),
}
"""What the firmware of each platform's machines says, and no other's."""
_NAMED = {
    "s3": ("AWS_EC2_METADATA_SERVICE_ENDPOINT",),
    "gs": ("GCE_METADATA_HOST",),
    "azure": ("IDENTITY_ENDPOINT", "AZURE_POD_IDENTITY_AUTHORITY_HOST"),
}
"""Variables by which the environment says that there is such a server, and where."""
_LINK_LOCAL = "http://169.254.169.254"
_SECONDS = 2.0
_AZURE_RESOURCE = "https://storage.azure.com/"


def is_of(scheme: str, environ: Mapping[str, str], dmi: Path = _DMI) -> bool:
    """Whether this machine, or its environment, says that the scheme's platform can be asked here."""
    if environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true" and scheme == "s3":
        return False
    if any(environ.get(name) for name in _NAMED[scheme]):
        return True
    name, value = _FIRMWARE[scheme]
    try:
        return (dmi / name).read_text().strip() == value
    except OSError:
        return False


def google_account(environ: Mapping[str, str]) -> Credential | None:
    """A token of this machine's service account; None where it has none.

    https://cloud.google.com/compute/docs/access/authenticate-workloads
    """
    host = environ.get("GCE_METADATA_HOST") or "metadata.google.internal"
    url = f"http://{host}/computeMetadata/v1/instance/service-accounts/default/token"
    found = _fetched(url, {"Metadata-Flavor": "Google"})
    return _token(found, "this machine's service account", partial(google_account, environ))


def azure_identity(environ: Mapping[str, str]) -> Credential | None:
    """A token of this machine's managed identity; None where it has none.

    https://learn.microsoft.com/entra/identity/managed-identities-azure-resources/how-to-use-vm-token
    """
    query = f"resource={_AZURE_RESOURCE}"
    if endpoint := environ.get("IDENTITY_ENDPOINT"):  # of App Service and Container Apps
        url = f"{endpoint}?api-version=2019-08-01&{query}"
        headers = {"X-IDENTITY-HEADER": environ.get("IDENTITY_HEADER", "")}
    else:
        host = environ.get("AZURE_POD_IDENTITY_AUTHORITY_HOST", "").rstrip("/") or _LINK_LOCAL
        url = f"{host}/metadata/identity/oauth2/token?api-version=2018-02-01&{query}"
        headers = {"Metadata": "true"}
    found = _fetched(url, headers)
    return _token(found, "this machine's managed identity", partial(azure_identity, environ))


def _token(found: Mapping[str, Any], origin: str, again: Any) -> Credential | None:
    token, lasts = found.get("access_token"), str(found.get("expires_in") or "")
    if not isinstance(token, str) or not token:
        return None
    document = {"access_token": token}
    if re.fullmatch(r"[0-9]{1,9}", lasts):
        ends = datetime.now(UTC) + timedelta(seconds=int(lasts))
        document["expires_at"] = ends.isoformat()

    def renew() -> Credential:
        return again() or Credential(json.dumps(document), origin)

    return Credential(json.dumps(document), origin, renew=renew)


def _fetched(url: str, headers: Mapping[str, str]) -> Mapping[str, Any]:
    """What the server answers, which is never asked through a proxy; nothing where there is none."""
    import urllib.request  # loaded by who asks

    direct = opener(urllib.request.ProxyHandler({}))
    try:
        request = urllib.request.Request(url, headers=dict(headers))  # noqa: S310 - the platform's, or the environment's
        with direct.open(request, timeout=_SECONDS) as answer:
            found = json.loads(answer.read(2**16))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
