"""Conversion of ``WeightsSource``."""

from __future__ import annotations

from typing import Any

from trainctl.model.imported_manifest import ImportedManifest, ImportOutcome
from trainctl.operations.truss.section import ConfigSection

_COREWEAVE = "cw://"
_COREWEAVE_ENDPOINT = "https://cwobject.com"
"""https://docs.coreweave.com/products/storage/object-storage"""


def weights_section(result: ImportedManifest, number: int, value: Any) -> dict[str, Any]:
    """Convert the entry with this number."""
    weights = ConfigSection.of(f"weights[{number}]", value)
    source, at = weights.take("source", ""), ("weights", number)
    section: dict[str, Any] = {
        "source": source.removesuffix("@"),
        "mount_location": weights.take("mount_location", ""),
    }
    if source.startswith(_COREWEAVE):
        section["source"] = f"s3://{source.removeprefix(_COREWEAVE)}"
        section["endpoint_url"] = _COREWEAVE_ENDPOINT
        text = "CoreWeave's object storage is read by its S3 interface."
        result.note(ImportOutcome.CHANGED, f"{weights.name}.source", text, *at)
    section |= _auth(result, weights)
    for key in ("allow_patterns", "ignore_patterns"):
        patterns = weights.take(key, [])
        if patterns:
            section[key] = list(map(_anchor, patterns))
        if patterns and section[key] != patterns:
            text = "A leading '/' keeps the service's meaning: '*' doesn't match '/'."
            result.note(ImportOutcome.CHANGED, f"{weights.name}.{key}", text, *at)
    weights.finish(result)
    return section


def _auth(result: ImportedManifest, weights: ConfigSection) -> dict[str, Any]:
    auth = {key: item for key, item in weights.take("auth", {}).items() if item is not None}
    secret = weights.take("auth_secret_name") or auth.get("auth_secret_name")
    if secret and not auth:
        return {"auth_secret_name": result.secret(secret)}
    if secret:
        auth["auth_secret_name"] = result.secret(secret)
    return {"auth": auth} if auth else {}


def _anchor(pattern: str) -> str:
    """Return a pattern with the same meaning here, where ``*`` matches ``/`` unless a pattern starts with ``/``."""
    is_literal = not set("*?[") & set(pattern)
    return pattern if is_literal or pattern.startswith("/") else f"/{pattern}"
