"""A real apptainer. Debian has it in its development suite only: its packages are unpacked, and bring their own C library."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.install_cache import install_once
from tests.support.machines.containers import (
    BUSYBOX,
    ContainerRegistry,
    EngineHarness,
    apt_get,
    require,
    unpack_debs,
)

_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_SUITE = "sid"
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_STARTER = f"{_LIBRARIES}/apptainer/bin/starter"
_LAYOUT = {
    "usr/etc": "../etc",
    "usr/lib/etc": "../../etc",
    "usr/lib/var": "../../var",
    "usr/var": "../var",
}
"""Links to where this apptainer, which was built for another place, looks for its configuration and mounts."""

_SETTINGS = {"root default capabilities": "no", "systemd cgroups": "no"}
"""What an apptainer of root needs where root itself lacks a capability and no systemd runs."""


@dataclass
class Apptainer(EngineHarness):
    """It keeps no list of containers: they are the processes of this very program that hold one. Images come to it from a registry alone."""

    offer: Callable[[str], str] = str

    def offered(self, image: str) -> str:
        """The name of a podman's image in the registry."""
        return self.offer(image)

    def containers(self) -> list[str]:
        """The processes of it that hold a container."""
        starter = (self.top / "bin/apptainer").resolve().parents[2] / _STARTER
        return [path.name for path in Path("/proc").glob("[0-9]*") if _program(path) == starter]

    def described(self, container: str) -> str:
        """What others can see of it."""
        return "".join(
            Path("/proc", container, name).read_text() for name in ("cmdline", "environ")
        )


def apptainer_program() -> Path:
    """The directory that holds it; made once on a machine."""
    return install_once("apptainer", _make)


def apptainer(top: Path, registry: ContainerRegistry, pusher: EngineHarness) -> Apptainer:
    """Apptainer as a command on a PATH, which takes from the registry what the pusher, a podman, has."""

    def offer(image: str) -> str:
        name = image.removeprefix("localhost/")
        registry.push(pusher, image, name)
        return f"{registry.address}/{name}"

    # By links in a place of its own: by that its processes are told from those of tests that run beside.
    place = shutil.copytree(apptainer_program(), top / "own", symlinks=True, copy_function=_linked)
    return Apptainer("apptainer", top, _variables(place, top), small=offer(BUSYBOX), offer=offer)


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def _variables(place: Path, top: Path) -> dict[str, str]:
    command = top / "bin"
    command.mkdir(parents=True)
    (command / "apptainer").symlink_to(place / "usr/bin/apptainer")
    return {"PATH": f"{command}:{os.environ['PATH']}", "APPTAINER_NOHTTPS": "true"}


def _program(process: Path) -> Path | None:
    try:
        return (process / "exe").readlink()
    except OSError:  # it has gone, or is none of ours
        return None


def _make(place: Path) -> None:
    require("apt-get", "dpkg-deb", "patchelf", "mksquashfs")
    if not Path(_KEYRING).exists():
        pytest.skip(f"apptainer's packages are checked by {_KEYRING}, which is missing")
    place.mkdir(parents=True)
    _unpack(place)
    for link, target in _LAYOUT.items():
        (place / link).symlink_to(target)
    settings = place / "etc/apptainer/apptainer.conf"
    text = settings.read_text()
    for name, value in _SETTINGS.items():
        text = re.sub(f"^{name} = .*$", f"{name} = {value}", text, flags=re.MULTILINE)
    settings.write_text(text)
    _adapt(place)


def _adapt(place: Path) -> None:
    """Its programs use the C library beside them: that of the machine may be too old."""
    loader = next(place.glob(f"{_LIBRARIES}/ld-linux-*"))
    libraries = f"{place}/{_LIBRARIES}:/{_LIBRARIES}"
    for program in (place / "usr/bin/apptainer", place / _STARTER):
        own = ("--set-interpreter", loader, "--set-rpath", libraries)
        subprocess.run(["patchelf", *own, program], check=True)


def _unpack(place: Path) -> None:
    """The packages of the suite, by lists of packages that are not the machine's."""
    lists = place / "apt"
    for name in ("lists/partial", "archives/partial"):
        (lists / name).mkdir(parents=True)
    (lists / "sources.list").write_text(f"deb [signed-by={_KEYRING}] {_archive()} {_SUITE} main\n")
    options = [
        f"-oDir::State::lists={lists}/lists",
        f"-oDir::Cache={lists}",
        f"-oDir::Etc::sourcelist={lists}/sources.list",
        "-oDir::Etc::sourceparts=-",
        "-oAPT::Sandbox::User=root",
    ]
    apt_get([*options, "update"], lists)
    unpack_debs(["apptainer", "libc6"], place, options)
    shutil.rmtree(lists)


def _archive() -> str:
    """The address from which this machine has its packages."""
    asked = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    words = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
    result = [word for word in words if word.rstrip("/").endswith("/debian")]
    if not result:
        pytest.skip("apptainer is one of Debian's packages, and this machine has no archive of it")
    return result[0]
