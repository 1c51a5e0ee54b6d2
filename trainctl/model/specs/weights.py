"""Weights: sources of models and datasets, and their mount locations."""

from __future__ import annotations

from collections.abc import Set
from typing import Annotated

from trainctl.base.lazy_dataclass import dataclass
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.model.source_uri import BUCKETS, is_file_name, parse_source
from trainctl.model.specs.auth import EndpointUrl, SourceAuth, SourceAuthSpec, validate_source
from trainctl.model.specs.checks import (
    TEXT_OR_OBJECT,
    CheckedSection,
    InvalidMount,
    Lifecycle,
    MountLocation,
    Name,
    Texts,
    check,
    converted,
    normalize_mount,
    require,
    validation_error,
)

_METHODS = {"AWS_OIDC": ("s3",), "AWS_ASSUME_ROLE": ("s3",), "GCP_OIDC": ("gs",)}
_SHA256 = compile_lazily(r"[0-9a-fA-F]{64}")


def _source(text: str) -> str:
    return validate_source(text, "invalid-source")


def is_source(text: str) -> bool:
    """Whether an entry of a job is a source and not a declared name."""
    return ":" in text or "/" in text


def default_mount(source: str) -> str:
    """Return the default mount of a source; raise InvalidMount if it has no name."""
    return normalize_mount(f"weights/{parse_source(source).name}")


def _sha256(text: str) -> str:
    if not _SHA256.fullmatch(text):
        raise validation_error(
            "expected 64 hexadecimal digits",
            "Use the digest that sha256sum prints for the file.",
            code="invalid-value",
        )
    return text.lower()


def _bare_source(text: str) -> str:
    _require_file_name(_source(text))
    return text


def _require_file_name(source: str) -> None:
    try:
        default_mount(source)
    except InvalidMount:
        raise validation_error(
            "cannot derive a directory name from the source",
            "Add a mount_location: {source: …, mount_location: …}.",
            code="source-without-filename",
        ) from None


SourceUri = Annotated[str, check(_source, pattern="^(hf|s3|gs|r2|azure|https)://|^file:")]
Sha256 = Annotated[str, check(_sha256, pattern="^[0-9a-fA-F]{64}$")]
AllowPatterns = Annotated[
    Texts,
    require(  # in huggingface_hub, an empty list includes nothing
        len,
        "an empty list of patterns matches no file",
        "Add patterns, or remove 'allow_patterns' to include all files.",
        "empty-value",
        minItems=1,
    ),
]
FileName = Annotated[
    str,
    require(
        is_file_name,
        "not a file name",
        "Use a name without '/', other than '..'.",
        "invalid-value",
    ),
]


@dataclass(frozen=True, slots=True)
class InlineWeights(CheckedSection):
    """A source with its settings."""

    source: SourceUri
    """URI: ``hf://OWNER/REPOSITORY[@REVISION]``, ``s3://BUCKET/PREFIX``, ``file:./DIRECTORY`` and
    others."""
    mount_location: MountLocation | None = None
    """Read-only mount path; default: ``weights/`` and the last part of the source."""
    auth: SourceAuth | None = None
    """Credential; default: the platform's default credential chain."""
    auth_secret_name: Name | None = None
    """Short for ``auth: {auth_method: CUSTOM_SECRET, auth_secret_name: …}``."""
    endpoint_url: EndpointUrl | None = None
    """Custom endpoint URL, for example of an S3-compatible server; same as ``auth.endpoint_url``."""
    requester_pays: bool = False
    """Bill requests, as Requester Pays buckets need: of ``s3://`` to the credential's account, of
    ``gs://`` to the project in ``GOOGLE_CLOUD_PROJECT`` or of the credential."""
    allow_patterns: AllowPatterns | None = None
    """Include only files that match a pattern; ``*`` crosses ``/``."""
    ignore_patterns: Texts | None = None
    """Exclude files that match a pattern."""
    sha256: Sha256 | None = None
    """Expected SHA-256 of an ``https://`` file; it pins the source."""
    name: FileName | None = None
    """File name of an ``https://`` file; default: the server's (``Content-Disposition``), else the
    end of the URL."""

    def check_keys(self, written: Set[str]) -> None:
        """Refuse keys that contradict, or don't fit the scheme of the source."""
        if self.auth is not None and self.auth_secret_name is not None:
            raise validation_error(
                "the secret is set twice",
                "Remove 'auth' or 'auth_secret_name'.",
                code="redundant-key",
            )
        for key in ("sha256", "name"):
            if getattr(self, key) is not None and not self.source.startswith("https:"):
                raise validation_error(
                    f"{key} is supported for https:// sources only",
                    f"Remove '{key}'.",
                    code="redundant-key",
                )
        if self.mount_location is None:
            _require_file_name(self.source)
        scheme = self.source.partition(":")[0]
        inner = self.auth.endpoint_url if self.auth else None
        if (self.endpoint_url or inner) and scheme not in BUCKETS:
            raise validation_error(
                f"endpoint_url can't be used with {scheme}: sources",
                "Remove 'endpoint_url', or use the URL of a bucket.",
                code="redundant-key",
            )
        if self.endpoint_url and inner:
            raise validation_error(
                "the endpoint is set twice",
                "Keep 'endpoint_url' next to the source or in 'auth', not both.",
                code="redundant-key",
            )
        if self.requester_pays and scheme not in ("s3", "gs"):
            raise validation_error(
                f"requester_pays can't be used with {scheme}: sources",
                "Remove 'requester_pays'.",
                code="redundant-key",
            )
        method = self.auth.auth_method if self.auth else "CUSTOM_SECRET"
        if scheme not in _METHODS.get(method, (scheme,)):
            raise validation_error(
                f"{method} is not supported for {scheme}: sources",
                f"Use CUSTOM_SECRET; {method} is for {_METHODS[method][0]}:// sources.",
                code="invalid-value",
            )

    @property
    def secret(self) -> str | None:
        """Name of the secret for the source."""
        return self.auth.auth_secret_name if self.auth else self.auth_secret_name

    @property
    def effective_auth(self) -> SourceAuthSpec | None:
        """``auth`` in its long form, including the endpoint and who pays; None if empty."""
        auth = self.auth or SourceAuth(auth_secret_name=self.auth_secret_name)
        only_endpoint = auth.auth_method == "CUSTOM_SECRET" and auth.auth_secret_name is None
        spec = converted(
            auth,
            SourceAuthSpec,
            auth_method=None if only_endpoint else auth.auth_method,
            endpoint_url=self.endpoint_url or auth.endpoint_url,
            requester_pays=self.requester_pays,
        )
        return spec if spec != SourceAuthSpec() else None


@dataclass(frozen=True, slots=True)
class Weights(InlineWeights):
    """A model or dataset that jobs refer to by name."""

    lifecycle: Lifecycle = Lifecycle()
    """Lifecycle settings."""


DeclaredWeights = Annotated[Annotated[SourceUri, check(_bare_source)] | Weights, TEXT_OR_OBJECT]
"""A source, or a mapping with its settings."""

NameOrSource = Annotated[str, check(lambda text: _bare_source(text) if is_source(text) else text)]
JobWeightsEntry = Annotated[NameOrSource | InlineWeights, TEXT_OR_OBJECT]
"""The name of declared weights, a source, or a mapping with its settings."""
