"""Default credential chains of the platforms.

Metadata servers are queried only if firmware or environment show that this machine has one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from trainctl.buckets import logins
from trainctl.errors import SourceDenied, TrainctlError
from trainctl.plugin_api.sources import SourceCredential

_AWS_KEYS = {
    "AWS_ACCESS_KEY_ID": "aws_access_key_id",
    "AWS_SECRET_ACCESS_KEY": "aws_secret_access_key",
}
_R2_KEYS = {
    "R2_ACCESS_KEY_ID": "aws_access_key_id",
    "R2_SECRET_ACCESS_KEY": "aws_secret_access_key",
}
_AWS_CHAIN = (
    "AWS_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
"""Variables that tell that boto3 finds a credential; ``_AZURE_CHAIN`` for azure-identity."""
_AZURE_CHAIN = ("AZURE_FEDERATED_TOKEN_FILE", "AZURE_CLIENT_CERTIFICATE_PATH")
_AZURE_MEMBERS = {
    "AZURE_STORAGE_ACCOUNT_KEY": "account_key",
    "AZURE_STORAGE_ACCESS_KEY": "account_key",
    "AZURE_STORAGE_KEY": "account_key",
    "AZURE_STORAGE_SAS_TOKEN": "sas_token",
    "AZURE_STORAGE_SAS_KEY": "sas_token",
}
_AZURE_PRINCIPAL = {
    "AZURE_TENANT_ID": "tenant_id",
    "AZURE_CLIENT_ID": "client_id",
    "AZURE_CLIENT_SECRET": "client_secret",
}
_DMI = Path("/sys/class/dmi/id")
_PLATFORM_MACHINES: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "s3": ("sys_vendor", "Amazon EC2", ("AWS_EC2_METADATA_SERVICE_ENDPOINT",)),
    "gs": ("product_name", "Google Compute Engine", ("GCE_METADATA_HOST",)),
    "azure": (
        "chassis_asset_tag",
        "7783-7084-3265-9085-8269-3286-77",
        ("IDENTITY_ENDPOINT", "AZURE_POD_IDENTITY_AUTHORITY_HOST"),
    ),
}
"""By platform a firmware file, its content on that platform, and variables that name a metadata server."""

_Origin = tuple[str, Callable[[], SourceCredential]]
"""Name of a credential's origin, and a function to read it."""


def default_credential(
    scheme: str, account: str, environ: Mapping[str, str] = os.environ
) -> SourceCredential | None:
    """Return the credential of the platform's own tools; None without any."""
    origin = _find_origin(scheme, account, environ)
    if origin is not None:
        return origin[1]()
    if not runs_on_platform(scheme, environ):
        return None
    tokens: dict[str, Callable[[str], SourceCredential]] = {
        "gs": partial(logins.google_token, of_machine=True),
        "azure": logins.azure_token,
    }
    try:
        return tokens.get(scheme, logins.default_aws_credential)("this machine's account")
    except TrainctlError:  # without an account or the library
        return None


def default_credential_origin(
    scheme: str, account: str, environ: Mapping[str, str] = os.environ
) -> str | None:
    """Return the origin of that credential, without reading it."""
    origin = _find_origin(scheme, account, environ)
    return origin[0] if origin else None


def runs_on_platform(scheme: str, environ: Mapping[str, str], dmi: Path = _DMI) -> bool:
    """Return whether this machine runs on the platform, by firmware and environment."""
    if (
        scheme not in ("gs", "azure")
        and environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true"
    ):
        return False
    name, content, variables = _PLATFORM_MACHINES.get(scheme, _PLATFORM_MACHINES["s3"])
    if any(environ.get(variable) for variable in variables):
        return True
    try:
        return (dmi / name).read_text().strip() == content
    except OSError:
        return False


def _find_origin(scheme: str, account: str, environ: Mapping[str, str]) -> _Origin | None:
    if scheme == "azure":
        return _azure(account, environ)
    if scheme == "gs":
        return _google(environ)
    return (_from_variables(_R2_KEYS, environ) if scheme == "r2" else None) or _aws(environ)


def _aws(environ: Mapping[str, str]) -> _Origin | None:
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    optional = {"aws_session_token": environ.get("AWS_SESSION_TOKEN"), "aws_region": region}
    if keys := _from_variables(_AWS_KEYS, environ, optional):
        return keys
    shared = environ.get("AWS_SHARED_CREDENTIALS_FILE")
    files = Path(shared) if shared else _home(environ) / ".aws" / "credentials"
    origin = _first(_AWS_CHAIN, environ) or ("the files in ~/.aws" if files.is_file() else None)
    return (origin, lambda: logins.default_aws_credential(origin)) if origin else None


def _google(environ: Mapping[str, str]) -> _Origin | None:
    if named := environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        origin = "GOOGLE_APPLICATION_CREDENTIALS"
        return origin, lambda: _google_file(Path(named), origin)
    path = _home(environ) / ".config" / "gcloud" / "application_default_credentials.json"
    origin = "gcloud auth application-default login"
    return (origin, lambda: _google_file(path, origin)) if path.is_file() else None


def _google_file(path: Path, origin: str) -> SourceCredential:
    """Return a service account's key, or a token of another credential file."""
    try:
        text = path.read_text(encoding="utf-8")
        kind = json.loads(text).get("type")
    except OSError as error:
        raise SourceDenied(
            f"cannot read {path}, named by {origin} ({error.strerror})",
            "Set it to the path of a credential file, or unset it.",
            code="missing-secret",
        ) from None
    except (ValueError, AttributeError):
        raise SourceDenied(
            f"{origin}: {path} is not a Google credential (not a JSON object)",
            "Replace the file with the JSON document provided by Google.",
            code="unusable-secret",
        ) from None
    if kind == "service_account":
        return SourceCredential(text, origin)
    return logins.google_token(origin)


def _azure(account: str, environ: Mapping[str, str]) -> _Origin | None:
    name = "AZURE_STORAGE_CONNECTION_STRING"
    if text := environ.get(name, "").strip():
        return name, lambda: SourceCredential(text, name)
    named = environ.get("AZURE_STORAGE_ACCOUNT") or environ.get("AZURE_STORAGE_ACCOUNT_NAME")
    if named in (None, account) and (key := _first(_AZURE_MEMBERS, environ)):
        return _from_variables({key: _AZURE_MEMBERS[key]}, environ)
    if principal := _from_variables(_AZURE_PRINCIPAL, environ):
        return principal
    profile = _home(environ) / ".azure" / "azureProfile.json"
    origin = _first(_AZURE_CHAIN, environ) or ("az login" if profile.is_file() else None)
    return (origin, lambda: logins.azure_token(origin)) if origin else None


def _from_variables(
    members: Mapping[str, str],
    environ: Mapping[str, str],
    optional: Mapping[str, str | None] | None = None,
) -> _Origin | None:
    """Return the variables as a JSON object, if all of ``members`` are set."""
    document = {member: environ.get(name, "").strip() for name, member in members.items()}
    if not all(document.values()):
        return None
    document |= {member: value for member, value in (optional or {}).items() if value}
    origin = next(iter(members))
    return origin, lambda: SourceCredential(json.dumps(document), origin)


def _first(names: Iterable[str], environ: Mapping[str, str]) -> str | None:
    return next((name for name in names if environ.get(name, "").strip()), None)


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or Path.home())
