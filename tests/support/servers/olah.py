"""A Hub that nobody here wrote: olah from PyPI, in a virtual environment of its own, over a local git repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.install_cache import install_once
from tests.support.servers.buckets import free_port

VERSION = "0.5.4"
_CONFIG = """
[basic]
host = "127.0.0.1"
port = {port}
repos-path = "{work}/repos"
mirrors-path = ["{work}/mirrors"]
hf-scheme = "http"
hf-netloc = "127.0.0.1:{port}"
hf-lfs-netloc = "127.0.0.1:{port}"
mirror-scheme = "http"
mirror-netloc = "127.0.0.1:{port}"
mirror-lfs-netloc = "127.0.0.1:{port}"

[accessibility]
offline = true
"""


def olah_program() -> Path:
    """``olah-cli``, installed once; a test that can't have it is skipped and says why."""
    return install_once(f"olah-{VERSION}", _install) / "bin" / "olah-cli"


def _install(place: Path) -> None:
    steps = [
        [sys.executable, "-m", "venv", str(place)],
        [str(place / "bin" / "pip"), "install", "--quiet", f"olah=={VERSION}"],
    ]
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"olah {VERSION} can't be had: {done.stderr.strip()[-200:]}")


@contextmanager
def serve_git(work: Path, repo: str, files: Path) -> Iterator[str]:
    """The files as a repository's newest commit on a running olah; its address."""
    program = olah_program()
    tree = work / "mirrors" / "models" / repo
    shutil.copytree(files, tree)
    git = f"git -C {tree} -c user.name=t -c user.email=t@t -c core.autocrlf=false".split()
    (tree / ".gitattributes").unlink(missing_ok=True)
    for arguments in (
        ["init", "-q", "-b", "main"],
        ["add", "-A"],
        ["commit", "-q", "-m", "weights"],
    ):
        subprocess.run([*git, *arguments], check=True, capture_output=True)
    port = free_port()
    (work / "olah.toml").write_text(_CONFIG.format(port=port, work=work))
    with (work / "olah.log").open("wb") as log:
        server = subprocess.Popen(
            [str(program), "-c", str(work / "olah.toml")],
            cwd=work,
            env={**os.environ, "HOME": str(work)},
            stdout=log,
            stderr=log,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _await(server, f"{url}/api/models/{repo}/revision/main", work / "olah.log")
            yield url
        finally:
            server.terminate()
            server.wait(timeout=20)


def _await(server: subprocess.Popen[bytes], url: str, log: Path, seconds: float = 300) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    pytest.fail(f"olah did not come up: {log.read_text()[-2000:]}")
