"""A registry's user and password, handed to an engine for one pull: in a private file that is gone afterwards."""

from __future__ import annotations

import base64
import contextlib
import json
import os
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from trainctl.node.containers.engines import PODMAN, Engine, call
from trainctl.node.containers.passing import passing
from trainctl.node.system.layout import Layout

_HUB = ("docker.io", "index.docker.io", "registry-1.docker.io")
_HUB_KEYS = ("docker.io", "https://index.docker.io/v1/")
"""Under which names podman and docker look for a login to Docker Hub."""


class Login(NamedTuple):
    """Who asks a registry. Never written but for the time of a pull."""

    registry: str
    username: str
    password: str

    @classmethod
    def of(cls, value: Any) -> Optional[Login]:
        """The login in a request; None if there is none."""
        if not value:
            return None
        return cls(str(value["registry"]), str(value["username"]), str(value["password"]))

    @property
    def document(self) -> Dict[str, Any]:
        """The content of an engine's file of logins."""
        pair = base64.b64encode(f"{self.username}:{self.password}".encode()).decode()
        host = self.registry.partition("://")[2] or self.registry
        host = host.partition("/")[0]
        keys = _HUB_KEYS if host in _HUB else (host,)
        return {"auths": {key: {"auth": pair} for key in keys}}


class Pulling(NamedTuple):
    """How a pull is to be called: options before and after the word, and variables."""

    before: Tuple[str, ...] = ()
    after: Tuple[str, ...] = ()
    variables: Tuple[Tuple[str, str], ...] = ()


@contextlib.contextmanager
def lent(layout: Layout, engine: Engine, login: Optional[Login]) -> Iterator[Pulling]:
    """Options for podman or docker that let it use the login, for as long as the context lasts."""
    if login is None:
        yield Pulling()
        return
    with passing(layout.root, "login") as folder:
        path = folder / "config.json"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
            json.dump(login.document, stream)
        if engine.name == PODMAN:
            yield Pulling(after=("--authfile", str(path)))
        else:
            yield Pulling(before=("--config", str(folder)), variables=tuple(_daemon()))


def _daemon() -> List[Tuple[str, str]]:
    """Where the daemon listens, which a configuration directory of our own doesn't say."""
    if os.environ.get("DOCKER_HOST"):
        return []
    answer = call(("docker", "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"))
    host = answer.out.strip()
    return [("DOCKER_HOST", host)] if answer.code == 0 and host else []
