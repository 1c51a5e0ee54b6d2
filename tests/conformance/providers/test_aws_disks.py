"""Local disks of instances: the script that runs at each boot, in a mount namespace with loop devices."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from tests.support.machines.hosts import require_hosts
from trainctl_aws.launch import LOCAL_DISKS
from trainctl_ssh.keys import KeyPair
from trainctl_ssh.user_data import user_data

_NAMESPACE = """
set -e
mkdir -p {place}/dev {place}/home/.cache; mount --bind /dev {place}/dev
mount -t tmpfs tmpfs /dev
for name in null urandom {disks}; do touch /dev/$name; mount --bind {place}/dev/$name /dev/$name; done
mkdir -p /dev/disk/by-id
number=0
for name in {disks}; do
    number=$((number + 1)) link=/dev/disk/by-id/nvme-Amazon_EC2_NVMe_Instance_Storage_AWS0$number
    ln -s /dev/$name $link; ln -s /dev/$name ${{link}}_1; ln -s /dev/$name $link-ns-1
done
PATH={place}/bin:$PATH sh {place}/each_boot
mountpoint -q {cache}
cat {cache}/kept 2>/dev/null || :
echo kept >{cache}/kept
stat -c %a {cache}
ls -A {cache}
umount {cache}
"""
"""A machine whose local disks are loop devices; boots it once."""
_GETENT = "#!/bin/sh\necho root:x:0:0::{place}/home:/bin/sh\n"
_MDADM = '#!/bin/sh\necho "$@" >>{place}/mdadm\ncase $1 in --create) mkdir -p /dev/md; ln -s /dev/{first} "$2";; esac\n'
"""Instead of md, which this kernel may lack: the array is its first disk."""


def test_local_disks_hold_the_node_cache_also_after_a_reboot(tmp_path: Path) -> None:
    """They are striped. The file system is made once."""
    require_hosts()
    with ExitStack() as stack:
        disks = [loop_device(stack, tmp_path / f"disk-{number}") for number in range(2)]
        values = {"place": tmp_path, "disks": " ".join(disks), "first": disks[0]}
        values["cache"] = tmp_path / "home/.cache/trainctl/cache"
        (tmp_path / "bin").mkdir()
        for name, text in {"getent": _GETENT, "mdadm": _MDADM, "systemctl": "#!/bin/sh\n"}.items():
            (tmp_path / "bin" / name).write_text(text.format(**values))
            (tmp_path / "bin" / name).chmod(0o755)
        key = KeyPair("", "")
        [script] = yaml.safe_load(user_data("root", key, key, 900, LOCAL_DISKS))["write_files"]
        (tmp_path / "each_boot").write_text(script["content"])

        def boot() -> list[str]:
            words = ["unshare", "--mount", "sh", "-c", _NAMESPACE.format(**values)]
            done = subprocess.run(words, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            return done.stdout.split()

        assert boot() == ["700", "kept"]
        assert boot() == ["kept", "700", "kept"]
    by_id = "/dev/disk/by-id/nvme-Amazon_EC2_NVMe_Instance_Storage_AWS0"
    assert (tmp_path / "mdadm").read_text().splitlines() == [
        "--assemble --scan",
        f"--create /dev/md/trainctl --run --level=0 --raid-devices=2 {by_id}1 {by_id}2",
        "--assemble --scan",
    ]


def loop_device(stack: ExitStack, path: Path) -> str:
    """The name of a block device of 64 MiB; skip without any."""
    with path.open("wb") as stream:
        stream.truncate(64 * 2**20)
    result = subprocess.run(["losetup", "-f", "--show", path], capture_output=True, text=True)
    if result.returncode:
        pytest.skip(f"no loop devices: {result.stderr}")
    stack.callback(subprocess.run, ["losetup", "-d", result.stdout.strip()], check=True)
    return result.stdout.strip().removeprefix("/dev/")
