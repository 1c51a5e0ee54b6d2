"""Fetching files that manifests extend: from a real git server over TLS."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.servers.certificate_authority import authority
from trainctl.errors import PermissionDenied, SourceError, StorageError
from trainctl.manifest.files import PinnedFile
from trainctl.model.trust import AllowEntry, HostPattern, Trust, default_trust
from trainctl.operations.manifests.extended_files import fetch

pytestmark = pytest.mark.integration
CONTENT = b"vars: {steps: 5}\n"


def git(directory: Path, *args: str) -> str:
    """Run git without the settings of this machine."""
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    environ = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    done = subprocess.run(
        ["git", *identity, *args], cwd=directory, env=environ, check=True, capture_output=True
    )
    return done.stdout.decode().strip()


class GitHandler(BaseHTTPRequestHandler):
    """Serves repositories below ``root`` with git's own program, and notes who logged in."""

    root: Path
    logins: list[str | None]

    def do_GET(self) -> None:
        self.logins.append(self.headers.get("Authorization"))
        parts = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        environ = {
            **os.environ,
            "GIT_PROJECT_ROOT": str(self.root), "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": parts.path, "QUERY_STRING": parts.query, "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""), "CONTENT_LENGTH": str(length),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
        }  # fmt: skip
        done = subprocess.run(
            ["git", "http-backend"], input=self.rfile.read(length), env=environ, capture_output=True
        )
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self.send_response(int(fields.pop("Status", "200").split()[0]))
        for name, value in fields.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 (named by http.server)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The URL of a server of repositories, and of what git can reach without login."""
    GitHandler.root, GitHandler.logins = tmp_path / "served", []
    GitHandler.root.mkdir()
    listening = ThreadingHTTPServer(("127.0.0.1", 0), GitHandler)
    listening.socket = authority().server.wrap_socket(listening.socket, server_side=True)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    yield f"https://127.0.0.1:{listening.server_address[1]}"
    listening.shutdown()
    listening.server_close()


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The environment of a user whose git has a login for the server."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".gitconfig").write_text(
        "[http]\nextraHeader = Authorization: Basic eA==\n"
    )
    return {
        "PATH": os.environ["PATH"], "HOME": str(tmp_path / "home"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"), "GIT_SSL_CAINFO": str(authority().certificates),
    }  # fmt: skip


def commits(tmp_path: Path) -> tuple[str, str]:
    """Two commits of a served repository; the file is as it should be in the first."""
    work = tmp_path / "work"
    (work / "x").mkdir(parents=True)
    git(work, "init", "-q")
    ids = []
    for content in (CONTENT, b"vars: {steps: 6}\n"):
        (work / "x" / "d.yaml").write_bytes(content)
        git(work, "add", ".")
        git(work, "commit", "-q", "-m", "x")
        ids.append(git(work, "rev-parse", "HEAD"))
    git(tmp_path, "clone", "-q", "--bare", str(work), str(tmp_path / "served" / "team.git"))
    return ids[0], ids[1]


def test_a_commit_is_fetched_once_and_without_login(
    tmp_path: Path, server: str, environ: dict[str, str]
) -> None:
    """The user's git settings are used only for hosts that the trust file allows."""
    first, second = commits(tmp_path)
    file = PinnedFile(f"{server}/team.git", "x/d.yaml", commit=first)
    with pytest.raises(StorageError, match="is not fetched yet"):
        fetch(file, environ, default_trust(), offline=True)
    assert fetch(file, environ, default_trust(), offline=False).read_bytes() == CONTENT
    requests = len(GitHandler.logins)
    assert set(GitHandler.logins) == {None}
    assert fetch(file, environ, default_trust(), offline=True).read_bytes() == CONTENT
    assert len(GitHandler.logins) == requests

    allowed = Trust("trust.toml", (AllowEntry("git", (HostPattern("127.0.0.1"),)),))
    other = PinnedFile(file.url, file.path, commit=second)
    assert b"6" in fetch(other, environ, allowed, offline=False).read_bytes()
    assert GitHandler.logins[-1] == "Basic eA=="
    for wrong in (PinnedFile(file.url, "y.yaml", first), PinnedFile(file.url, file.path, 40 * "a")):
        with pytest.raises(SourceError, match="git can't fetch"):
            fetch(wrong, environ, allowed, offline=False)


def test_ssh_needs_permission(environ: dict[str, str]) -> None:
    """An SSH login uses the user's key."""
    file = PinnedFile("ssh://git@127.0.0.1/team.git", "d.yaml", commit=40 * "a")
    with pytest.raises(PermissionDenied, match="only the manifest names"):
        fetch(file, environ, default_trust(), offline=False)
