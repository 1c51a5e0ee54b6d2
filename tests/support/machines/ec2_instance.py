"""EC2 instances on this machine: each has a loopback address, processes and a root directory of its own, and a real sshd.

An instance shares this machine's network, so that it reaches the servers of a test on 127.0.0.1. Needs root and namespaces.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.machines.gpus import FakeNvidiaGpus
from tests.support.servers.ec2_metadata import PORT, InstanceMetadata, serve_metadata

_HERE = Path(__file__).parent
_PATH = "/opt/ec2/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_POWER_OFF = 10
"""Exit status of ``ec2_init.sh``."""


@dataclass(frozen=True)
class Ec2Launch:
    """Properties of an instance that EC2 decides at launch."""

    address: str
    user_data: str
    gpus: int
    ssh_port: int


class Ec2Machine:
    """The computer behind one instance. ``boot``, ``kill`` and ``delete`` may be called at any time, in any thread."""

    def __init__(self, place: Path, launch: Ec2Launch, on_power_off: Callable[[], None]) -> None:
        """``on_power_off`` is called when the instance powers off from inside."""
        self._launch = launch
        self._place = place
        self._on_power_off = on_power_off
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        tools = place / "boot" / "bin"
        (place / "boot").mkdir(parents=True)
        if launch.gpus:
            FakeNvidiaGpus.make(tools, launch.gpus)
        tools.mkdir(exist_ok=True)
        shutil.copy(_HERE / "ec2_tool.sh", tools / "ec2-tool")
        config = yaml.safe_load(launch.user_data)
        home = f"/home/{hashlib.sha256(bytes(place)).hexdigest()[:16]}"
        (place / "boot/config.sh").write_text(_config_script(config, home))
        commands = (shlex.join(words) for words in config["bootcmd"])
        (place / "boot/bootcmd.sh").write_text("\n".join(commands))
        self.metadata = InstanceMetadata()
        self._close_metadata = serve_metadata(launch.address, self.metadata)

    def boot(self) -> None:
        name = "ip-" + self._launch.address.replace(".", "-")
        words = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
        words += ["--propagation", "private", str(_HERE / "ec2_init.sh"), name, str(self._place)]
        variables = {
            "PATH": _PATH,
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "ADDRESS": self._launch.address,
            "PORT": str(self._launch.ssh_port),
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{self._launch.address}:{PORT}/",
        }
        with self._lock, (self._place / "log").open("ab") as log:
            self._process = process = subprocess.Popen(
                words,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        threading.Thread(target=self._watch, args=(process,), daemon=True).start()

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        status = process.wait()
        with self._lock:
            if self._process is not process:
                return
            self._process = None
        if status == _POWER_OFF:
            self._on_power_off()

    def kill(self) -> None:
        """End all its processes at once, as a power failure does; its disk stays."""
        with self._lock:
            process, self._process = self._process, None
        # unshare ends after its child, which ends after all processes of the namespace
        while process is not None and process.poll() is None:
            with suppress(OSError):
                children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
                for pid in children.split():
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.005)

    def delete(self) -> None:
        """End it and delete its disk."""
        self.kill()
        self._close_metadata()
        shutil.rmtree(self._place)


def _config_script(config: dict[str, Any], home: str) -> str:
    """Return shell that does what cloud-init does with the keys of trainctl's user data.

    All accounts have UID 0 and a home directory of their own, as tests can't install a setuid ``sudo``. ``home`` is that of the
    login user; instances have different ones, as claims of nodes are named by it and seen by all that share a network.
    """
    host_key = "/etc/ssh/ssh_host_ed25519_key"
    login = "\n".join(config["ssh_authorized_keys"])
    parts = [
        _write(host_key, config["ssh_keys"]["ed25519_private"], "0600"),
        _write(f"{host_key}.pub", config["ssh_keys"]["ed25519_public"], "0644"),
        *(_write(each["path"], each["content"], each["permissions"]) for each in config["write_files"]),
        "userdel -f ubuntu 2>/dev/null; rm -rf /root/.ssh\n",
        f"useradd -o -u 0 -g 0 -M -d {home} -s /bin/bash -p '*' ubuntu\n",
        _write(f"{home}/.ssh/authorized_keys", login, "0600"),
    ]  # fmt: skip
    if not config["disable_root"]:
        parts.append(_write("/root/.ssh/authorized_keys", login, "0600"))
    return "".join(parts)


def _write(path: str, content: str, mode: str) -> str:
    text = f"mkdir -p {Path(path).parent}\ncat >{path} <<'END-OF-FILE'\n{content.rstrip()}\n"
    return f"{text}END-OF-FILE\nchmod {mode} {path}\n"
