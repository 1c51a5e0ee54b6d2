"""What all tests share."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import tiers
from tests.support.machines.slurm import SlurmCluster, slurm_cluster

if TYPE_CHECKING:
    from tests.support.servers.ec2 import Ec2Server

_TESTS = Path(__file__).parent
_OF_INTEGRATION = b"\npytestmark = pytest.mark.integration\n"
"""A line of files whose tests are all in the integration tier."""

# Without bytecode each worker, and each program that a test starts, compiles everything anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A job started with & inherits SIGINT ignored, and would hand that on to every program that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No test cuts the power, and a killed process loses nothing it wrote.
os.fsync = lambda fd: None

tiers.register_profiles()


def _names_tests(config: pytest.Config) -> bool:
    return config.args_source is pytest.Config.ArgsSource.ARGS


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Run the default tier on all processors, unless tests are named or selected."""
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = tiers.SEED
    if config.option.markexpr == "integration":
        config.option.markexpr = tiers.SLOW
    is_worker = hasattr(
        config, "workerinput"
    )  # which parses the same options, and starts no workers
    config.option.runs_all_days = _names_tests(config) and not config.option.markexpr
    if _names_tests(config) or config.option.markexpr:
        config.option.markexpr = config.option.markexpr or "not long"
        return
    config.option.markexpr = tiers.DEFAULT
    _trust_one_authority()
    if not is_worker and config.option.numprocesses is None and not config.option.usepdb:
        config.option.numprocesses = os.cpu_count()
        config.option.dist = "loadfile"


def _trust_one_authority() -> None:
    """Spare each client the tenth of a second that loading this machine's bundles takes: tests name their own."""
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_DIR"):
        os.environ.pop(name, None)
    os.environ["SSL_CERT_FILE"] = str(_TESTS / "support" / "root.pem")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Don't even import directories and files whose tests are all in other tiers."""
    tier, inside = config.option.markexpr, f"{collection_path.relative_to(_TESTS)}/"
    if tier == tiers.DEFAULT:
        other = inside in tiers.INTEGRATION or (
            collection_path.suffix == ".py" and _OF_INTEGRATION in collection_path.read_bytes()
        )
    elif tier == tiers.SLOW:
        other = (
            collection_path.suffix == ".py"
            and not inside.startswith((*tiers.INTEGRATION, "conformance/"))
            and b"mark.integration" not in collection_path.read_bytes()
            and collection_path.name.startswith("test_")
        )
    else:
        other = False
    return True if other else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark by directory and by day, and put the slower tiers first, so that no worker is left with them in the end."""
    for item in items:
        if not (config.option.runs_all_days or _is_due(item)):
            item.add_marker(pytest.mark.long)
        below = str(item.path.relative_to(_TESTS)).startswith(tiers.INTEGRATION)
        if below and item.get_closest_marker("long") is None:
            item.add_marker(pytest.mark.integration)
    items.sort(key=lambda item: item.get_closest_marker("integration") is None)


def _is_due(item: pytest.Item) -> bool:
    """Whether today is the day of its test, class and module, if they have one."""
    marked = item.iter_markers_with_node("one_day_in")
    return all(tiers.is_due(node.nodeid, *days.args) for node, days in marked)


def pytest_report_header() -> str:
    """Print what repeats today's samples, and how to run all of the long tier."""
    return f"samples of the long tests: TEST_SEED={tiers.SEED}; all of them: tests/run long"


@pytest.fixture
def hangs_up() -> Iterator[None]:
    """A closed terminal is told to programs, also where the tests were begun with ``nohup``."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmCluster]:
    """A real Slurm of this worker; a test that leaves jobs behind calls its ``cancel_all``."""
    with slurm_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def _ec2_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ec2Server]:
    from tests.support.machines.hosts import require_hosts
    from tests.support.servers.ec2 import serve_ec2

    require_hosts()
    with serve_ec2(tmp_path_factory.mktemp("ec2")) as server:
        yield server


@pytest.fixture
def ec2(_ec2_server: Ec2Server) -> Iterator[Ec2Server]:
    """EC2 on this machine, without instances. The server starts once per session."""
    yield _ec2_server
    _ec2_server.reset()
