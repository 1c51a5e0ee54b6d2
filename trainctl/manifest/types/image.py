"""Container images and how a registry lets one in. Names are the hosted service's."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, model_validator

from trainctl.manifest.types.base import ManifestSection, SecretReference, Text, validation_error
from trainctl.manifest.types.cloud import Region, RoleArn, ServiceAccount, WorkloadProvider


class AwsIamDockerAuth(ManifestSection):
    """An access key of AWS."""

    access_key_secret_ref: SecretReference
    """The access key's id."""
    secret_access_key_secret_ref: SecretReference
    """The access key."""


class AwsRoleDockerAuth(ManifestSection):
    """A role of AWS."""

    role_arn: RoleArn
    """The role."""
    region: Region
    """The registry's region."""


class GcpOidcDockerAuth(ManifestSection):
    """A service account of Google Cloud, by federation."""

    service_account: ServiceAccount
    """The account's address."""
    workload_identity_provider: WorkloadProvider
    """The provider's full name."""


class GcpServiceAccountJsonDockerAuth(ManifestSection):
    """A service account of Google Cloud, by its key."""

    service_account_json_secret_ref: SecretReference
    """The key as JSON."""


class RegistrySecretDockerAuth(ManifestSection):
    """A user and a password."""

    secret_ref: SecretReference
    """A secret that holds ``username:password``."""


_BLOCKS = {
    "AWS_IAM": "aws_iam_docker_auth",
    "AWS_OIDC": "aws_oidc_docker_auth",
    "AWS_ASSUME_ROLE": "aws_assume_role_docker_auth",
    "GCP_OIDC": "gcp_oidc_docker_auth",
    "GCP_SERVICE_ACCOUNT_JSON": "gcp_service_account_json_docker_auth",
    "REGISTRY_SECRET": "registry_secret_docker_auth",
}


class DockerAuth(ManifestSection):
    """How a private registry lets the image out: a method, and the one block that goes with it."""

    auth_method: Literal[
        "AWS_IAM",
        "AWS_OIDC",
        "AWS_ASSUME_ROLE",
        "GCP_OIDC",
        "GCP_SERVICE_ACCOUNT_JSON",
        "REGISTRY_SECRET",
    ]
    """Which way."""
    registry: Text
    """The registry's host."""
    aws_iam_docker_auth: AwsIamDockerAuth | None = None
    """With AWS_IAM."""
    aws_oidc_docker_auth: AwsRoleDockerAuth | None = None
    """With AWS_OIDC."""
    aws_assume_role_docker_auth: AwsRoleDockerAuth | None = None
    """With AWS_ASSUME_ROLE."""
    gcp_oidc_docker_auth: GcpOidcDockerAuth | None = None
    """With GCP_OIDC."""
    gcp_service_account_json_docker_auth: GcpServiceAccountJsonDockerAuth | None = None
    """With GCP_SERVICE_ACCOUNT_JSON."""
    registry_secret_docker_auth: RegistrySecretDockerAuth | None = None
    """With REGISTRY_SECRET."""

    @model_validator(mode="after")
    def _block_fits_method(self) -> DockerAuth:
        given = {block for block in _BLOCKS.values() if getattr(self, block) is not None}
        if given != {_BLOCKS[self.auth_method]}:
            raise validation_error(
                f"{self.auth_method} goes with {_BLOCKS[self.auth_method]} and nothing else",
                f"Write {_BLOCKS[self.auth_method]}: {{…}} beside auth_method.",
                code="redundant-key",
            )
        return self


_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    r"(?:(?:localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|\[[0-9a-fA-F:]+\]|[A-Za-z0-9-]+(?=:[0-9]))(?::[0-9]+)?/)?"
    rf"{_PART}(?:/{_PART})*(?::\w[\w.-]{{0,127}})?(?:@[A-Za-z0-9+._-]+:[0-9a-fA-F]{{32,}})?",
    re.ASCII,
)
"""[REGISTRY[:PORT]/]NAME[:TAG][@DIGEST], the grammar of distribution's references: https://pkg.go.dev/github.com/distribution/reference."""


def _image(text: str) -> str:
    if not _REFERENCE.fullmatch(text):
        raise validation_error(
            "this is not the name of an image",
            "Write [REGISTRY/]NAME[:TAG][@DIGEST] with NAME in small letters, for example pytorch/pytorch:2.7.0-cuda12.8-cudnn9-runtime.",
            code="invalid-value",
        )
    return text


class Image(ManifestSection):
    """The container image a job runs in."""

    base_image: Annotated[Text, AfterValidator(_image)]
    """The image, as container engines write it."""
    docker_auth: DockerAuth | None = None
    """How a private registry lets it out."""
