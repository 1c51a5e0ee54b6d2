"""Credentials in the platforms' own places, as text that ``access`` reads. Last of all comes the machine's own account, where it is one of the platform's."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from trainctl.errors import SourceDenied, TrainctlError
from trainctl.objects.exchange import aws_session, google_default
from trainctl.objects.machine import azure_identity, google_account, is_of
from trainctl.spi.sources import Credential

_AWS = {
    "AWS_ACCESS_KEY_ID": "aws_access_key_id",
    "AWS_SECRET_ACCESS_KEY": "aws_secret_access_key",
    "AWS_SESSION_TOKEN": "aws_session_token",
    "AWS_REGION": "aws_region",
}
_AWS_ELSEWHERE = (
    "AWS_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
"""Variables by which the environment says that boto3 will find a credential."""

_R2 = {"R2_ACCESS_KEY_ID": "aws_access_key_id", "R2_SECRET_ACCESS_KEY": "aws_secret_access_key"}
_AZURE_KEYS = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_KEY")
_AZURE_SAS = ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY")
_AZURE_PRINCIPAL = {
    "AZURE_TENANT_ID": "tenant_id",
    "AZURE_CLIENT_ID": "client_id",
    "AZURE_CLIENT_SECRET": "client_secret",
}


_Kept = tuple[str, Callable[[], Credential]]
"""Where a credential is, and how it is had from there."""


def usual_credential(
    scheme: str, account: str, environ: Mapping[str, str] = os.environ
) -> Credential | None:
    """What the platform's own tools would use for the scheme, and for Azure for that account; None where there is nothing."""
    kept = _kept(scheme, account, environ)
    return kept[1]() if kept else _of_machine(scheme, environ)


def kept_in(scheme: str, account: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """Where that is, told without having it; None also where only the machine could have an account, as it isn't asked."""
    kept = _kept(scheme, account, environ)
    return kept[0] if kept else None


def _kept(scheme: str, account: str, environ: Mapping[str, str]) -> _Kept | None:
    if scheme == "azure":
        found = _azure(account, environ)
    elif scheme == "gs":
        return _google(environ)
    else:
        found = (_from(_R2, environ) if scheme == "r2" else None) or _from(
            _AWS, environ, "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"
        )
        if found is None:
            return _aws_elsewhere(environ)
    return (found.origin, lambda: found) if found else None


def _of_machine(scheme: str, environ: Mapping[str, str]) -> Credential | None:
    if scheme == "azure":
        return azure_identity(environ) if is_of("azure", environ) else None
    if scheme == "gs":
        return google_account(environ) if is_of("gs", environ) else None
    return _role_of_machine() if is_of("s3", environ) else None


def _aws_elsewhere(environ: Mapping[str, str]) -> _Kept | None:
    """What boto3 would find."""
    told = next((name for name in _AWS_ELSEWHERE if environ.get(name)), None)
    if told is None and _has_aws_files(environ):
        told = "the files in ~/.aws"
    return (told, lambda: aws_session(told)) if told else None


def _role_of_machine() -> Credential | None:
    """The session of the machine's role. Nobody said that it has one: where it hasn't, or boto3 isn't there to ask, there is none."""
    try:
        return aws_session("this machine's role")
    except TrainctlError:
        return None


def _has_aws_files(environ: Mapping[str, str]) -> bool:
    home = Path(environ.get("HOME") or Path.home()) / ".aws"
    named = environ.get("AWS_SHARED_CREDENTIALS_FILE")
    return (Path(named) if named else home / "credentials").is_file()


def _google(environ: Mapping[str, str]) -> _Kept | None:
    named = environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    home = Path(environ.get("HOME") or Path.home())
    path = (
        Path(named)
        if named
        else home / ".config" / "gcloud" / "application_default_credentials.json"
    )
    if not named and not path.is_file():
        return None
    origin = "GOOGLE_APPLICATION_CREDENTIALS" if named else "gcloud auth application-default login"
    return origin, lambda: _google_of(path, origin)


def _google_of(path: Path, origin: str) -> Credential:
    try:
        text = path.read_text(encoding="utf-8")
        kind = json.loads(text).get("type")
    except OSError as error:
        raise SourceDenied(
            f"{origin} names {path}, which can't be read ({error.strerror})",
            "Name the file of a credential, or unset the variable.",
            code="missing-secret",
        ) from None
    except (ValueError, AttributeError):
        raise SourceDenied(
            f"{origin}: {path} is no credential of Google's: it is no JSON object",
            "Write there the JSON that Google hands out.",
            code="unusable-secret",
        ) from None
    if kind == "service_account":
        return Credential(text, origin)
    return google_default(origin)


def _azure(account: str, environ: Mapping[str, str]) -> Credential | None:
    if text := environ.get("AZURE_STORAGE_CONNECTION_STRING", "").strip():
        return Credential(text, "AZURE_STORAGE_CONNECTION_STRING")
    named = environ.get("AZURE_STORAGE_ACCOUNT") or environ.get("AZURE_STORAGE_ACCOUNT_NAME")
    if named in (None, account):
        for names, member in ((_AZURE_KEYS, "account_key"), (_AZURE_SAS, "sas_token")):
            for name in names:
                if value := environ.get(name, "").strip():
                    return Credential(json.dumps({member: value}), name)
    return _from(_AZURE_PRINCIPAL, environ)


def _from(
    members: Mapping[str, str], environ: Mapping[str, str], *needed: str
) -> Credential | None:
    """The variables as a JSON object, if those that are needed (all, unless some are named) are set."""
    found = {name: environ.get(name, "").strip() for name in members}
    if not all(found[name] for name in needed or members):
        return None
    if "AWS_REGION" in found:
        found["AWS_REGION"] = found["AWS_REGION"] or environ.get("AWS_DEFAULT_REGION", "")
    document = {member: found[name] for name, member in members.items() if found[name]}
    return Credential(json.dumps(document), next(iter(needed or members)))
