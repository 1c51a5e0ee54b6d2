"""Each benchmark still runs and prints what it promises. What it measures is for people: no figure is judged here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


SHORT = [
    ("startup", ["2"], "version / pass"),
    ("mirror", ["--mib", "32", "--files", "50", "--rounds", "1"], "ratio"),
    ("xet", ["--mib", "16", "--rounds", "1"], "ratio to hf_xet"),
    ("buckets", ["--mib", "16", "--files", "50", "--rounds", "1"], "ratio to s5cmd"),
    (
        "bucket_mirror",
        ["--mib", "32", "--files", "50", "--rounds", "1"],
        "ratio to the least",
    ),
    (
        "host_mirror",
        ["--files", "50", "--mib", "8", "--rounds", "1"],
        "ratio to the directory",
    ),
    ("far_sources", ["--sources", "8", "--rounds", "1"], "requests a source"),
    (
        "ui_pages",
        ["--jobs", "3", "--runs", "2", "--charts", "2", "--points", "2000"],
        "ratio to the limit",
    ),
    ("log_follow", ["--seconds", "2", "--rounds", "1"], "limit"),
    ("status_hosts", ["--hosts", "3", "--runs", "2", "--login", "0", "--rounds", "1"], "limit"),
    ("warm_delivery", [], "tree to mount"),
    ("fanout", ["--nodes", "2", "--mib", "64", "--mbit", "400"], "ratio to the lower bound"),
    ("loopback", ["--mib", "32", "--small", "100", "--rounds", "1"], "ratio to a minimal loop"),
    ("tls", ["--mib", "32", "--rounds", "1"], "peers over TLS"),
    ("warm_start", ["--rounds", "1", "--mib", "1"], "to RUNNING on a warm node"),
    ("terraform", ["10", "100"], "no-op plan"),
    ("sweep", ["--jobs", "8", "--small", "2"], "runs at once"),
    ("machines", ["--nodes", "2", "--boot", "1"], "ratio to one machine"),
]


@pytest.mark.long
@pytest.mark.parametrize(("name", "arguments", "promised"), SHORT)
def test_a_benchmark_prints_its_figure_and_limit(
    name: str, arguments: list[str], promised: str
) -> None:
    """It ends by itself, with the figure beside the limit."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.benchmarks.{name}", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode in (0, 1), done.stderr
    assert promised in done.stdout, done.stderr
    assert "limit" in done.stdout
