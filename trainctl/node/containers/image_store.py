"""Images on this node and the lineages that use them; the last user removes one.

ROOT/images/marks/<lineage>/<engine>-<hex>    an empty file for each image in use
ROOT/images/sif/<sha256>.sif                  apptainer's images; podman and docker have their own storage
ROOT/images/sif/<hash of a name>.json         {digest, workdir} that the name resolved to when it was last pulled
ROOT/images/cache/                            apptainer's cache of downloaded and converted layers
ROOT/images/pulling-<pid>-<random>/           working directory of a pull
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
    """An image on this node; ``id`` always names the same image in the engine.

    ``digest`` is that of its manifest in the registry, or of the image if it came from none;
    ``workdir`` is its WORKDIR, empty if unset.
    """

    id: str
    digest: str
    workdir: str


class ImageStore:
    """Images under one root directory."""

    def __init__(self, layout: Layout) -> None:
        self.top = layout.root / "images"
        self._marks = self.top / "marks"
        self.sif = self.top / "sif"
        self.cache = self.top / "cache"

    def mark(self, lineage: str, engine: str, digest: str, *, pulled: bool) -> None:
        """Record a lineage's use of an image, unless it was present before trainctl."""
        name = f"{engine}-{digest.rpartition(':')[2]}"
        if pulled or name in self._marked():
            (make_directory(self._marks / lineage) / name).touch(0o600)

    def drop(self, lineage: str) -> None:
        """Drop a lineage's marks and remove images without other users."""
        dropped = set(list_names(self._marks / lineage))
        remove_tree(self._marks / lineage)
        for name in sorted(dropped - self._marked()):
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
    """Create a temporary private directory ``<kind>-<pid>-<random>``."""
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
"""Keys under which podman and docker look up a login to Docker Hub."""


class RegistryCredentials(NamedTuple):
    """Login to a registry; on disk only during a pull."""

    registry: str
    username: str
    password: str

    @property
    def document(self) -> Dict[str, Any]:
        """Content of an engine's login file."""
        pair = base64.b64encode(f"{self.username}:{self.password}".encode()).decode()
        host = self.registry.partition("://")[2] or self.registry
        host = host.partition("/")[0]
        keys = _HUB_KEYS if host in _HUB else (host,)
        return {"auths": {key: {"auth": pair} for key in keys}}


class PullOptions(NamedTuple):
    """Options before and after ``pull``, and variables."""

    before: Tuple[str, ...] = ()
    after: Tuple[str, ...] = ()
    variables: Tuple[Tuple[str, str], ...] = ()


@contextlib.contextmanager
def login_options(
    layout: Layout, engine: LocalEngine, login: Optional[RegistryCredentials]
) -> Iterator[PullOptions]:
    """Options for podman or docker to use the login while the context lasts."""
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
    """Address of the docker daemon, missing in a separate configuration directory."""
    if os.environ.get("DOCKER_HOST"):
        return []
    result = run_program(("docker", "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"))
    host = result.out.strip()
    return [("DOCKER_HOST", host)] if result.code == 0 and host else []


_READ_BYTES = 2**20
RunFn = Callable[[Sequence[str], Mapping[str, str]], ProgramResult]


def find_sif(layout: Layout, reference: str) -> Optional[LocalImage]:
    """Image that the name resolved to when it was last pulled; None if it never was."""
    record = read_json(_record(layout, reference)) or {}
    digest = str(record.get("digest") or "")
    path = ImageStore(layout).sif / f"{digest.rpartition(':')[2]}.sif"
    if not path.is_file():
        return None
    return LocalImage(str(path), digest, str(record.get("workdir") or ""))


def pull_sif(
    layout: Layout, reference: str, login: Optional[RegistryCredentials], run: RunFn
) -> ProgramResult:
    """Pull and convert an image to a file, with apptainer's cache of layers."""
    store = ImageStore(layout)
    with temporary_directory(store.top, _PULLING) as folder:
        partial = folder / "image.sif"
        variables = _variables(make_directory(store.cache), folder, login)
        result = run((APPTAINER, "pull", str(partial), f"docker://{reference}"), variables)
        if result.code == 0:
            digest = _sha256(partial)
            record = {"digest": f"sha256:{digest}", "workdir": _workdir(partial)}
            partial.replace(make_directory(store.sif) / f"{digest}.sif")
            write_json(_record(layout, reference), record)
    return result


def _variables(
    cache: Path, temporary: Path, login: Optional[RegistryCredentials]
) -> Dict[str, str]:
    """Cache and temporary files on the node's disk: home is often too small."""
    variables = {"CACHEDIR": str(cache), "TMPDIR": str(temporary)}
    if login is not None:
        variables.update(DOCKER_USERNAME=login.username, DOCKER_PASSWORD=login.password)
    return {f"APPTAINER_{name}": value for name, value in variables.items()}


def _workdir(path: Path) -> str:
    """WORKDIR of the image's OCI configuration; empty if unset."""
    directories = (document.get("WorkingDir") for document in _objects(path))
    return next((str(directory) for directory in directories if directory), "")


def _objects(path: Path) -> Iterator[Dict[str, Any]]:
    for line in run_program((APPTAINER, "sif", "list", str(path))).out.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if fields[0].isdigit() and fields[-1].startswith("JSON"):
            try:
                dump = run_program((APPTAINER, "sif", "dump", fields[0], str(path)))
                document = json.loads(dump.out)
            except ValueError:
                continue
            if isinstance(document, dict):
                yield document


def _record(layout: Layout, reference: str) -> Path:
    return ImageStore(layout).sif / f"{hashlib.sha256(reference.encode()).hexdigest()}.json"


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        for data in iter(lambda: stream.read(_READ_BYTES), b""):
            digest.update(data)
        os.fsync(stream.fileno())
    return digest.hexdigest()
