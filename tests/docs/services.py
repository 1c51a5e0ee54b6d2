"""Services that a page asks for with ``<!-- fixture: NAMES -->``."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.machines.containers import podman
from tests.support.machines.hosts import require_hosts
from tests.support.machines.slurm import slurm_cluster
from tests.support.machines.sshd import SshUser, require_sshd, sshd
from tests.support.machines.terraform import write_terraform
from tests.support.servers.buckets import KEY_ID, SECRET, moto
from tests.support.servers.ec2 import serve_ec2
from tests.support.servers.hub import serve
from trainctl.base.checkpoints.s3 import S3Client

BUCKET = "weights"
REPOSITORY = "acme/tiny"
PRIVATE_REPOSITORY = "acme/private"
FILES = {
    "config.json": b'{"hidden_size": 8}\n',
    "model.safetensors": bytes(range(256)) * 400,
}


@dataclass
class World:
    """The home of a page and the environment of its commands; ``places`` are real paths and shown ones."""

    home: Path
    variables: dict[str, str]
    places: dict[str, str]


@contextmanager
def services(names: Sequence[str], world: World, top: Path) -> Iterator[None]:
    """Start the services; words after ``ssh`` are names of hosts."""
    with ExitStack() as stack:
        hosts: list[str] = []
        for name in names:
            if name in _SERVICES:
                stack.enter_context(_SERVICES[name](world, top))
            elif name != "ssh":
                assert "ssh" in names, f"no fixture {name!r}"
                hosts.append(name)
        if hosts:
            stack.enter_context(_hosts(hosts, world, top))
        yield


@contextmanager
def _hosts(names: Sequence[str], world: World, top: Path) -> Iterator[None]:
    require_sshd()
    user = SshUser(world.home)
    lines: list[str] = []
    with ExitStack() as stack:
        for number, name in enumerate(names):
            place = top / name
            host = stack.enter_context(sshd(place, user, address=f"127.0.0.{number + 2}"))
            lines += [f"Host {name}", f"  HostName {host.address}", f"  Port {host.port}"]
            with user.known_hosts.open("a") as known:
                known.write(host.known)
            world.places[str(host.home)] = world.places[str(world.home)]
        user.configure(*lines)
        path = world.variables["PATH"]
        world.variables |= user.environment
        world.variables["PATH"] = f"{world.home / 'bin'}:{path}"
        yield


@contextmanager
def _bucket(world: World, top: Path) -> Iterator[None]:
    with moto() as server:
        client = S3Client(BUCKET, server.endpoint, server.credential)
        client.request("PUT")
        for name, content in FILES.items():
            client.request("PUT", f"tiny/{name}", body=content)
        world.variables |= {
            "AWS_ENDPOINT_URL": server.endpoint,
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }
        yield


@contextmanager
def _hub(world: World, top: Path) -> Iterator[None]:
    with serve() as hub:
        hub.add(REPOSITORY, FILES)
        hub.add(PRIVATE_REPOSITORY, FILES, private=True)
        world.variables["HF_ENDPOINT"] = hub.url
        yield


@contextmanager
def _containers(world: World, top: Path) -> Iterator[None]:
    if shutil.which("podman") is None:
        pytest.skip("needs podman (Debian: podman)")
    place = top / "podman"
    place.mkdir()
    with podman(place) as engine:
        world.variables |= engine.variables
        yield
    subprocess.run(["rm", "-rf", str(place)], check=False)


@contextmanager
def _ec2(world: World, top: Path) -> Iterator[None]:
    require_hosts()
    with serve_ec2(top / "ec2") as server:
        if server.ssh_port != 22:
            pytest.skip("needs port 22 of loopback addresses")
        world.variables |= server.environment
        yield


@contextmanager
def _slurm(world: World, top: Path) -> Iterator[None]:
    with slurm_cluster() as cluster:
        world.variables |= cluster.variables
        world.places[str(cluster.shared_dir)] = "/shared"
        world.variables["SHARED"] = str(cluster.shared_dir)
        yield


@contextmanager
def _terraform(world: World, top: Path) -> Iterator[None]:
    require_sshd()
    write_terraform(world.home.parent / "programs")
    yield


_SERVICES = {
    "s3": _bucket, "hub": _hub, "containers": _containers, "ec2": _ec2, "slurm": _slurm, "terraform": _terraform,
}  # fmt: skip
