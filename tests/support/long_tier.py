"""The long tier: what it will cost, its parts, and going on where a run was ended.

``long_seconds.json`` has the seconds of each file's long tests, from the last whole run (``tests/run long --record``). A file is
in one part. Tests that have passed on the same source are not repeated: their names are kept below ``.cache/long``.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import zlib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.install_cache import cache_directory

_ROOT = Path(__file__).resolve().parents[2]
_SECONDS = Path(__file__).with_name("long_seconds.json")
_PASSED = "TEST_LONG_PASSED"
"""Variable with the names that had passed when the session began, the same for every worker."""
_UNKNOWN_SECONDS = 30.0


def part_of(file: str, parts: int, seconds: Mapping[str, float]) -> int:
    """Number from 1 of the part that a file is in: parts of about the same duration."""
    loads = [0.0] * parts
    for name in sorted(seconds, key=lambda name: (-seconds[name], name)):
        lightest = loads.index(min(loads))
        if name == file:
            return lightest + 1
        loads[lightest] += seconds[name]
    return zlib.crc32(file.encode()) % parts + 1


def parse_part(text: str) -> tuple[int, int]:
    """``2/8`` as (2, 8)."""
    try:
        number, parts = map(int, text.split("/"))
    except ValueError:
        number, parts = 0, 0
    if not 1 <= number <= parts:
        raise pytest.UsageError(f"--part {text}: expected a part such as 2/8")
    return number, parts


class LongTier:
    """A plugin of ``pytest -m long``, in the controlling process and in each worker."""

    def __init__(self, config: pytest.Config) -> None:
        self._number, self._parts = parse_part(config.option.part)
        self._record = config.option.record
        self._is_worker = hasattr(config, "workerinput")
        self._seconds: dict[str, float] = json.loads(_SECONDS.read_text())
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._called: set[str] = set()
        self._workers = config.option.numprocesses or 1
        self._file = cache_directory("long") / f"passed-{_source_key()}"
        if not self._is_worker and config.option.hypothesis_seed is None:
            config.option.hypothesis_seed = random.randrange(2**32)
        self._seed = config.option.hypothesis_seed
        if config.option.again:
            self._file.unlink(missing_ok=True)
        if not self._is_worker:
            os.environ[_PASSED] = self._file.read_text() if self._file.exists() else ""
        self._passed = set(os.environ[_PASSED].splitlines())

    def pytest_report_header(self) -> list[str]:
        """Say how long it will take."""
        expected = sum(
            spent
            for file, spent in self._seconds.items()
            if part_of(file, self._parts, self._seconds) == self._number
        )
        minutes = max(1, round(expected / self._workers / 60))
        estimate = f"about {minutes} minutes" if self._seconds else "not measured yet (--record)"
        return [
            f"long tier, part {self._number}/{self._parts}: {estimate} with {self._workers} workers",
            f"{len(self._passed)} tests have passed on this source already and are left out (--again repeats them)",
            f"--hypothesis-seed={self._seed}",
        ]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Leave out other parts, and what has passed."""
        chosen = [item for item in items if self._is_chosen(item)]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
        items[:] = chosen

    def _is_chosen(self, item: pytest.Item) -> bool:
        file = item.nodeid.partition("::")[0]
        in_part = part_of(file, self._parts, self._seconds) == self._number
        return in_part and item.nodeid not in self._passed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what has passed, at once: the session may be killed."""
        if self._is_worker:
            return
        self._spent[report.nodeid.partition("::")[0]] += report.duration
        if report.passed and report.when == "call":
            self._called.add(report.nodeid)
        if report.passed and report.when == "teardown" and report.nodeid in self._called:
            with self._file.open("a") as file:
                file.write(f"{report.nodeid}\n")

    def pytest_sessionfinish(self) -> None:
        """Keep the durations, if that is wanted; of a file that was run in part, the longer one."""
        if self._record and not self._is_worker:
            before = self._seconds if self._passed or self._parts > 1 else {}
            files = sorted({*before, *self._spent})
            spent = {file: round(max(before.get(file, 0), self._spent[file]), 1) for file in files}
            _SECONDS.write_text(json.dumps(spent, indent=1) + "\n")


def _source_key() -> str:
    """Differs when the commit or a tracked file does."""
    git = ("git", "-C", str(_ROOT))
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, check=False).stdout
    changes = subprocess.run([*git, "diff", "HEAD"], capture_output=True, check=False).stdout
    return f"{zlib.crc32(head + changes):08x}"
