"""``status`` of 2,000 live runs on 50 hosts, beside logging in to the same hosts at once, over a real sshd.

    python -m tests.benchmarks.status_hosts [--hosts 50] [--runs 40] [--login 2] [--rounds 3]

The hosts are addresses of one sshd, and the runs copies of one that sleeps. A login takes ``--login`` seconds more than here, as
over a slow network: ``ssh`` waits so long first. The slowest of all logins, each ``ssh HOST true`` and all at once, is compared with
the whole command; medians of wall time. Exits 1 above the limit. Needs sshd and ssh.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.machines.sshd import SSHD, Sshd, SshUser, sshd
from tests.support.projects.project import ProjectHarness, project
from trainctl.ledger.ledger import IntentRequest, Ledger
from trainctl.ledger.state import RecordedResource
from trainctl.model.address import Address
from trainctl.operations.directories import default_state_url
from trainctl.plugin_api.discovery import open_state

LIMIT = 2.0
MANIFEST = """\
project: {name: bench}
clusters: {lab: {provider: ssh, hosts: HOSTS}}
jobs:
  idle: {code: ./src, runtime: {start_commands: ["sleep 3600"]}}
"""
_SLOW = """\
#!/bin/sh
case "$*" in *-O*|*ControlMaster=no*) ;; *) sleep {seconds};; esac
exec {ssh} -F {config} "$@"
"""


def main() -> int:
    """Measure and judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, default=50)
    parser.add_argument("--runs", type=int, default=40, help="on each host")
    parser.add_argument("--login", type=float, default=2.0, help="seconds")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    absent = [name for name in (SSHD, "ssh", "ssh-keygen") if shutil.which(name) is None]
    if absent:
        print(f"not measured, it needs {', '.join(absent)}; limit {LIMIT}")
        return 0
    with tempfile.TemporaryDirectory(prefix="trainctl-status-") as folder:
        top = Path(folder)
        user = SshUser(top / "user")
        with project(top) as created, sshd(top / "gpu-0", user, address="0.0.0.0") as host:
            addresses = [f"127.0.1.{number + 1}" for number in range(options.hosts)]
            known = (f"[{address}]:{host.port} {host.host_key}\n" for address in addresses)
            user.known_hosts.write_text("".join(known))
            created.variables.update(user.environment)
            created.forks = False
            first = json.dumps([{"name": "gpu-0", "address": addresses[0], "port": host.port}])
            created.write({"trainctl.yaml": MANIFEST.replace("HOSTS", first), "src/a": ""})
            created.run("apply", "--auto-approve")
            try:
                _multiply(created, addresses, options.runs)
                program = user.place / "bin" / "ssh"
                slow = {"seconds": options.login, "ssh": shutil.which("ssh"), "config": user.config}
                program.write_text(_SLOW.format(**slow))
                logins, statuses = [], []
                for _ in range(options.rounds):
                    logins.append(_slowest_login(program, host, addresses))
                    statuses.append(_status(created, options.hosts * options.runs))
            finally:
                created.run("stop", "job.idle", "--grace", "0", seconds=300)
    login, status = statistics.median(logins), statistics.median(statuses)
    print(
        f"status of {options.hosts * options.runs:,} runs on {options.hosts} hosts: {status:.1f} s, ratio to the slowest login "
        f"({login:.1f} s) {status / login:.2f} (limit {LIMIT}); load {os.getloadavg()[0]:.1f}"
    )
    return 0 if status / login <= LIMIT else 1


def _multiply(created: ProjectHarness, addresses: list[str], runs: int) -> None:
    """Record copies of the cluster's node and of its run, and copy the run on the node, whose root all have."""
    ledger = Ledger(open_state(default_state_url(created.directory)), str)
    resources = ledger.state().resources
    cluster, job = (resources[Address.parse(name)] for name in ("cluster.lab", "job.idle"))
    (node,) = cluster.outputs["nodes"]
    nodes = [
        {**node, "name": f"gpu-{number}", "id": f"lab/gpu-{number}", "address": address}
        for number, address in enumerate(addresses)
    ]
    changes = [_change(replace(cluster, outputs={**cluster.outputs, "nodes": nodes}))]
    (run,) = job.outputs["runs"]
    (directory,) = (
        path.parent for path in created.directory.parent.rglob(f"{run['key']}/spec.json")
    )
    spec = json.loads((directory / "spec.json").read_text())
    for number in range(1, len(addresses) * runs):
        place = f"lab/gpu-{number % len(addresses)}"
        own = {"key": f"{run['key']}-{number}", "id": f"{run['id'][:-4]}{number:04}"}
        copy = directory.with_name(own["key"])
        copy.mkdir()
        for path in directory.iterdir():
            if path.is_file() and path.name != "spec.json":
                (copy / path.name).hardlink_to(path)
        (copy / "spec.json").write_text(json.dumps({**spec, **own}))
        copied = {**run, **own, "ranks": [{**rank, "node": place} for rank in run["ranks"]]}
        recorded = replace(
            job,
            address=Address.parse(f"job.idle-{number}"),
            outputs={**job.outputs, "runs": [copied]},
        )
        changes.append(_change(recorded))
    ledger.record(changes)
    ledger.flush()


def _change(recorded: RecordedResource) -> tuple[IntentRequest, RecordedResource]:
    values: dict[str, Any] = {"attributes": dict(recorded.attributes)}
    return IntentRequest(recorded.address, "update", recorded.provider, "k", values), recorded


def _slowest_login(program: Path, host: Sshd, addresses: list[str]) -> float:
    began = time.monotonic()
    words = [str(program), "-p", str(host.port)]
    logins = [subprocess.Popen([*words, address, "true"]) for address in addresses]
    codes = {login.wait() for login in logins}
    assert codes == {0}, codes
    return time.monotonic() - began


def _status(created: ProjectHarness, runs: int) -> float:
    began = time.monotonic()
    rows = created.json("status")
    seconds = time.monotonic() - began
    rows = rows["jobs"] if isinstance(rows, dict) else rows
    states = {(row["status"], row["refresh_error"]) for row in rows}
    assert (len(rows), states) == (runs, {("TRAINING_JOB_RUNNING", None)}), states
    return seconds


if __name__ == "__main__":
    sys.exit(main())
