"""Container images and credentials of registries, with Baseten's names."""

from __future__ import annotations

import re
from collections.abc import Set
from typing import Annotated, Literal

from trainctl.base.lazy_dataclass import dataclass, fields
from trainctl.model.specs.auth import Region, RoleArn, ServiceAccount, WorkloadProvider
from trainctl.model.specs.checks import (
    CheckedSection,
    SecretReference,
    Text,
    check,
    validation_error,
)


@dataclass(frozen=True, slots=True)
class AwsIamDockerAuth(CheckedSection):
    """An AWS access key."""

    access_key_secret_ref: SecretReference
    """Secret with the access key ID."""
    secret_access_key_secret_ref: SecretReference
    """Secret with the secret access key."""


@dataclass(frozen=True, slots=True)
class AwsRoleDockerAuth(CheckedSection):
    """An AWS role."""

    role_arn: RoleArn
    """ARN of the role."""
    region: Region
    """Region of the registry."""


@dataclass(frozen=True, slots=True)
class GcpOidcDockerAuth(CheckedSection):
    """A Google service account, by workload identity federation."""

    service_account: ServiceAccount
    """E-mail address of the account."""
    workload_identity_provider: WorkloadProvider
    """Full name of the provider."""


@dataclass(frozen=True, slots=True)
class GcpServiceAccountJsonDockerAuth(CheckedSection):
    """A Google service account, by its key."""

    service_account_json_secret_ref: SecretReference
    """Secret with the key as JSON."""


@dataclass(frozen=True, slots=True)
class RegistrySecretDockerAuth(CheckedSection):
    """A user name and password."""

    secret_ref: SecretReference
    """Secret with ``username:password``."""


_BLOCKS = {
    "AWS_IAM": "aws_iam_docker_auth",
    "AWS_OIDC": "aws_oidc_docker_auth",
    "AWS_ASSUME_ROLE": "aws_assume_role_docker_auth",
    "GCP_OIDC": "gcp_oidc_docker_auth",
    "GCP_SERVICE_ACCOUNT_JSON": "gcp_service_account_json_docker_auth",
    "REGISTRY_SECRET": "registry_secret_docker_auth",
}


@dataclass(frozen=True, slots=True)
class DockerAuth(CheckedSection):
    """Credential for a private registry: a method and its settings."""

    auth_method: Literal[
        "AWS_IAM",
        "AWS_OIDC",
        "AWS_ASSUME_ROLE",
        "GCP_OIDC",
        "GCP_SERVICE_ACCOUNT_JSON",
        "REGISTRY_SECRET",
    ]
    """Method."""
    registry: Text
    """Host of the registry."""
    aws_iam_docker_auth: AwsIamDockerAuth | None = None
    """Settings of AWS_IAM."""
    aws_oidc_docker_auth: AwsRoleDockerAuth | None = None
    """Settings of AWS_OIDC."""
    aws_assume_role_docker_auth: AwsRoleDockerAuth | None = None
    """Settings of AWS_ASSUME_ROLE."""
    gcp_oidc_docker_auth: GcpOidcDockerAuth | None = None
    """Settings of GCP_OIDC."""
    gcp_service_account_json_docker_auth: GcpServiceAccountJsonDockerAuth | None = None
    """Settings of GCP_SERVICE_ACCOUNT_JSON."""
    registry_secret_docker_auth: RegistrySecretDockerAuth | None = None
    """Settings of REGISTRY_SECRET."""

    def check_keys(self, written: Set[str]) -> None:
        """Require the block of the method, and no other."""
        blocks = {block for block in _BLOCKS.values() if getattr(self, block) is not None}
        if blocks != {_BLOCKS[self.auth_method]}:
            raise validation_error(
                f"{self.auth_method} requires {_BLOCKS[self.auth_method]} and no other block",
                f"Add {_BLOCKS[self.auth_method]}: {{…}} next to auth_method, and remove other blocks.",
                code="redundant-key",
            )

    @property
    def secrets(self) -> tuple[str, ...]:
        """Names of the secrets that it uses."""
        blocks = [block for name in _BLOCKS.values() if (block := getattr(self, name))]
        values = [getattr(block, field.name) for block in blocks for field in fields(block)]
        names = {value.secret for value in values if isinstance(value, SecretReference)}
        return tuple(sorted(names))


_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_REFERENCE = (
    r"(?:(?:localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|\[[0-9a-fA-F:]+\]|[A-Za-z0-9-]+(?=:[0-9]))(?::[0-9]+)?/)?"
    rf"{_PART}(?:/{_PART})*(?::\w[\w.-]{{0,127}})?(?:@[A-Za-z0-9+._-]+:[0-9a-fA-F]{{32,}})?"
)
"""[REGISTRY[:PORT]/]NAME[:TAG][@DIGEST], see https://pkg.go.dev/github.com/distribution/reference."""


def _image(text: str) -> str:
    if not re.fullmatch(_REFERENCE, text, re.ASCII):
        raise validation_error(
            "not an image name",
            "Use [REGISTRY/]NAME[:TAG][@DIGEST] with a lower-case NAME, for example pytorch/pytorch:2.7.0-cuda12.8-cudnn9-runtime.",
            code="invalid-value",
        )
    return text


@dataclass(frozen=True, slots=True)
class Image(CheckedSection):
    """Container image of a job."""

    base_image: Annotated[Text, check(_image)]
    """Image reference, for example ``pytorch/pytorch:2.7.1-cuda12.8-cudnn9-runtime``."""
    docker_auth: DockerAuth | None = None
    """Credential for a private registry."""
