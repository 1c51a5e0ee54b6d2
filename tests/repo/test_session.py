"""The session of tests itself: it notices what a test leaves behind, and explains failures."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support import long_tier
from tests.support.long_tier import LongTier, parse_part, part_of
from tests.support.projects.program import ROOT

CONFTEST = """
from tests.support.session import TestSession

def pytest_cmdline_main(config):
    config.pluginmanager.register(TestSession(config))
"""
LEAVES_NOTHING = "def test_it(tmp_path):\n    (tmp_path / 'a').touch()\n"
LEAVES_A_FILE = "import tempfile\n\ndef test_it():\n    tempfile.mkdtemp(prefix='forgotten-')\n"
LEAVES_A_PROCESS = """
import subprocess

def test_it(tmp_path):
    subprocess.Popen(["sleep", "60.125"], env={}, cwd=tmp_path, start_new_session=True)
"""
LEAVES_A_MOUNT = """
import subprocess

def test_it(tmp_path):
    subprocess.run(["mount", "-t", "tmpfs", "none", tmp_path], check=True)
"""
FAILS = "def test_it(capsys):\n    print('its output')\n    assert 1 == 2\n"


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")


def run_session(tmp_path: Path, test: str) -> subprocess.CompletedProcess[str]:
    """Run one test in a session of its own, whose processes are ended here."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(test)
    script = "import tests.support.session as s, pytest; s.PATIENCE = 0.5; raise SystemExit(pytest.main(['-q', '-p', 'no:cacheprovider', '.']))"
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin:/usr/sbin", "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.integration
def test_a_session_that_leaves_nothing_passes_and_removes_its_directory(tmp_path: Path) -> None:
    done = run_session(tmp_path, LEAVES_NOTHING)

    assert (done.returncode, list(tmp_path.glob("tt-*"))) == (0, []), done.stdout


@pytest.mark.integration
@pytest.mark.parametrize(
    ("test", "expected"),
    [
        (LEAVES_A_FILE, "file forgotten-"),
        (LEAVES_A_PROCESS, "process "),
        pytest.param(LEAVES_A_MOUNT, "mount ", marks=needs_root),
    ],
)
def test_a_session_fails_if_a_test_leaves_something_behind(
    tmp_path: Path, test: str, expected: str
) -> None:
    try:
        done = run_session(tmp_path, test)
    finally:
        subprocess.run(["pkill", "-f", "^sleep 60.125$"], check=False)
        for mount in tmp_path.glob("tt-*/p/*"):
            subprocess.run(["umount", mount], check=False, capture_output=True)

    assert done.returncode == 1
    assert f"left behind by a test: {expected}" in done.stdout


@pytest.mark.integration
def test_a_failure_names_its_command_and_keeps_its_output(tmp_path: Path) -> None:
    done = run_session(tmp_path, FAILS)

    assert done.returncode == 1
    assert "tests/run test_it.py::test_it" in done.stdout
    [report] = tmp_path.glob("tt-*/failures/01-*.txt")
    assert "its output" in report.read_text()
    assert str(report.parent) in done.stdout


def test_parts_of_the_long_tier_cover_it_once_and_evenly() -> None:
    seconds = {f"tests/test_{number}.py": float(number % 7 + 1) for number in range(40)}

    loads = [0.0, 0.0, 0.0]
    for file, spent in seconds.items():
        loads[part_of(file, 3, seconds) - 1] += spent

    assert sum(loads) == sum(seconds.values())
    assert max(loads) - min(loads) <= 7
    assert part_of("tests/test_new.py", 3, seconds) in (1, 2, 3)


@pytest.mark.parametrize("text", ["0/3", "4/3", "x", "1"])
def test_an_impossible_part_is_refused(text: str) -> None:
    with pytest.raises(pytest.UsageError, match="expected a part such as 2/8"):
        parse_part(text)


def test_only_what_passed_is_left_out_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_tier, "cache_directory", lambda _: tmp_path)
    monkeypatch.setenv("TEST_LONG_PASSED", "")
    words = {"part": "1/1", "record": False, "numprocesses": 1, "hypothesis_seed": 1}
    tier = LongTier(SimpleNamespace(option=SimpleNamespace(**words, again=False)))  # type: ignore[arg-type]
    for name, outcome in (("good", "passed"), ("bad", "failed"), ("absent", "skipped")):
        for when in ("setup", "call", "teardown"):
            passed = when != "call" or outcome == "passed"
            report = SimpleNamespace(nodeid=name, when=when, passed=passed, duration=0.0)
            tier.pytest_runtest_logreport(report)  # type: ignore[arg-type]

    (kept,) = tmp_path.iterdir()
    assert kept.read_text() == "good\n"


CLOCKS = {"time", "time_ns", "today", "now", "utcnow", "localtime", "gmtime"}
SKIPS = {"skip", "skipif", "xfail", "importorskip"}


def clocks_that_select(tree: ast.Module) -> list[int]:
    """Lines that read a clock where a test is chosen: outside functions, in hooks, or before a skip."""
    inside = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and not _selects(node)
        for statement in node.body
        for child in ast.walk(statement)
    }
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _name(node) in CLOCKS and id(node) not in inside
    ]


def _selects(function: ast.FunctionDef) -> bool:
    calls = {_name(node) for node in ast.walk(function) if isinstance(node, ast.Call)}
    return function.name.startswith("pytest_") or bool(calls & SKIPS)


def _name(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def test_a_clock_that_selects_tests_is_noticed() -> None:
    text = """
DAY = date.today()

def test_a():
    if datetime.now().hour > 12:
        pytest.skip("too late")

def test_b():
    assert time.time() > 0
"""
    assert clocks_that_select(ast.parse(text)) == [2, 5]


def test_no_test_is_chosen_by_the_clock() -> None:
    result = {
        str(path.relative_to(ROOT)): lines
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if (lines := clocks_that_select(ast.parse(path.read_text())))
    }
    assert result == {}
