"""Images on this node: pull them, and remove those without users."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Optional, Sequence, Set, Tuple

from trainctl.base.filesystem.files import (
    list_names,
    make_directory,
    read_json,
    remove_tree,
    write_json,
)
from trainctl.base.lazy_pattern import compile_lazily
from trainctl.base.protocol.host import (
    EngineInfo,
    ImageInfo,
    PullImageRequest,
    PullImageResponse,
    RegistryLogin,
)
from trainctl.errors import NodeError, TrainctlError
from trainctl.node.containers.engines import (
    APPTAINER,
    PODMAN,
    ProgramResult,
    choose_engine,
    run_program,
    run_streaming,
)
from trainctl.node.system import layout as names
from trainctl.node.system.layout import Layout

Emit = Callable[[Dict[str, Any]], None]
_PULLING = "pulling"
_READ_BYTES = 2**20


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
    import tempfile

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


def _pull_sif(
    layout: Layout, reference: str, login: Optional[RegistryLogin], emit: Emit
) -> ProgramResult:
    """Pull and convert an image to a file, with apptainer's cache of layers."""
    store = ImageStore(layout)
    with temporary_directory(store.top, _PULLING) as folder:
        image = folder / "image.sif"
        # on the node's disk: home is often too small
        variables = {
            "APPTAINER_CACHEDIR": str(make_directory(store.cache)),
            "APPTAINER_TMPDIR": str(folder),
        }
        if login is not None:
            variables["APPTAINER_DOCKER_USERNAME"] = login["username"]
            variables["APPTAINER_DOCKER_PASSWORD"] = login["password"]
        argv = (APPTAINER, "pull", str(image), f"docker://{reference}")
        result = run_streaming(argv, variables, emit)
        if result.code == 0:
            digest = _sha256(image)
            record = {"digest": f"sha256:{digest}", "workdir": _workdir(image)}
            image.replace(make_directory(store.sif) / f"{digest}.sif")
            write_json(_record(layout, reference), record)
    return result


def _workdir(image: Path) -> str:
    """WORKDIR in the first JSON object of a file that has one; empty if none has."""
    for line in run_program((APPTAINER, "sif", "list", str(image))).out.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if fields[0].isdigit() and fields[-1].startswith("JSON"):
            with contextlib.suppress(ValueError):
                dump = run_program((APPTAINER, "sif", "dump", fields[0], str(image)))
                document = json.loads(dump.out)
                if isinstance(document, dict) and document.get("WorkingDir"):
                    return str(document["WorkingDir"])
    return ""


def _record(layout: Layout, reference: str) -> Path:
    return ImageStore(layout).sif / f"{hashlib.sha256(reference.encode()).hexdigest()}.json"


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        for data in iter(lambda: stream.read(_READ_BYTES), b""):
            digest.update(data)
        os.fsync(stream.fileno())
    return digest.hexdigest()


def pull_image(request: PullImageRequest, emit: Emit) -> PullImageResponse:
    """Pull an image unless it is present by digest.

    Tags are resolved at every call, and only missing layers are fetched. If the registry is unreachable, a present
    image with that name is used and ``note`` reports this.
    """
    layout = Layout(request["root"])
    lineage = names.check_name(request["lineage"], "lineage")
    reference = validate_reference(request["image"])
    engine = choose_engine(request["engine"])
    before = find_image(layout, engine, reference)
    note = ""
    # no registry resolves a digest or the name of a local build again
    is_local = before is not None and (
        reference.startswith("localhost/") or before["digest"] == before["id"]
    )
    is_final = "@sha256:" in reference or (is_local and engine["name"] != APPTAINER)
    if before is None or not is_final:
        emit({"line": ""})
        pull = _pull_sif if engine["name"] == APPTAINER else partial(_pull, engine["name"])
        result = pull(layout, reference, request["login"] or None, emit)
        if result.code != 0:
            if before is None or not is_registry_unreachable(result):
                raise pull_error(reference, result)
            note = f"registry is unreachable, using {reference} as present on the node"
    image = find_image(layout, engine, reference)
    if image is None:
        raise NodeError(f"image {reference} not found after {engine['name']} pulled it")
    pulled = before is None or before["id"] != image["id"]
    stored = image["digest"] if engine["name"] == APPTAINER else image["id"]
    ImageStore(layout).mark(lineage, engine["name"], stored, pulled=pulled)
    return {**image, "engine": engine, "pulled": pulled, "note": note}


def validate_reference(reference: Any) -> str:
    """Check that an engine can't mistake the name of an image for an option."""
    if not isinstance(reference, str) or not reference or reference.startswith("-"):
        raise NodeError(f"invalid image name {reference!r}")
    return reference


def find_image(layout: Layout, engine: EngineInfo, reference: str) -> Optional[ImageInfo]:
    """Find the image with this name on the node; None if there is none."""
    if engine["name"] == APPTAINER:  # the file to which the name resolved when it was last pulled
        record = read_json(_record(layout, reference)) or {}
        digest, workdir = str(record.get("digest") or ""), str(record.get("workdir") or "")
        path = ImageStore(layout).sif / f"{digest.rpartition(':')[2]}.sif"
        return {"id": str(path), "digest": digest, "workdir": workdir} if path.is_file() else None
    result = run_program((engine["name"], "image", "inspect", reference))
    if result.code != 0:
        return None
    try:
        document = json.loads(result.out)[0]
        identity = "sha256:" + str(document["Id"]).rpartition(":")[2]
        digests = [str(repodigest) for repodigest in document.get("RepoDigests") or ()]
        workdir = str((document.get("Config") or {}).get("WorkingDir") or "")
    except (ValueError, LookupError, TypeError, AttributeError):
        raise NodeError(f"unexpected output of {engine['name']} for image {reference}") from None
    digest = _digest(reference, digests, str(document.get("Digest")))
    return {"id": identity, "digest": digest or identity, "workdir": workdir}


def _digest(reference: str, digests: Sequence[str], own: str) -> str:
    """Digest of an image in its referenced repository; empty if there is none.

    An image may have several: prefer the referenced digest, else one that isn't the image's ``own``. ``own`` is the
    manifest of a local build, or of this platform next to the manifest list's digest.
    """
    repository, _, requested = reference.partition("@")
    if ":" in repository.rpartition("/")[2]:
        repository = repository.rpartition(":")[0]
    matching = [
        digest
        for name, _, digest in (repodigest.partition("@") for repodigest in digests)
        if name == repository or name.endswith(f"/{repository}")
    ]
    if requested in matching:
        return requested
    return min(
        (digest for digest in matching if digest != own), default=own if own in matching else ""
    )


def _pull(
    engine: str, layout: Layout, reference: str, login: Optional[RegistryLogin], emit: Emit
) -> ProgramResult:
    """Pull with podman or docker; the login is on disk meanwhile."""
    if login is None:
        return run_streaming((engine, "pull", reference), {}, emit)
    pair = base64.b64encode(f"{login['username']}:{login['password']}".encode()).decode()
    host = (login["registry"].partition("://")[2] or login["registry"]).partition("/")[0]
    document = {"auths": {key: {"auth": pair} for key in (_HUB_KEYS if host in _HUB else (host,))}}
    with temporary_directory(layout.root, "login") as folder:
        path = folder / "config.json"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
            json.dump(document, stream)
        if engine == PODMAN:
            return run_streaming((PODMAN, "pull", "--authfile", str(path), reference), {}, emit)
        variables = {}
        if not os.environ.get("DOCKER_HOST"):  # in the configuration that ``folder`` replaces
            endpoint = ("docker", "context", "inspect", "--format", "{{.Endpoints.docker.Host}}")
            result = run_program(endpoint)
            if result.code == 0 and result.out.strip():
                variables["DOCKER_HOST"] = result.out.strip()
        argv = (engine, "--config", str(folder), "pull", reference)
        return run_streaming(argv, variables, emit)


_REASONS: Tuple[Tuple[str, str, str], ...] = (
    (
        r"unauthorized|authentication required|access.{0,12} denied|denied:|incorrect username|403 forbidden|401 ",
        "the registry denied access",
        "Check the name; for a private image, set image.docker_auth.",
    ),
    (
        r"manifest unknown|manifest.{0,80} not found|name unknown|name invalid|repository.{0,80} not found|not found: ",
        "not found in the registry",
        "Check its name and tag.",
    ),
    (
        r"invalid reference format|invalid repository name",
        "invalid image name",
        "Write REGISTRY/NAME:TAG.",
    ),
    (
        r"no space left",
        "no space left on the node's disk",
        "Free some disk space, then try again.",
    ),
)
_UNREACHABLE = compile_lazily(
    r"no such host|name resolution|connection refused|connection reset|i/o timeout|timed? ?out|deadline exceeded|"
    r"network is unreachable|no route to host|unexpected eof|server misbehaving|50[0234] |too ?many ?requests",
    re.IGNORECASE,
)
_NOISE = compile_lazily(
    r"^(?:Error(?: response from daemon)?: |FATAL: +|time=\S+ level=\S+ msg=)|"
    r"(?:initializing source|unable to copy from source|reading manifest|pinging container registry) \S+(?: in \S+)?: ",
    re.IGNORECASE,
)
_MAX_COMPLAINT = 300


def is_registry_unreachable(result: ProgramResult) -> bool:
    """Check whether the registry could not be reached."""
    return _reason(result.complaint) is None and bool(_UNREACHABLE.search(result.complaint))


def pull_error(reference: str, result: ProgramResult) -> TrainctlError:
    """Error for an image that can't be pulled: cause, hint and the engine's message."""
    message = _NOISE.sub("", result.complaint)[:_MAX_COMPLAINT]
    reason = _reason(result.complaint)
    if reason is not None:
        return NodeError(f"image {reference}: {reason[0]}", f"{reason[1]} ({message})")
    if is_registry_unreachable(result):
        summary = f"image {reference}: the node cannot reach the registry"
        return NodeError(summary, message)
    return NodeError(f"cannot pull image {reference}", message)


def _reason(complaint: str) -> Optional[Tuple[str, str]]:
    for pattern, summary, hint in _REASONS:
        if re.search(pattern, complaint, re.IGNORECASE):
            return summary, hint
    return None
