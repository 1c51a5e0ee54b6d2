"""Container images and credentials of registries, with Baseten's names."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, model_validator

from trainctl.manifest.types.auth import Region, RoleArn, ServiceAccount, WorkloadProvider
from trainctl.manifest.types.base import ManifestSection, SecretReference, Text, validation_error


class AwsIamDockerAuth(ManifestSection):
    """An AWS access key."""

    access_key_secret_ref: SecretReference
    """Secret with the access key ID."""
    secret_access_key_secret_ref: SecretReference
    """Secret with the secret access key."""


class AwsRoleDockerAuth(ManifestSection):
    """An AWS role."""

    role_arn: RoleArn
    """ARN of the role."""
    region: Region
    """Region of the registry."""


class GcpOidcDockerAuth(ManifestSection):
    """A Google service account, by workload identity federation."""

    service_account: ServiceAccount
    """E-mail address of the account."""
    workload_identity_provider: WorkloadProvider
    """Full name of the provider."""


class GcpServiceAccountJsonDockerAuth(ManifestSection):
    """A Google service account, by its key."""

    service_account_json_secret_ref: SecretReference
    """Secret with the key as JSON."""


class RegistrySecretDockerAuth(ManifestSection):
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


class DockerAuth(ManifestSection):
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

    @model_validator(mode="after")
    def _block_fits_method(self) -> DockerAuth:
        blocks = {block for block in _BLOCKS.values() if getattr(self, block) is not None}
        if blocks != {_BLOCKS[self.auth_method]}:
            raise validation_error(
                f"{self.auth_method} requires {_BLOCKS[self.auth_method]} and no other block",
                f"Add {_BLOCKS[self.auth_method]}: {{…}} next to auth_method, and remove other blocks.",
                code="redundant-key",
            )
        return self


_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    r"(?:(?:localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|\[[0-9a-fA-F:]+\]|[A-Za-z0-9-]+(?=:[0-9]))(?::[0-9]+)?/)?"
    rf"{_PART}(?:/{_PART})*(?::\w[\w.-]{{0,127}})?(?:@[A-Za-z0-9+._-]+:[0-9a-fA-F]{{32,}})?",
    re.ASCII,
)
"""[REGISTRY[:PORT]/]NAME[:TAG][@DIGEST], see https://pkg.go.dev/github.com/distribution/reference."""


def _image(text: str) -> str:
    if not _REFERENCE.fullmatch(text):
        raise validation_error(
            "not an image name",
            "Use [REGISTRY/]NAME[:TAG][@DIGEST] with a lower-case NAME, for example pytorch/pytorch:2.7.0-cuda12.8-cudnn9-runtime.",
            code="invalid-value",
        )
    return text


class Image(ManifestSection):
    """Container image of a job."""

    base_image: Annotated[Text, AfterValidator(_image)]
    """Image reference, for example ``pytorch/pytorch:2.7.1-cuda12.8-cudnn9-runtime``."""
    docker_auth: DockerAuth | None = None
    """Credential for a private registry."""
