"""What an untrusted plan may do: connect to public addresses and the servers of the environment, and run nothing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.servers.hub import serve
from trainctl.errors import PermissionDenied, SourceError
from trainctl.operations.confinement import confined, is_public
from trainctl.sources.hf import HubSource

PRIVATE = (
    "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
    "255.255.255.255", "::", "::1", "fe80::1%eth0", "fc00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254",
    "2002:7f00:1::", "64:ff9b::a9fe:a9fe", "fd00:ec2::254",
)  # fmt: skip
"""Loopback, private, link-local, shared and multicast addresses, also inside IPv6."""


def test_addresses_that_are_not_public() -> None:
    assert [address for address in PRIVATE if is_public(address)] == []
    assert all(map(is_public, ("8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8")))


def test_connections_and_programs_are_refused_in_all_threads_and_only_inside(
    tmp_path: Path,
) -> None:
    """A server that the environment names is reached; another one of this machine isn't."""
    with socket.create_server(("127.0.0.1", 0)) as own, socket.create_server(("127.0.0.1", 0)) as other:  # fmt: skip
        proxy = {"HTTPS_PROXY": f"http://127.0.0.1:{own.getsockname()[1]}"}
        with confined(tmp_path, proxy):
            socket.create_connection(own.getsockname()).close()
            refusals: list[BaseException] = []

            def attempt() -> None:
                try:
                    socket.create_connection(other.getsockname())
                except OSError as error:
                    refusals.append(error)

            thread = threading.Thread(target=attempt)
            thread.start()
            thread.join()
            assert [type(error) for error in refusals] == [PermissionError]
            with pytest.raises(PermissionError), socket.socket(socket.AF_UNIX) as unix:
                unix.connect(str(tmp_path / "agent"))
            with pytest.raises(PermissionError), socket.socket(type=socket.SOCK_DGRAM) as datagram:
                datagram.sendto(b"x", ("localhost", 53))
            for run in (
                lambda: subprocess.run([sys.executable, "-c", ""], check=True),
                lambda: os.system("true"),
                lambda: os.posix_spawn("/bin/true", ["true"], {}),
                os.fork,
            ):
                with pytest.raises(FileNotFoundError):
                    run()
        socket.create_connection(other.getsockname()).close()
        subprocess.run([sys.executable, "-c", ""], check=True)


def test_a_link_out_of_the_directory_is_refused(tmp_path: Path) -> None:
    """Links inside it aren't, and neither are broken ones."""
    inside = tmp_path / "project"
    (inside / "d").mkdir(parents=True)
    (inside / "d" / "self").symlink_to("..")
    (inside / "broken").symlink_to("nothing")
    with confined(inside, {}):
        pass
    (inside / "d" / "up").symlink_to("../../project-of-another")
    with pytest.raises(PermissionDenied, match="symlink d/up leaves"), confined(inside, {}):
        pass


def test_a_public_source_is_read_and_a_redirect_to_a_private_server_is_not(tmp_path: Path) -> None:
    """The Hub of the environment answers without a token; another server of this machine hears nothing."""
    with serve() as hub, serve() as inner:
        hub.add("acme/open", {"model.safetensors": b"content"})
        with confined(tmp_path, {"HF_ENDPOINT": hub.url}):
            source = HubSource(hub.url)
            resolved = source.resolve("hf://acme/open", None, None)
            hub.cdn = inner.url
            with (
                pytest.raises(SourceError, match="not a public address"),
                source.open(resolved, resolved.files[0], 0, None) as body,
            ):
                next(body)
    assert [request.path for request in hub.seen if "/resolve/" in request.path]
    assert not any("Authorization" in request.headers for request in hub.seen)
    assert not inner.seen
