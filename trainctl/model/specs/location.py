"""Locations of mirror, checkpoints and state."""

from __future__ import annotations

from collections.abc import Set
from typing import Annotated, Literal
from urllib.parse import unquote

from trainctl.base.lazy_dataclass import dataclass, field
from trainctl.model.credentials import url_has_credential
from trainctl.model.json_codec import OMIT_EMPTY
from trainctl.model.source_uri import BUCKETS
from trainctl.model.specs.auth import Auth, EndpointUrl, validate_source
from trainctl.model.specs.checks import (
    CheckedSection,
    Count,
    Duration,
    Name,
    Size,
    Text,
    check,
    listed,
    validation_error,
)

_SCHEMES = ("file", *BUCKETS, "node")
_FORMS = "file:///DIRECTORY, s3://BUCKET/PREFIX, gs://, r2://, azure:// or node://CLUSTER/PATH"


def _url(text: str) -> str:
    if url_has_credential(text):
        raise validation_error(
            "the URL contains a credential",
            "Declare the credential under 'secrets' and name the secret in 'auth'.",
            code="credential",
        )
    scheme, colon, rest = text.partition("://")
    if not colon or scheme not in _SCHEMES:
        raise validation_error("unsupported storage URL", f"Use {_FORMS}.", code="invalid-location")
    if scheme == "file" and not rest.startswith("/"):
        raise validation_error(
            "expected an absolute path after file://",
            "Use file:///DIRECTORY.",
            code="invalid-location",
        )
    if scheme not in BUCKETS and "%2f" in rest.lower():
        raise validation_error(
            "the URL contains an encoded slash (%2F)",
            "Use / as the separator, and choose names without a slash.",
            code="invalid-location",
        )
    path = rest if scheme in BUCKETS else unquote(rest)
    if not path.strip("/") or ".." in path.split("/") or "\0" in path:
        raise validation_error(
            "the URL has no path or bucket", f"Use {_FORMS}.", code="invalid-location"
        )
    return validate_source(text, "invalid-location") if scheme in BUCKETS else text


Url = Annotated[str, check(_url, pattern=f"^({'|'.join(_SCHEMES)})://")]


@dataclass(frozen=True, slots=True)
class Location(CheckedSection):
    """A directory, or a prefix of a bucket."""

    url: Url
    """``file:///DIRECTORY``, ``s3://BUCKET/PREFIX`` (also ``gs``, ``r2``, ``azure``),
    ``node://CLUSTER/PATH``, or ``node://CLUSTER`` for the default directory there."""
    endpoint_url: EndpointUrl | None = None
    """Custom endpoint URL, for example of an S3-compatible server."""
    auth: Auth | None = None
    """Credential; default: the platform's default credential chain."""

    def check_keys(self, written: Set[str]) -> None:
        """Refuse an endpoint or a credential for a directory."""
        in_bucket = not (self.url or "file:").startswith(("file:", "node:"))
        if (self.endpoint_url or self.auth) and not in_bucket:
            raise validation_error(
                "endpoint_url and auth can't be used with a directory",
                "Remove them, or use the URL of a bucket.",
                code="redundant-key",
            )

    @property
    def secret(self) -> str | None:
        """Name of the secret that is its credential."""
        return self.auth.auth_secret_name if self.auth else None


@dataclass(frozen=True, slots=True)
class StateKey(CheckedSection):
    """A key that encrypts the state and plan files."""

    id: Name
    """Name of the key, which is stored with everything that it encrypts; never reuse it."""
    secret: Name
    """Name of a secret declared in ``secrets``: a key of 32 bytes in base64, as printed by
    ``openssl rand -base64 32``, or a passphrase, from which scrypt derives the key."""


@dataclass(frozen=True, slots=True)
class StateEncryption(CheckedSection):
    """Encryption of the state and of plan files."""

    keys: Annotated[tuple[StateKey, ...], listed(least=1)]
    """The first key encrypts; all decrypt."""

    def check_keys(self, written: Set[str]) -> None:
        """Refuse equal ids."""
        if len({key.id for key in self.keys}) < len(self.keys):
            raise validation_error(
                "two keys have the same id", "Give each key its own id.", code="invalid-value"
            )


@dataclass(frozen=True, slots=True)
class StateLocation(Location):
    """Location of the state."""

    server_side_encryption: Literal["AES256", "aws:kms", "aws:kms:dsse"] | None = None
    """S3's server-side encryption; default: that of the bucket."""
    kms_key_id: str | None = None
    """Id or ARN of the KMS key; default: that of AWS for S3."""
    encryption: StateEncryption | None = None
    """Encryption of the state and of plan files on this machine, before they are stored."""

    def check_keys(self, written: Set[str]) -> None:
        """Refuse a node, and encryption that the place does not have."""
        Location.check_keys(self, written)
        if self.url.startswith("node:"):
            raise validation_error(
                "the state can't be on a node",
                "Use file:///DIRECTORY or the URL of a bucket.",
                code="invalid-location",
            )
        algorithm = self.server_side_encryption
        if algorithm and not self.url.startswith("s3://"):
            raise validation_error(
                "server_side_encryption can be used with s3: only",
                "Remove it, and set the encryption of the bucket on its platform.",
                code="redundant-key",
            )
        if self.kms_key_id and not (algorithm or "").startswith("aws:kms"):
            raise validation_error(
                "kms_key_id needs server_side_encryption aws:kms",
                "Add server_side_encryption: aws:kms.",
                code="redundant-key",
            )

    @property
    def keys(self) -> tuple[StateKey, ...]:
        """Keys of the encryption on this machine, the first of which encrypts."""
        return self.encryption.keys if self.encryption else ()


@dataclass(frozen=True, slots=True)
class StoreLocation(StateLocation):
    """Location of the mirror or the state; ``url`` None is the default location."""

    url: str | None = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class CheckpointRanking(CheckedSection):
    """The best checkpoints by a number that was reported at their step."""

    metric: Text
    """Key of a result, for example ``val_loss``, or ``JOB.KEY`` of a job with
    ``for_each_checkpoint``."""
    mode: Literal["min", "max"] = "min"
    """Whether the lowest or the highest is the best."""
    count: Count = 1
    """Number of checkpoints per run."""

    @classmethod
    def read(cls, text: str) -> CheckpointRanking:
        """Read ``KEY``, ``KEY:min`` or ``KEY:max``."""
        key, _, mode = text.rpartition(":")
        return cls(key, "max" if mode == "max" else "min") if mode in ("min", "max") else cls(text)


@dataclass(frozen=True, slots=True)
class CheckpointsLocation(Location):
    """Location and retention of checkpoints."""

    url: Url | None = None  # type: ignore[assignment]
    """``file:///DIRECTORY`` on the nodes, or ``s3://BUCKET/PREFIX``; default: the data directory
    of the job's node."""
    auth: Auth | None = None
    """Credential; default: that of the environment (``AWS_ACCESS_KEY_ID`` …)."""
    keep_last: Count | None = None
    """Number of latest complete checkpoints to keep per run; default: all, unless ``keep_every``
    is set."""
    keep_every: Count | None = None
    """Also keep checkpoints whose step is a multiple of this."""
    keep_best: CheckpointRanking | None = field(default=None, metadata=OMIT_EMPTY)
    """Also keep the best checkpoints. One whose step has no value yet is kept until it has. Its metric
    is that of ``best`` in commands."""
    max_rate: Size | None = None
    """Upload limit in bytes per second, for example 100MB."""
    upload_timeout: Duration = "1h"
    """Time to wait for the last upload when a run ends."""
