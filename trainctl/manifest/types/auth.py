"""How a source or a bucket is opened."""

from __future__ import annotations

from typing import Literal

from trainctl.manifest.types.base import Name, Section


class Auth(Section):
    """The credential of a source. Used while resolving and mirroring only; it never reaches a job."""

    auth_method: Literal["CUSTOM_SECRET"] = "CUSTOM_SECRET"
    """How: with a secret that this manifest declares."""
    auth_secret_name: Name
    """The name of the secret, declared in ``secrets``."""
