"""Shown output is compared with real output: what may differ, and what may not."""

from __future__ import annotations

import pytest

from tests.docs.comparison import displayed, matches

PLACES = {"/tmp/x/home": "/home/alice", "root@vm": "alice@laptop"}


@pytest.mark.parametrize(
    ("shown", "real"),
    [
        ("job.train: created (0.8 s), run pnent47", "job.train: created (1m 2s), run abcdefg"),
        ("2026-11-26 02:47:17  root@vm  done", "2027-01-01 12:00:00  alice@laptop  done"),
        ("DISK FREE 77.1 GB", "DISK FREE  9 TB"),
        ("files  /home/alice/.cache/trainctl/a", "files  /tmp/x/home/.cache/trainctl/b"),
        ("http://127.0.0.1:4711/x", "http://127.0.0.1:80/x"),
        ("digest sha256:0a1b2c", "digest sha256:ffff"),
        ("a\n...\nd", "a\nb\nc\nd"),
        ("...", ""),
        (
            "job.a: created (1 s)\njob.b: created (1 s)",
            "job.b: created (2 s)\njob.a: created (2 s)",
        ),
        ("done", "job.a: creating…\ndone"),
        (
            "...\njob.a: run 1 (abc2def) completed",
            "job.a: run 1 (abcdefg) completed\nwork.b: created",
        ),
        ("s3://b/train/2-abcdefg/x", "s3://b/train/2-abc2def/x"),
        ("job.a  create  pending abcdefg", "job.a  create  running abc2def"),
        ("x", "job.a  observe  running abcdefg\nx"),
    ],
)
def test_what_may_differ(shown: str, real: str) -> None:
    """Times, rates, ids, digests, ports, directories, users; the order of results; progress."""
    a, b = shown.splitlines(), real.splitlines()
    assert matches(a, b, a, b, PLACES)


@pytest.mark.parametrize(
    ("shown", "real"),
    [
        ("Plan: 1 to add", "Plan: 2 to add"),
        ("328 kB", "329 kB"),
        ("a", "a\nb"),
        ("a\n...\nd", "a\nb\nc"),
        ("...\nb\n...\na", "a\nb"),
        ("job.a: failed", "job.a: created"),
        ("hf://acme/tiny@main", "hf://acme/tiny@other"),
    ],
)
def test_what_may_not_differ(shown: str, real: str) -> None:
    """Everything else."""
    a, b = shown.splitlines(), real.splitlines()
    assert not matches(a, b, a, b, PLACES)


def test_output_is_written_into_pages_without_private_names() -> None:
    """The home directory and the user are others; progress is left out."""
    real = ["job.a: creating…", "root@vm wrote /tmp/x/home/a"]
    assert displayed(real, PLACES) == ["alice@laptop wrote /home/alice/a"]
