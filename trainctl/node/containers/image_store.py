"""Which images were brought to this node for whom, so that the last to need one takes it away again.

ROOT/images/marks/<lineage>/<engine>-<hex>    an empty file for each image
ROOT/images/sif/<sha256>.sif                  apptainer's images; podman and docker keep their own
ROOT/images/sif/<hash of a name>.json         {digest, workdir}: what the name meant when it was last pulled
ROOT/images/cache/                            what apptainer downloaded and converted, so that a tag that is asked again isn't
ROOT/images/pulling-<pid>-<random>/           what one of its pulls is working on
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any, ContextManager, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from trainctl.base.files import make_directory, names_in, remove_tree
from trainctl.base.protocol import code
from trainctl.node.containers.engines import APPTAINER, PODMAN, Engine, call
from trainctl.node.system.layout import Layout

_PULLING = "pulling"


class ImageStore:
    """The images of one ROOT."""

    def __init__(self, layout: Layout) -> None:
        self._top = layout.root / "images"
        self._marks = self._top / "marks"
        self.sif = self._top / "sif"
        self.cache = self._top / "cache"

    def pulling(self) -> ContextManager[Path]:
        """A directory for one of apptainer's pulls."""
        return passing(self._top, _PULLING)

    def mark(self, lineage: str, engine: str, digest: str, *, brought: bool) -> None:
        """Say that a lineage uses an image; one that was here before any of ours is none of our business."""
        name = f"{engine}-{digest.rpartition(':')[2]}"
        if brought or name in self._marked():
            (make_directory(self._marks / lineage) / name).touch(0o600)

    def drop(self, lineage: str) -> None:
        """Take that back; images that nobody else needs are removed, as far as the engine lets go of them."""
        mine = set(names_in(self._marks / lineage))
        remove_tree(self._marks / lineage)
        for name in sorted(mine - self._marked()):
            engine, _, digest = name.partition("-")
            if engine == APPTAINER:
                with contextlib.suppress(FileNotFoundError):
                    (self.sif / f"{digest}.sif").unlink()
            else:
                call((engine, "image", "rm", f"sha256:{digest}"))
        if not self._marked() and not in_use(self._top, _PULLING):
            remove_tree(self._top)

    def _marked(self) -> Set[str]:
        lineages = names_in(self._marks)
        return {name for lineage in lineages for name in names_in(Path(self._marks, lineage))}


@contextlib.contextmanager
def passing(parent: Path, kind: str) -> Iterator[Path]:
    """A private directory ``<kind>-<pid>-<random>`` below ``parent``, gone when the context ends."""
    for path in make_directory(parent).glob(f"{kind}-*"):
        if not _held(path):
            remove_tree(path)
    folder = Path(tempfile.mkdtemp(prefix=f"{kind}-{os.getpid()}-", dir=str(parent)))
    try:
        yield folder
    finally:
        remove_tree(folder)


def in_use(parent: Path, kind: str) -> bool:
    """Whether a living process has one there."""
    return any(_held(path) for path in parent.glob(f"{kind}-*"))


def _held(path: Path) -> bool:
    pid = path.name.split("-")[1]
    return pid.isdigit() and Path("/proc", pid).exists()


_HUB = ("docker.io", "index.docker.io", "registry-1.docker.io")
_HUB_KEYS = ("docker.io", "https://index.docker.io/v1/")
"""Under which names podman and docker look for a login to Docker Hub."""


class Login(NamedTuple):
    """Who asks a registry. Never written but for the time of a pull."""

    registry: str
    username: str
    password: str

    @classmethod
    def of(cls, value: Optional[code.Login]) -> Optional[Login]:
        """The login in a request; None if there is none."""
        return cls(**value) if value else None

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
