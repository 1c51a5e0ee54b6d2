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
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

from trainctl.base.filesystem.files import (
    list_names,
    make_directory,
    read_json,
    remove_tree,
    write_json,
)
from trainctl.node.containers.engines import (
    APPTAINER,
    PODMAN,
    LocalEngine,
    ProgramResult,
    run_program,
)
from trainctl.node.system.layout import Layout

_PULLING = "pulling"


class LocalImage(NamedTuple):
    """An image that is on this node. ``id`` is what the engine runs, and can't mean another image tomorrow.

    ``digest`` is that of its manifest in the registry, or of the image itself where it never was in one;
    ``workdir`` is its WORKDIR, empty where it has none.
    """

    id: str
    digest: str
    workdir: str


class ImageStore:
    """The images of one ROOT."""

    def __init__(self, layout: Layout) -> None:
        self.top = layout.root / "images"
        self._marks = self.top / "marks"
        self.sif = self.top / "sif"
        self.cache = self.top / "cache"

    def mark(self, lineage: str, engine: str, digest: str, *, brought: bool) -> None:
        """Say that a lineage uses an image; one that was here before any of ours is none of our business."""
        name = f"{engine}-{digest.rpartition(':')[2]}"
        if brought or name in self._marked():
            (make_directory(self._marks / lineage) / name).touch(0o600)

    def drop(self, lineage: str) -> None:
        """Drop the marks of a lineage, and remove images that have no other, if the engine allows."""
        mine = set(list_names(self._marks / lineage))
        remove_tree(self._marks / lineage)
        for name in sorted(mine - self._marked()):
            engine, _, digest = name.partition("-")
            if engine == APPTAINER:
                with contextlib.suppress(FileNotFoundError):
                    (self.sif / f"{digest}.sif").unlink()
            else:
                run_program((engine, "image", "rm", f"sha256:{digest}"))
        if not self._marked() and not any(map(_is_owner_alive, self.top.glob(f"{_PULLING}-*"))):
            remove_tree(self.top)

    def _marked(self) -> Set[str]:
        lineages = list_names(self._marks)
        return {name for lineage in lineages for name in list_names(Path(self._marks, lineage))}


@contextlib.contextmanager
def temporary_directory(parent: Path, kind: str) -> Iterator[Path]:
    """A private directory ``<kind>-<pid>-<random>`` below ``parent``, gone when the context ends."""
    for path in make_directory(parent).glob(f"{kind}-*"):
        if not _is_owner_alive(path):
            remove_tree(path)
    folder = Path(tempfile.mkdtemp(prefix=f"{kind}-{os.getpid()}-", dir=str(parent)))
    try:
        yield folder
    finally:
        remove_tree(folder)


def _is_owner_alive(path: Path) -> bool:
    pid = path.name.split("-")[1]
    return pid.isdigit() and Path("/proc", pid).exists()


_HUB = ("docker.io", "index.docker.io", "registry-1.docker.io")
_HUB_KEYS = ("docker.io", "https://index.docker.io/v1/")
"""Under which names podman and docker look for a login to Docker Hub."""


class RegistryCredentials(NamedTuple):
    """Who asks a registry. Never written but for the time of a pull."""

    registry: str
    username: str
    password: str

    @property
    def document(self) -> Dict[str, Any]:
        """The content of an engine's file of logins."""
        pair = base64.b64encode(f"{self.username}:{self.password}".encode()).decode()
        host = self.registry.partition("://")[2] or self.registry
        host = host.partition("/")[0]
        keys = _HUB_KEYS if host in _HUB else (host,)
        return {"auths": {key: {"auth": pair} for key in keys}}


class PullOptions(NamedTuple):
    """How a pull is to be called: options before and after the word, and variables."""

    before: Tuple[str, ...] = ()
    after: Tuple[str, ...] = ()
    variables: Tuple[Tuple[str, str], ...] = ()


@contextlib.contextmanager
def login_options(
    layout: Layout, engine: LocalEngine, login: Optional[RegistryCredentials]
) -> Iterator[PullOptions]:
    """Options for podman or docker that let it use the login, for as long as the context lasts."""
    if login is None:
        yield PullOptions()
        return
    with temporary_directory(layout.root, "login") as folder:
        path = folder / "config.json"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
            json.dump(login.document, stream)
        if engine.name == PODMAN:
            yield PullOptions(after=("--authfile", str(path)))
        else:
            yield PullOptions(
                before=("--config", str(folder)), variables=tuple(_daemon_variables())
            )


def _daemon_variables() -> List[Tuple[str, str]]:
    """Where the daemon listens, which a configuration directory of our own doesn't say."""
    if os.environ.get("DOCKER_HOST"):
        return []
    answer = run_program(("docker", "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"))
    host = answer.out.strip()
    return [("DOCKER_HOST", host)] if answer.code == 0 and host else []


_READ_BYTES = 2**20
RunFn = Callable[[Sequence[str], Mapping[str, str]], ProgramResult]


def find_sif(layout: Layout, reference: str) -> Optional[LocalImage]:
    """What the name meant when it was last pulled; None if it never was."""
    known = read_json(_record(layout, reference)) or {}
    digest = str(known.get("digest") or "")
    path = ImageStore(layout).sif / f"{digest.rpartition(':')[2]}.sif"
    return (
        LocalImage(str(path), digest, str(known.get("workdir") or "")) if path.is_file() else None
    )


def pull_sif(
    layout: Layout, reference: str, login: Optional[RegistryCredentials], run: RunFn
) -> ProgramResult:
    """Convert the image into a file; apptainer's cache, which goes with the last image, saves what was downloaded before."""
    store = ImageStore(layout)
    with temporary_directory(store.top, _PULLING) as folder:
        partial = folder / "image.sif"
        variables = _variables(make_directory(store.cache), folder, login)
        answer = run((APPTAINER, "pull", str(partial), f"docker://{reference}"), variables)
        if answer.code == 0:
            digest = _sha256(partial)
            known = {"digest": f"sha256:{digest}", "workdir": _workdir(partial)}
            partial.replace(make_directory(store.sif) / f"{digest}.sif")
            write_json(_record(layout, reference), known)
    return answer


def _variables(
    cache: Path, temporary: Path, login: Optional[RegistryCredentials]
) -> Dict[str, str]:
    """Its cache and what it unpacks are on the node's own disk: a home or ``/tmp`` is often too small for an image."""
    found = {"CACHEDIR": str(cache), "TMPDIR": str(temporary)}
    if login is not None:
        found.update(DOCKER_USERNAME=login.username, DOCKER_PASSWORD=login.password)
    return {f"APPTAINER_{name}": value for name, value in found.items()}


def _workdir(path: Path) -> str:
    """From the image's OCI configuration, which is one of the file's JSON objects; empty where there is none."""
    return next((str(one["WorkingDir"]) for one in _objects(path) if one.get("WorkingDir")), "")


def _objects(path: Path) -> Iterator[Dict[str, Any]]:
    for line in run_program((APPTAINER, "sif", "list", str(path))).out.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if fields[0].isdigit() and fields[-1].startswith("JSON"):
            try:
                found = json.loads(
                    run_program((APPTAINER, "sif", "dump", fields[0], str(path))).out
                )
            except ValueError:
                continue
            if isinstance(found, dict):
                yield found


def _record(layout: Layout, reference: str) -> Path:
    return ImageStore(layout).sif / f"{hashlib.sha256(reference.encode()).hexdigest()}.json"


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        for data in iter(lambda: stream.read(_READ_BYTES), b""):
            digest.update(data)
        os.fsync(stream.fileno())
    return digest.hexdigest()
