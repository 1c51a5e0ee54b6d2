"""The directory of one session of tests, the report of its failures, and the check that nothing outlives it.

All that tests write goes below one directory: pytest's ``tmp_path``, and ``TMPDIR`` of each program that they start. It is
removed when the tests have passed. After a failure it stays, with the output of each failed test.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from xdist.workermanage import NodeManager

from tests.support.cleanup import AT_END

RESULTS = "TEST_RESULTS"
"""Variable with the directory to keep results in, for ``tests/run``, which starts several sessions."""
_MARK = "TRAINCTL_TEST_SESSION"
"""Variable with the session's directory, by which its processes are known."""
PATIENCE = 20.0
"""Seconds that processes have to end after the last test: supervisors notice the end of a run within a few."""
_PROC = Path("/proc")


class TestSession:
    """A plugin of the process that pytest was called in; workers of xdist inherit the variables."""

    __test__ = False

    def __init__(self, config: pytest.Config) -> None:
        # Short: the path of a socket has at most 107 bytes.
        self.directory = Path(tempfile.mkdtemp(prefix="tt-"))
        self.failures = Path(os.environ.get(RESULTS, self.directory)) / "failures"
        self._leftovers: list[str] = []
        self._count = 0
        self._namespaces = _named_namespaces()
        for path in (self.directory, self.directory / "t"):
            path.mkdir(exist_ok=True)
            path.chmod(0o1777)  # some tests run as another user
        config.option.basetemp = self.directory / "p"
        os.environ[_MARK] = str(self.directory)
        os.environ["TMPDIR"] = tempfile.tempdir = str(self.directory / "t")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(self.directory / "torch")
        NodeManager.EXIT_TIMEOUT = 300  # a busy machine needs long to end what workers started

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write what a failed test said to a file of its own."""
        if not report.failed:
            return
        self._count += 1
        self.failures.mkdir(exist_ok=True)
        name = re.sub(r"[^\w.-]+", "-", report.nodeid.removeprefix("tests/"))[:100]
        sections = [f"\n--- {title} ---\n{text}" for title, text in report.sections]
        path = self.failures / f"{self._count:02}-{name}.txt"
        path.write_text(
            "".join([f"{report.nodeid} ({report.when})\n", report.longreprtext, *sections])
        )
        with (self.failures / "commands").open("a") as file:
            file.write(f"tests/run {shlex.quote(report.nodeid)}\n")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail the session if something of it is left."""
        AT_END.close()
        self._leftovers = self._wait_for_leftovers()
        if self._leftovers and session.exitstatus in (
            pytest.ExitCode.OK,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """End with what failed, how to repeat it, and where its output is."""
        write = terminalreporter.write_line
        for leftover in self._leftovers:
            write(f"left behind by a test: {leftover}", red=True)
        if self._leftovers:
            self.failures.mkdir(exist_ok=True)
            with (self.failures / "commands").open("a") as file:
                file.writelines(f"# left behind by a test: {text}\n" for text in self._leftovers)
        if self._has_failed:
            if RESULTS not in os.environ:
                write("failed tests, each again alone:")
                write((self.failures / "commands").read_text().rstrip())
            write(f"output of failed tests: {self.failures}; their directories: {self.directory}/p")

    def pytest_unconfigure(self) -> None:
        """Remove the directory, unless a failure needs it, or something is still mounted there."""
        if not self._has_failed and not list(_mounts(self.directory)):
            shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def _has_failed(self) -> bool:
        return bool(self._count or self._leftovers)

    def _wait_for_leftovers(self) -> list[str]:
        end = time.monotonic() + PATIENCE
        while (leftovers := self._find_leftovers()) and time.monotonic() < end:
            time.sleep(0.2)
        return leftovers

    def _find_leftovers(self) -> list[str]:
        files = sorted(path.name for path in (self.directory / "t").iterdir())
        return [
            *(f"process {text}" for text in _processes(self.directory)),
            *(f"mount {place}" for place in _mounts(self.directory)),
            *(f"network namespace {name}" for name in _named_namespaces() - self._namespaces),
            *(f"file {name} in TMPDIR" for name in files),
        ]


def _processes(directory: Path) -> Iterator[str]:
    """Processes that have the session's variable, or work in or were started with a path of its directory."""
    own = {os.getpid(), os.getppid()}
    needle = os.fsencode(directory)
    for entry in _PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) in own:
            continue
        reads: tuple[Callable[[], bytes], ...] = (
            (entry / "environ").read_bytes,
            (entry / "cmdline").read_bytes,
            lambda cwd=entry / "cwd": os.fsencode(cwd.readlink()),  # type: ignore[misc]
        )
        for read in reads:
            with suppress(OSError):
                if needle in read():
                    words = b" ".join((entry / "cmdline").read_bytes().replace(b"\0", b" ").split())
                    if words:  # else it has ended, and its parent hasn't noticed
                        yield f"{entry.name}: {words.decode(errors='replace')[:200]}"
                    break


def _mounts(directory: Path) -> Iterator[str]:
    for line in (_PROC / "self" / "mountinfo").read_text().splitlines():
        place = line.split()[4]
        if place.startswith(f"{directory}/"):
            yield place


def _named_namespaces() -> set[str]:
    with suppress(OSError):
        return {path.name for path in Path("/run/netns").iterdir()}
    return set()
