"""The EC2 server that tests of the AWS provider use: launches, logins, faults, spot notices and shutdowns."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from botocore.exceptions import ClientError, ConnectionClosedError

from tests.support.machines.ec2_instance import Ec2Machine
from tests.support.machines.sshd import make_key
from tests.support.node_program.nodes import wait_for
from tests.support.servers.ec2 import Ec2Server

UNIT = """[Service]
Environment=WORD=unit
ExecStart=/bin/sh -c 'echo $WORD >>/var/units; exec sleep 1000'
"""
METADATA = """import os, urllib.request as web
url = os.environ["AWS_EC2_METADATA_SERVICE_ENDPOINT"] + "latest/"
ask = web.Request(url + "api/token", method="PUT", headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"})
token = {"X-aws-ec2-metadata-token": web.urlopen(ask).read().decode()}
print(web.urlopen(web.Request(url + "meta-data/spot/instance-action", headers=token)).read())
"""


class Login:
    """A key pair, a host key, and user data that installs the host key and a unit."""

    def __init__(self, place: Path, ec2: Ec2Server) -> None:
        self.key, self.known_hosts = place / "id", place / "known_hosts"
        self.host_key = make_key(place / "host_key")
        ec2.client().import_key_pair(KeyName="test", PublicKeyMaterial=make_key(self.key))
        config = {
            "ssh_keys": {"ed25519_private": (place / "host_key").read_text()},
            "write_files": [{"path": "/etc/systemd/system/probe.service", "content": UNIT}],
            "runcmd": [["systemctl", "enable", "--now", "probe"]],
        }
        self.user_data = "#cloud-config\n" + yaml.safe_dump(config)

    def launch(self, ec2: Ec2Server, **more: Any) -> str:
        words = {"ImageId": ec2.image, "InstanceType": "g5.xlarge", "MinCount": 1, "MaxCount": 1}
        words |= {"KeyName": "test", "UserData": self.user_data, **more}
        return str(ec2.client(attempts=3).run_instances(**words)["Instances"][0]["InstanceId"])

    def run(self, machine: Ec2Machine, command: str) -> str:
        machine.await_ssh()
        port, alias = machine.launch.ssh_port, machine.launch.instance_id
        self.known_hosts.write_text(f"{alias} {self.host_key}\n")
        options = f"-F none -i {self.key} -p {port} -oBatchMode=yes -oIdentitiesOnly=yes"
        options += f" -oUserKnownHostsFile={self.known_hosts} -oHostKeyAlias={alias}"
        words = ["ssh", *options.split(), f"ubuntu@{machine.address}", command]
        return subprocess.run(words, stdout=subprocess.PIPE, text=True).stdout


@pytest.fixture
def login(tmp_path: Path, ec2: Ec2Server) -> Login:
    return Login(tmp_path, ec2)


def state(ec2: Ec2Server, name: str) -> str:
    found = ec2.client().describe_instances(InstanceIds=[name])["Reservations"]
    return str(found[0]["Instances"][0]["State"]["Name"])


def test_an_instance_boots_restarts_its_units_and_ends(ec2: Ec2Server, login: Login) -> None:
    machine = ec2.machine(name := login.launch(ec2))
    assert login.run(machine, "nvidia-smi --query-gpu= | wc -l; sudo pwd") == "1\n/home/ubuntu\n"
    machine.await_boot()
    units = machine.path("/var/units")
    ec2.client().reboot_instances(InstanceIds=[name])
    assert wait_for(lambda: units.read_text() == "unit\nunit\n")
    processes = machine.processes()
    ec2.client().terminate_instances(InstanceIds=[name])
    assert not any(Path(f"/proc/{pid}").exists() for pid in processes)
    assert (machine.place.exists(), state(ec2, name)) == (False, "terminated")
    ec2.reuse_address(machine.address)
    assert ec2.machine(login.launch(ec2)).address == machine.address


def test_a_client_token_launches_once(ec2: Ec2Server, login: Login) -> None:
    with ThreadPoolExecutor(4) as pool:
        names = set(pool.map(lambda _: login.launch(ec2, ClientToken="one"), range(4)))
    assert len(names) == len(ec2.machines) == 1
    with pytest.raises(ClientError, match="IdempotentParameterMismatch"):
        login.launch(ec2, ClientToken="one", InstanceType="p5.48xlarge")


def test_faults(ec2: Ec2Server, login: Login) -> None:
    ec2.fail_next("RunInstances", "VcpuLimitExceeded", where={"InstanceType": "g5.xlarge"})
    with pytest.raises(ClientError, match="VcpuLimitExceeded"):
        login.launch(ec2)
    ec2.fail_next("RunInstances", "RequestLimitExceeded", count=2)  # the third attempt succeeds
    ec2.lag_describe(2)
    name = login.launch(ec2)
    assert [each.status for each in ec2.calls("RunInstances")] == [400, 503, 503, 200]
    assert ec2.client().describe_instances()["Reservations"] == []
    with pytest.raises(ClientError, match="NotFound"):
        state(ec2, name)
    wait_for(lambda: ec2.client().describe_instances()["Reservations"])
    ec2.lose_answer("TerminateInstances")
    with pytest.raises(ConnectionClosedError):
        ec2.client().terminate_instances(InstanceIds=[name])
    assert state(ec2, name) == "terminated"


def test_spot_notices_and_shutdown(ec2: Ec2Server, login: Login) -> None:
    name = login.launch(ec2, InstanceMarketOptions={"MarketType": "spot"})
    ec2.interrupt(name)
    assert '"action": "terminate"' in login.run(ec2.machine(name), f"python3 -c '{METADATA}'")
    ec2.interrupt(name, seconds=0)
    wait_for(lambda: state(ec2, name) == "terminated")
    for behavior, end in [("terminate", "terminated"), ("stop", "stopped")]:
        other = login.launch(ec2, InstanceInitiatedShutdownBehavior=behavior)
        login.run(ec2.machine(other), "sudo shutdown -h now")
        assert wait_for(lambda: state(ec2, other) == end)  # noqa: B023
