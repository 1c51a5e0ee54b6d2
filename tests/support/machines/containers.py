"""Real container engines with storage of their own: podman, the docker CLI in front of podman's service, and a registry."""

from __future__ import annotations

import functools
import json
import os
import resource
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.install_cache import install_once
from tests.support.node_program.nodes import NodeHarness, wait_for

BUSYBOX = "localhost/busybox:1"
LOGIN = "someone:correct horse"
_HASH = "$2y$05$abcdefghijklmnopqrstuuHNbAKRhpaujgo33bRWs.NLUTJO3lOy2"
"""The password of ``LOGIN`` as a registry keeps it."""

_QUIET: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
_CONTAINERS = """\
[containers]
default_ulimits = ["nofile={files}:{files}", "nproc=4096:4096"]
netns = "host"
[engine]
{runtime}
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
tmp_dir = "{top}/tmp"
"""
_STORAGE = """\
[storage]
driver = "{driver}"
graphroot = "{top}/root"
runroot = "{top}/run"
"""


@dataclass
class EngineHarness:
    """An engine as a test calls it; ``variables`` make it use the test's own storage."""

    name: str
    top: Path
    variables: dict[str, str] = field(default_factory=dict)
    registries: list[str] = field(default_factory=list)
    """Addresses for registries that it speaks to without TLS; its service reads them once, so they are chosen first."""
    prefix: tuple[str, ...] = ()
    """Words that make its caller somebody else."""
    small: str = BUSYBOX
    """The name by which it finds the small image."""

    @property
    def environment(self) -> dict[str, str]:
        """All variables of a call."""
        return {**os.environ, **self.variables}

    def __call__(self, *words: str, check: bool = True) -> str:
        """Call it; what it printed."""
        done = subprocess.run(
            [*self.prefix, self.name, *words],
            cwd="/",
            env=self.environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=120,
            check=False,
        )
        assert not check or done.returncode == 0, f"{self.name} {words}: {done.stderr}"
        return done.stdout.strip()

    def offered(self, image: str) -> str:
        """The name by which this engine finds an image that podman has."""
        return image

    def containers(self) -> list[str]:
        """The ids of all containers, running or not."""
        return self("ps", "--all", "--quiet").split()

    def described(self, container: str) -> str:
        """All that the engine tells about a container."""
        return self("inspect", container)


def container(node: NodeHarness, engine: EngineHarness, image: str = "") -> dict[str, Any]:
    """The specification of a container, after its image was looked for: the small one where none is named."""
    request = {"lineage": "lineage-1", "image": image or engine.small, "engine": engine.name}
    pulled = node.call("pull_image", request)
    return {"engine": engine.name, "image": pulled["id"], "workdir": pulled["workdir"]}


@dataclass(frozen=True)
class ContainerRegistry:
    """A registry on loopback."""

    address: str
    data: Path

    def push(self, engine: EngineHarness, image: str, name: str, *options: str) -> str:
        """Put an image there under a name; its digest."""
        full = f"{self.address}/{name}"
        engine("push", "--quiet", *options, image, full)
        links = self.data / "docker/registry/v2/repositories" / name.partition(":")[0]
        tag = links / "_manifests/tags" / name.partition(":")[2] / "current/link"
        return tag.read_text()


def require(*programs: str) -> None:
    """Skip the test where one is missing."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)}")


@contextmanager
def podman(top: Path) -> Iterator[EngineHarness]:
    """Podman with its own storage below ``top``; every container of it is gone afterwards."""
    require("podman")
    if os.geteuid() != 0:
        pytest.skip("needs root: podman's private storage is set up for it")
    for name in ("root", "run", "tmp"):
        (top / name).mkdir(parents=True)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    runtime = 'runtime = "runc"' if shutil.which("runc") else ""
    (top / "containers.conf").write_text(
        _CONTAINERS.format(files=files, runtime=runtime, top=top), encoding="utf-8"
    )
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        addresses = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in (server, two)]
    trusted = "".join(f'[[registry]]\nlocation = "{item}"\ninsecure = true\n' for item in addresses)
    (top / "registries.conf").write_text(trusted, encoding="utf-8")
    variables = {
        "CONTAINERS_CONF": str(top / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(top / "storage.conf"),
        "CONTAINERS_REGISTRIES_CONF": str(top / "registries.conf"),
    }
    engine = EngineHarness("podman", top, variables, addresses)
    _settle_driver(engine)
    try:
        yield engine
    finally:
        engine("rm", "--all", "--force", check=False)
        engine("image", "rm", "--all", "--force", check=False)
        engine("system", "reset", "--force", check=False)


def _settle_driver(engine: EngineHarness) -> None:
    """Overlay where it works, else a copy of everything for each container."""
    for driver in ("overlay", "vfs"):
        text = _STORAGE.format(driver=driver, top=engine.top)
        (engine.top / "storage.conf").write_text(text, encoding="utf-8")
        imported = engine("import", "--quiet", str(busybox_archive()), BUSYBOX, check=False)
        if (
            imported
            and engine("run", "--rm", BUSYBOX, "/bin/echo", "works", check=False) == "works"
        ):
            return
    pytest.skip("podman is installed and can't run a container here")


def rootless(podman_engine: EngineHarness, node: NodeHarness) -> EngineHarness:
    """The podman of the node's user, who isn't root, with the small image; its storage is below his home."""
    runtime = node.base / "runtime"
    subprocess.run([*node.prefix, "mkdir", "-m", "700", str(runtime)], check=True)
    settings = (podman_engine.top / "containers.conf").read_text().splitlines()
    own = [line for line in settings if not line.startswith(("lock_type", "tmp_dir"))]
    (node.base / "containers.conf").write_text("\n".join(own))
    shutil.copy(busybox_archive(), node.base / "busybox.tar")
    (node.base / "busybox.tar").chmod(0o644)
    variables = {
        "HOME": str(node.home),
        "XDG_RUNTIME_DIR": str(runtime),
        "CONTAINERS_CONF": str(node.base / "containers.conf"),
    }
    engine = EngineHarness("podman", node.base, variables, prefix=tuple(node.prefix))
    if not engine("import", "--quiet", str(node.base / "busybox.tar"), BUSYBOX, check=False):
        pytest.skip("podman doesn't work without root here")
    return engine


@contextmanager
def docker(podman_engine: EngineHarness, place: Path) -> Iterator[EngineHarness]:
    """The docker CLI in front of podman's service, which owns the containers' processes as docker's daemon does."""
    require("docker")
    socket_path = place / "docker.sock"
    words = ["podman", "system", "service", "--time=0", f"unix://{socket_path}"]
    service = subprocess.Popen(words, cwd=place, env=podman_engine.environment, **_QUIET)
    try:
        wait_for(socket_path.exists)
        variables = {**podman_engine.variables, "DOCKER_HOST": f"unix://{socket_path}"}
        yield EngineHarness("docker", podman_engine.top, variables)
    finally:
        service.terminate()
        service.wait()


@contextmanager
def registry(
    engine: EngineHarness, top: Path, *, private: bool = False
) -> Iterator[ContainerRegistry]:
    """A registry that the engine trusts without TLS; a private one lets in ``LOGIN`` only."""
    require("docker-registry")
    data = top / "data"
    data.mkdir(parents=True)
    address = engine.registries.pop()
    config = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(data)}},
        "http": {"addr": address},
    }
    if private:
        (top / "users").write_text(f"{LOGIN.partition(':')[0]}:{_HASH}\n", encoding="utf-8")
        config["auth"] = {"htpasswd": {"realm": "tests", "path": str(top / "users")}}
    (top / "config.yml").write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    server = subprocess.Popen(["docker-registry", "serve", str(top / "config.yml")], **_QUIET)
    try:
        wait_for(lambda: _listens(address))
        yield ContainerRegistry(address, data)
    finally:
        server.terminate()
        server.wait()


@functools.cache
def busybox_archive() -> Path:
    """A root file system of one static program, as a tar; made once on a machine."""
    return install_once("busybox", _make_busybox) / "busybox.tar"


def _make_busybox(place: Path) -> None:
    require("apt-get", "dpkg-deb", "tar")
    root = place / "root"
    unpack_debs(["busybox-static"], root)
    busybox = root / "bin/busybox"
    image = root / "image"
    (image / "bin").mkdir(parents=True)
    for name in ("etc", "tmp", "root"):
        (image / name).mkdir()
    (image / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    shutil.copy(busybox, image / "bin/busybox")
    applets = subprocess.run([str(busybox), "--list"], capture_output=True, text=True, check=True)
    for applet in set(applets.stdout.split()) - {"busybox"}:
        (image / "bin" / applet).symlink_to("busybox")
    pack(image, place / "busybox.tar")
    shutil.rmtree(root)


def unpack_debs(packages: Sequence[str], root: Path, options: Sequence[str] = ()) -> None:
    """The files of Debian packages below ``root``, without installing them; skips the test where they can't be had."""
    (root / "debs").mkdir(parents=True)
    apt_get([*options, "download", *packages], root / "debs")
    for deb in (root / "debs").glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(deb), str(root)], check=True)
    shutil.rmtree(root / "debs")


def apt_get(words: Sequence[str], directory: Path) -> None:
    """Run it in a directory; skips the test where it fails, as where there is no archive."""
    done = subprocess.run(
        ["apt-get", "-qq", *words],
        cwd=directory,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=300,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"apt-get {' '.join(words[-3:])} fails: {done.stderr.strip()[-300:]}")


def pack(root: Path, archive: Path) -> None:
    """A folder as the tar that ``podman import`` takes."""
    owner = ["--numeric-owner", "--owner=0", "--group=0"]
    subprocess.run(["tar", *owner, "-C", str(root), "-cf", str(archive), "."], check=True)


def _listens(address: str) -> bool:
    host, _, port = address.partition(":")
    with socket.socket() as client:
        return client.connect_ex((host, int(port))) == 0
