"""Verbs about what a run needs besides weights: code, environments, images."""

from __future__ import annotations

from typing import Optional, TypedDict

from trainctl.base.protocol.verb import Verb

CodeRequest = TypedDict("CodeRequest", {"root": str, "digest": str})


class HasCodeRequest(CodeRequest):
    """``lineage``: for which the code is kept for an hour."""

    lineage: str


CodeAnswer = TypedDict("CodeAnswer", {"present": bool, "sha256": Optional[str]})
"""``sha256``: of the archive, which another caller may have packed."""

EnvironmentRequest = TypedDict(
    "EnvironmentRequest", {"root": str, "code": str, "requirements": str}
)
"""``code``: digest. ``requirements``: path in the code."""

Environment = TypedDict("Environment", {"venv": str, "built": bool})
Login = TypedDict("Login", {"registry": str, "username": str, "password": str})


class ImageRequest(TypedDict):
    """``engine`` null: whichever works."""

    root: str
    lineage: str
    image: str
    engine: Optional[str]
    login: Optional[Login]


Engine = TypedDict("Engine", {"name": str, "version": str, "root_is_user": bool})
"""``root_is_user``: root in a container is the user on the host."""


class ImageAnswer(TypedDict):
    """``id``: what the engine runs. ``digest``: of the manifest in the registry. ``note``: for the user, may be empty."""

    engine: Engine
    id: str
    digest: str
    workdir: str
    pulled: bool
    note: str


HAS_CODE = Verb("has_code", HasCodeRequest, CodeAnswer, "Report whether the node has a code tree.")
PUT_CODE = Verb("put_code", CodeRequest, CodeAnswer, "Store a code tree; the payload is its tar.")
READ_CODE = Verb("read_code", CodeRequest, bytes, "Return the tar of a code tree.")
BUILD_ENVIRONMENT = Verb(
    "build_environment",
    EnvironmentRequest,
    Environment,
    "Build a virtual environment, once for each content of a requirements file. Events: `{line}`.",
)
PULL_IMAGE = Verb(
    "pull_image",
    ImageRequest,
    ImageAnswer,
    "Pull a container image unless the one that its name means is here. Events: `{line}`.",
)
