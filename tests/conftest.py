"""What all tests share."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.support import tiers
from tests.support.long_tier import LongTier
from tests.support.machines.slurm import SlurmCluster, slurm_cluster
from tests.support.session import TestSession

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


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the long tier."""
    group = parser.getgroup("long tier")
    group.addoption("--part", default="1/1", help="run the second of eight parts: 2/8")
    group.addoption("--again", action="store_true", help="repeat what has passed on this source")
    group.addoption("--record", action="store_true", help="keep the durations for estimates")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Choose the tier: the default one on all processors, unless tests are named or selected."""
    option = config.option
    is_worker = hasattr(config, "workerinput")  # parses the same options, and starts no workers
    if not is_worker and not option.collectonly:
        config.pluginmanager.register(TestSession(config))
    if option.markexpr == "integration":
        option.markexpr = tiers.INTEGRATION
    elif option.markexpr == tiers.LONG:
        config.pluginmanager.register(LongTier(config))
        settings.load_profile("long")
    elif config.args_source is pytest.Config.ArgsSource.ARGS:
        is_one_test = any("::" in argument for argument in config.args)
        option.markexpr = option.markexpr or ("" if is_one_test else "not long")
    elif not option.markexpr:
        option.markexpr = tiers.DEFAULT
        _trust_one_authority()
        if not is_worker and option.numprocesses is None and not option.usepdb:
            option.numprocesses = os.cpu_count()
            option.dist = "loadfile"


def _trust_one_authority() -> None:
    """Spare each client the tenth of a second that loading this machine's bundles takes: tests name their own."""
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_DIR"):
        os.environ.pop(name, None)
    os.environ["SSL_CERT_FILE"] = str(_TESTS / "support" / "root.pem")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Don't even import directories and files whose tests are all in other tiers."""
    tier, inside = config.option.markexpr, f"{collection_path.relative_to(_TESTS)}/"
    if collection_path.suffix != ".py":
        other = tier == tiers.DEFAULT and inside in tiers.INTEGRATION_FOLDERS
    elif tier == tiers.DEFAULT:
        other = _OF_INTEGRATION in collection_path.read_bytes()
    elif tier == tiers.INTEGRATION:
        other = (
            not inside.startswith((*tiers.INTEGRATION_FOLDERS, "conformance/"))
            and b"mark.integration" not in collection_path.read_bytes()
            and collection_path.name.startswith("test_")
        )
    else:
        other = False
    return True if other else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark by directory, and put slower tiers first, so that no worker is left with them in the end."""
    for item in items:
        inside = str(item.path.relative_to(_TESTS))
        if config.option.markexpr == tiers.LONG and inside.startswith(tiers.PROPERTY_FOLDER):
            item.add_marker(pytest.mark.long)
        elif (
            inside.startswith(tiers.INTEGRATION_FOLDERS) and item.get_closest_marker("long") is None
        ):
            item.add_marker(pytest.mark.integration)
    items.sort(key=lambda item: item.get_closest_marker("integration") is None)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Fail a test after which libraries log more: each later test of its process takes far longer."""
    root = logging.getLogger()
    if root.level != logging.WARNING:
        root.setLevel(logging.WARNING)
        pytest.fail("the level of the root logger was not restored")


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
