"""EC2 instances on this machine: each has a loopback address, processes and a root directory of its own, and a real sshd.

An instance shares this machine's network, so that it reaches the servers of a test on 127.0.0.1. Needs root and namespaces.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.machines.cloud_config import BootScripts, boot_scripts
from tests.support.machines.gpus import FakeNvidiaGpus
from tests.support.machines.sshd import await_banner
from tests.support.node_program.nodes import wait_for
from tests.support.servers.ec2_metadata import PORT, InstanceMetadata, serve_metadata

_HERE = Path(__file__).parent
_PATH = "/opt/ec2/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
POWER_OFF, REBOOT = 10, 11
"""Exit statuses of ``ec2_init.sh``."""


@dataclass(frozen=True)
class Ec2Launch:
    """Properties of an instance that EC2 decides at launch."""

    instance_id: str
    address: str
    zone: str
    instance_type: str = "t3.micro"
    user_data: bytes = b""
    public_key: str | None = None
    gpus: int = 0
    spot: bool = False
    profile: str | None = None
    """Name of the role whose credentials the metadata service returns."""
    ssh_port: int = 22
    seen: Sequence[Path] = ()
    """Directories of this machine that the instance reads at the same path."""
    shared: Sequence[Path] = ()
    """Directories that it may write."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """More variables of all its processes except those that sshd starts."""


class Ec2Machine:
    """The computer behind one instance. ``boot``, ``kill`` and ``delete`` may be called at any time, in any thread."""

    def __init__(self, place: Path, launch: Ec2Launch, on_exit: Callable[[int], None]) -> None:
        """``on_exit`` is called with the exit status when the instance powers off or reboots from inside."""
        self.launch = launch
        self.place = place
        self._on_exit = on_exit
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._deleted = False
        self.boots = 0
        tools = place / "boot" / "bin"
        (place / "boot").mkdir(parents=True)
        self.gpus = FakeNvidiaGpus.make(tools, launch.gpus) if launch.gpus else None
        tools.mkdir(exist_ok=True)
        shutil.copy(_HERE / "ec2_tool.sh", tools / "ec2-tool")
        self.scripts: BootScripts = boot_scripts(launch.user_data, launch.public_key)
        for name, text in self.scripts.files.items():
            (place / "boot" / name).write_text(text)
        self.metadata = InstanceMetadata(_metadata(launch))
        self._close_metadata = serve_metadata(launch.address, self.metadata)

    @property
    def address(self) -> str:
        """Private address."""
        return self.launch.address

    @property
    def metadata_url(self) -> str:
        """Address of its metadata service."""
        return f"http://{self.address}:{PORT}/"

    @property
    def is_running(self) -> bool:
        """Whether its first process runs."""
        with self._lock:
            return self._process is not None

    @property
    def first(self) -> int:
        """PID of its first process, as this machine numbers it."""
        with self._lock:
            parent = self._process
        assert parent is not None, f"{self.launch.instance_id} is not running"
        return wait_for(lambda: _child(parent.pid))

    def boot(self) -> None:
        """Start its processes, unless it runs or was deleted."""
        with self._lock:
            if self._process is not None or self._deleted:
                return
            self.boots += 1
            name = "ip-" + self.address.replace(".", "-")
            words = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
            words += ["--propagation", "private", str(_HERE / "ec2_init.sh"), name, str(self.place)]
            with (self.place / "log").open("ab") as log:
                process = subprocess.Popen(
                    words,
                    env=self._variables(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            self._process = process
        threading.Thread(target=self._watch, args=(process,), daemon=True).start()

    def _variables(self) -> dict[str, str]:
        return {
            **self.launch.variables,
            "PATH": _PATH,
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "ADDRESS": self.address,
            "PORT": str(self.launch.ssh_port),
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": self.metadata_url,
            "SEEN": " ".join(map(str, self.launch.seen)),
            "SHARED": " ".join(map(str, self.launch.shared)),
        }

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        status = process.wait()
        with self._lock:
            if self._process is not process:
                return
            self._process = None
        self._on_exit(status)

    def kill(self) -> None:
        """End all its processes at once, as a power failure does; its disk stays."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            # unshare ends after its child, which ends after all processes of the namespace
            while process.poll() is None:
                first = _child(process.pid)
                if first:
                    with suppress(ProcessLookupError):
                        os.kill(first, signal.SIGKILL)
                time.sleep(0.005)

    def delete(self) -> None:
        """End it and delete its disk."""
        with self._lock:
            was_deleted, self._deleted = self._deleted, True
        if not was_deleted:
            self.kill()
            self._close_metadata()
            shutil.rmtree(self.place)

    def await_ssh(self, seconds: float = 60) -> None:
        """Wait until its sshd answers."""
        await_banner(self.address, self.launch.ssh_port, self.place / "log", seconds)

    def await_boot(self, seconds: float = 60) -> None:
        """Wait until cloud-init has run everything."""
        done = self.path("/var/lib/cloud/instance/boot-finished")
        wait_for(done.exists, seconds)

    def path(self, path: str) -> Path:
        """Path on this machine of a file that the instance wrote outside /root, /tmp and /run."""
        if path.startswith("/root/"):
            return self.place / "home" / path.removeprefix("/root/")
        return self.place / "up" / path.lstrip("/")

    @property
    def output(self) -> str:
        """Output of sshd, of the boot and of user data."""
        names = (self.place / "log", self.path("/var/log/cloud-init-output.log"))
        return "".join(name.read_text(errors="replace") for name in names if name.exists())

    def do(self, *words: str, check: bool = True) -> str:
        """Run a program there as root; its standard output."""
        inside = ["nsenter", f"--target={self.first}", "--all", "--", *words]
        done = subprocess.run(
            inside, env=self._variables(), stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout

    def processes(self) -> dict[int, str]:
        """Command lines of all its processes by PID on this machine."""
        here, found = Path(f"/proc/{self.first}/ns/pid").readlink(), {}
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (entry / "ns/pid").readlink() == here:
                    words = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(entry.name)] = words.decode(errors="replace").strip()
        return found


def _child(pid: int) -> int | None:
    try:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return None
    return int(listed[0]) if listed else None


def _metadata(launch: Ec2Launch) -> dict[str, str]:
    region = launch.zone[:-1]
    identity = {
        "instanceId": launch.instance_id, "instanceType": launch.instance_type, "privateIp": launch.address,
        "region": region, "availabilityZone": launch.zone, "accountId": "123456789012",
    }  # fmt: skip
    found = {
        "meta-data/instance-id": launch.instance_id,
        "meta-data/instance-type": launch.instance_type,
        "meta-data/instance-life-cycle": "spot" if launch.spot else "on-demand",
        "meta-data/local-ipv4": launch.address,
        "meta-data/local-hostname": "ip-" + launch.address.replace(".", "-"),
        "meta-data/placement/availability-zone": launch.zone,
        "meta-data/placement/region": region,
        "dynamic/instance-identity/document": json.dumps(identity),
    }
    if launch.user_data:
        found["user-data"] = launch.user_data.decode("latin-1")
    if launch.public_key:
        found["meta-data/public-keys/0/openssh-key"] = launch.public_key
    if launch.profile:
        found[f"meta-data/iam/security-credentials/{launch.profile}"] = json.dumps(
            {
                "Code": "Success", "Type": "AWS-HMAC", "AccessKeyId": "ASIAEXAMPLE", "SecretAccessKey": "not-a-real-key",
                "Token": "not-a-real-token", "LastUpdated": "2026-01-01T00:00:00Z", "Expiration": "2099-01-01T00:00:00Z",
            }
        )  # fmt: skip
    return found
