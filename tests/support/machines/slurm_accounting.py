"""A Slurm with accounting: slurmdbd over a MariaDB, both children of the test, beside the daemons of ``slurm``."""

from __future__ import annotations

import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.machines.slurm import PATH, SlurmCluster, free_ports, require_slurm

_PROGRAMS = ("slurmdbd", "mariadbd", "sacctmgr")
_TABLES = [Path(f"/usr/share/mysql/mysql_system_tables{part}.sql") for part in ("", "_data")]
OPERATOR = "nobody"
"""Who may cancel jobs of others."""


def require_accounting() -> None:
    """Skip if Slurm or its accounting is not installed."""
    require_slurm()
    missing = [name for name in _PROGRAMS if shutil.which(name, path=PATH) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)} (Debian: slurmdbd mariadb-server-core)")


class AccountedSlurmCluster(SlurmCluster):
    """Its ``sacct`` remembers jobs that the controller has forgotten, and who cancelled them."""

    def start(self) -> None:
        """Start the database, slurmdbd, then the cluster."""
        self._configure()
        self._start_munge()
        data, database, daemon = self.top / "db", free_ports(1), free_ports(1)
        data.mkdir()
        words = ("--no-defaults", "--user=root", f"--datadir={data}")
        tables = "".join(path.read_text() for path in _TABLES)
        self(
            "mariadbd", *words, "--bootstrap", text=f"create database mysql;\nuse mysql;\n{tables}"
        )
        places = (f"--socket={data}/socket", "--bind-address=127.0.0.1", f"--port={database}")
        self._spawn("mariadbd", *words, "--skip-grant-tables", *places)
        self.await_that(lambda: answers(database), "mariadbd does not answer")
        with (self.top / "slurm.conf").open("a") as config:
            config.write(_SLURM.format(top=self.top, port=daemon))
        settings = self.top / "slurmdbd.conf"
        settings.touch(0o600)
        host = socket.gethostname().partition(".")[0]
        settings.write_text(_DAEMON.format(top=self.top, host=host, port=daemon, database=database))
        self._spawn("slurmdbd", "-D")
        self.await_that(lambda: answers(daemon), "slurmdbd does not answer")
        self("sacctmgr", "-i", "add", "cluster", "tests")
        self("sacctmgr", "-i", "add", "account", "lab", "cluster=tests")
        self("sacctmgr", "-i", "add", "user", OPERATOR, "account=lab", "adminlevel=operator")
        self._start_daemons()

    def forget_jobs(self) -> None:
        """Restart the controller without its records, as it purges those of ended jobs."""
        self.stop_controller()
        for path in (self.top / "state").glob("job_state*"):
            path.unlink()
        self.start_controller()

    def stop(self) -> None:
        """Kill all daemons."""
        super().stop()
        for name in ("slurmdbd", "mariadbd"):
            self._end(name, signal.SIGKILL)


_SLURM = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={top}/run/munge.sock
"""
_DAEMON = """\
AuthType=auth/munge
AuthInfo=socket={top}/run/munge.sock
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
LogFile={top}/log/slurmdbd.log
PidFile={top}/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database}
StorageUser=root
StorageLoc=slurm
"""


def answers(port: int) -> bool:
    """Whether something listens at a port of this machine."""
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def accounted_slurm_cluster() -> Iterator[AccountedSlurmCluster]:
    """Run a cluster in a new directory below the system's temporary one, as paths of sockets are short."""
    require_accounting()
    with tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as top:
        cluster = AccountedSlurmCluster(Path(top))
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()
