"""Fake hosts with GPUs: each has processes, a network, a root and a home of its own, and a real sshd; its power and its link can be cut.

They live in a network namespace that the lab makes, where nothing else is: no packet leaves. Whoever is to reach them runs there,
with ``Lab.prefix`` before its words. Needs root, ``unshare``, ``nsenter``, ``ip`` and sshd; nothing is left when the lab is closed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import pytest

from tests.support.machines.gpus import FakeNvidiaGpus
from tests.support.machines.sshd import SshUser, make_key, require_sshd
from tests.support.node_program.nodes import wait_for
from tests.support.projects.project import ProjectHarness, project
from trainctl.base.json import JsonValue

_INIT = Path(__file__).with_name("host_init.sh")
_NETWORK = "198.51.100"
"""TEST-NET-2 of RFC 5737, which isn't private; it exists in the lab only."""


def require_hosts() -> None:
    """Skip where fake hosts can't be had, with what is missing."""
    require_sshd()
    if os.geteuid() != 0:
        pytest.skip("needs root, for namespaces and mounts")
    for program in ("unshare", "nsenter", "ip", "pkill"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program} (Debian: util-linux, iproute2, procps)")
    tried = subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, text=True)  # fmt: skip
    if tried.returncode != 0:
        pytest.skip(f"needs namespaces: {tried.stderr.strip()}")


class HostLab:
    """A network with a bridge, and the hosts on it."""

    def __init__(
        self, place: Path, seen: Sequence[Path], shared: Sequence[Path], network: str
    ) -> None:
        self.place = place
        self.network = network
        self.variables = {
            **os.environ,
            "SEEN": " ".join(map(str, seen)),
            "SHARED": " ".join(map(str, shared)),
        }
        self.user = SshUser(place / "user")
        self.hosts: list[FakeHost] = []
        # nothing but this process keeps the namespace, so that all of it goes with it
        self._holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        wait_for(self._is_apart)
        self.namespace = f"/proc/{self._holder.pid}/ns/net"
        self.prefix = ("nsenter", f"--net={self.namespace}", "--")
        self.ip("link", "set", "lo", "up")
        self.ip("link", "add", "br0", "type", "bridge")
        self.ip("addr", "add", f"{network}.1/24", "dev", "br0")
        self.ip("link", "set", "br0", "up")

    def host(self, gpus: int = 2, name: str | None = None) -> FakeHost:
        """One more host, which runs, and which the user knows."""
        number = len(self.hosts)
        host = FakeHost(self, number, gpus, name or f"gpu-{number}")
        self.hosts.append(host)
        with self.user.known_hosts.open("a") as file:
            file.write(f"{host.address} {host.host_key}\n")
        host.power_on()
        return host

    def wire(self, network: str) -> None:
        """A second network: every host there is gets an address in it."""
        self.ip("link", "add", "br1", "type", "bridge")
        self.ip("link", "set", "br1", "up")
        for number, host in enumerate(self.hosts):
            self.ip("link", "add", f"w{number}", "type", "veth", "peer", "name", "eth1", "netns", str(host.first))  # fmt: skip
            self.ip("link", "set", f"w{number}", "master", "br1", "up")
            host.do("ip", "addr", "add", f"{network}.{10 + number}/24", "dev", "eth1")
            host.do("ip", "link", "set", "eth1", "up")

    def ip(self, *words: str) -> None:
        subprocess.run([*self.prefix, "ip", *words], check=True)

    def close(self) -> None:
        """End everything."""
        for host in self.hosts:
            host.power_off()
        self._holder.kill()
        self._holder.wait()

    def _is_apart(self) -> bool:
        mine = Path("/proc/self/ns/net").readlink()
        return Path(f"/proc/{self._holder.pid}/ns/net").readlink() != mine


@contextmanager
def host_lab(
    place: Path,
    count: int,
    seen: Sequence[Path] = (),
    shared: Sequence[Path] = (),
    network: str = _NETWORK,
) -> Iterator[HostLab]:
    """A lab with so many hosts, which are gone afterwards; skips where there can be none.

    ``seen`` and ``shared`` are directories of this machine that every host reads and writes; addresses begin with ``network``.
    """
    require_hosts()
    lab = HostLab(place, seen, shared, network)
    try:
        for _ in range(count):
            lab.host()
        yield lab
    finally:
        lab.close()


@contextmanager
def client_project(lab: HostLab, top: Path) -> Iterator[ProjectHarness]:
    """A project of an operator who may log in to the lab's hosts."""
    with project(top) as created:
        created.variables.update(lab.user.environment)
        created.namespace = lab.namespace
        yield created


class FakeHost:
    """One fake host. Its address and its host key stay the same whenever it boots."""

    def __init__(self, lab: HostLab, number: int, gpus: int, name: str) -> None:
        self._lab = lab
        self.name = name
        self.address = f"{lab.network}.{10 + number}"
        self._cable = f"v{number}"
        self.mac = f"02:00:00:00:00:{10 + number:02x}"
        self.place = lab.place / self.name
        self.place.mkdir()
        self.gpus = FakeNvidiaGpus.make(self.place / "bin", gpus)
        self.host_key = make_key(self.place / "host_key")
        (self.place / "authorized_keys").write_text(f"{lab.user.public}\n")
        self._parent: subprocess.Popen[bytes] | None = None
        self.first = 0
        """Its first process, as this machine numbers it."""

    @property
    def settings(self) -> dict[str, JsonValue]:
        """The host in a manifest."""
        return {"name": self.name, "address": self.address}

    @property
    def tunnel(self) -> tuple[str, ...]:
        """Lines of ssh's configuration with which ssh ends on its loopback."""
        relay = "exec 3<>/dev/tcp/127.0.0.1/22; cat <&3 & exec cat >&3"
        return (
            f"Host {self.address}",
            f"  HostKeyAlias {self.address}",
            f"  ProxyCommand nsenter --target={self.first} --net -- bash -c '{relay}'",
        )

    @property
    def home(self) -> Path:
        """The account's home directory, as it is on the disk."""
        return self.place / "home"

    def power_on(self) -> None:
        """Boot, and wait until its sshd answers."""
        assert self._parent is None
        words = ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
        words += ["--propagation", "private", str(_INIT), self.name, str(self.place)]
        words += [f"{self.address}/24"]
        with (self.place / "log").open("ab") as log:
            self._parent = subprocess.Popen(
                words, env=self._lab.variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.first = wait_for(self._child)
        peer = ("peer", "name", "eth0", "address", self.mac, "netns", str(self.first))
        self._lab.ip("link", "add", self._cable, "type", "veth", *peer)
        self._lab.ip("link", "set", self._cable, "master", "br0", "up")
        # known beforehand: nobody waits for ARP, nor for an entry of before the boot to grow old
        self._lab.ip(
            "neigh", "replace", self.address, "lladdr", self.mac, "dev", "br0", "nud", "permanent"
        )
        wait_for(self._answers)

    def power_off(self) -> None:
        """Everything that runs there ends at once; what is on its disk stays."""
        if self._parent is not None:
            self._parent.send_signal(signal.SIGKILL)
            self._parent.wait()
            self._parent = None
            words = [*self._lab.prefix, "ip", "link", "del", self._cable]
            subprocess.run(words, stderr=subprocess.DEVNULL)  # it may have gone with the namespace

    def link(self, *, up: bool) -> None:
        """Plug the cable in, or pull it: what is sent then is lost without a word."""
        self._lab.ip("link", "set", self._cable, "up" if up else "down")

    def freeze(self, *, on: bool) -> None:
        """Stop every process there, or let them go on: the kernel still takes connections."""
        signal_name = "-STOP" if on else "-CONT"
        words = ["pkill", "--ns", str(self.first), "--nslist", "pid", signal_name, "."]
        subprocess.run(words, check=True)

    @contextmanager
    def away(self, fault: str) -> Iterator[None]:
        """Without ``power``, with its link ``cut``, or in a ``freeze`` of its processes, for as long as the block lasts."""
        strike, mend = {
            "power": (self.power_off, self.power_on),
            "cut": (lambda: self.link(up=False), lambda: self.link(up=True)),
            "freeze": (lambda: self.freeze(on=True), lambda: self.freeze(on=False)),
        }[fault]
        strike()
        try:
            yield
        finally:
            mend()

    def do(self, *words: str, given: bytes = b"") -> str:
        """Run a program there as root; what it printed."""
        inside = ["nsenter", f"--target={self.first}", "--all", "--", *words]
        done = subprocess.run(inside, input=given, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def start(self, *words: str, out: IO[bytes]) -> subprocess.Popen[bytes]:
        """Begin a program there as root."""
        inside = ["nsenter", f"--target={self.first}", "--all", "--", *words]
        return subprocess.Popen(inside, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def processes(self) -> list[str]:
        """The arguments of everything that runs there but its sshd that listens."""
        lines = []
        here = Path(f"/proc/{self.first}/ns/pid").readlink()
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if int(entry.name) != self.first and (entry / "ns/pid").readlink() == here:
                    lines.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        return [line for line in lines if line]

    def await_quiet(self, seconds: float = 120) -> None:
        """Wait until nothing but its sshd runs there: one whose link was cut learns late that nobody is there any more."""
        wait_for(lambda: not self.processes(), seconds)

    def mounts(self) -> list[str]:
        """What is mounted there, by place."""
        text = Path(f"/proc/{self.first}/mountinfo").read_text()
        return sorted(line.split()[4] for line in text.splitlines())

    def _child(self) -> int | None:
        assert self._parent is not None
        listed = Path(f"/proc/{self._parent.pid}/task/{self._parent.pid}/children").read_text()
        return int(listed.split()[0]) if listed.split() else None

    def _answers(self) -> bool:
        look = f"exec 3<>/dev/tcp/{self.address}/22 && head -c 4 <&3"
        words = [*self._lab.prefix, "timeout", "5", "bash", "-c", look]
        return subprocess.run(words, capture_output=True).stdout == b"SSH-"
