"""Code trees, virtual environments and container images."""

from __future__ import annotations

from typing import Optional, TypedDict

from trainctl.base.protocol.method import Method

CodeRequest = TypedDict("CodeRequest", {"root": str, "digest": str})


class HasCodeRequest(CodeRequest):
    """``lineage``: the state for which the code is kept for an hour."""

    lineage: str


CodeResponse = TypedDict("CodeResponse", {"present": bool, "sha256": Optional[str]})
"""``sha256``: of the archive, which another client may have packed."""

EnvironmentRequest = TypedDict(
    "EnvironmentRequest", {"root": str, "code": str, "requirements": str}
)
"""``code``: digest. ``requirements``: path in the code."""

EnvironmentResponse = TypedDict("EnvironmentResponse", {"venv": str, "built": bool})
RegistryLogin = TypedDict("RegistryLogin", {"registry": str, "username": str, "password": str})


class PullImageRequest(TypedDict):
    """``engine`` null: the first that works."""

    root: str
    lineage: str
    image: str
    engine: Optional[str]
    login: Optional[RegistryLogin]


EngineInfo = TypedDict("EngineInfo", {"name": str, "version": str, "root_is_user": bool})
"""``root_is_user``: root in a container is the user on the host."""


class PullImageResponse(TypedDict):
    """``id``: image id in the engine. ``digest``: of the registry's manifest. ``note``: for the user, may be empty."""

    engine: EngineInfo
    id: str
    digest: str
    workdir: str
    pulled: bool
    note: str


HAS_CODE = Method(
    "has_code", HasCodeRequest, CodeResponse, "Report whether the node has a code tree."
)
UPLOAD_CODE = Method(
    "upload_code", CodeRequest, CodeResponse, "Store a code tree; the payload is its tar."
)
READ_CODE = Method("read_code", CodeRequest, bytes, "Return the tar of a code tree.")
BUILD_ENVIRONMENT = Method(
    "build_environment",
    EnvironmentRequest,
    EnvironmentResponse,
    "Build the virtual environment of a requirements file if it is missing. Events: `{line}`.",
)
PULL_IMAGE = Method(
    "pull_image",
    PullImageRequest,
    PullImageResponse,
    "Pull a container image unless it is present. Events: `{line}`.",
)
