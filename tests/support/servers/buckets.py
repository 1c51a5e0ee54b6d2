"""S3-compatible servers on this machine: moto in a process of its own, and rclone, which checks signatures."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from tests.support.cleanup import AT_END
from trainctl.base.checkpoints.s3 import S3Client
from trainctl.base.checkpoints.stores import CheckpointStore, open_checkpoint_store

KEY_ID = "AKIDEXAMPLE"
SECRET = "wJalrXUtnFEMI-example-secret"
PART_BYTES = 5 * 2**20
"""The smallest part that S3 takes."""
_IDLE: list[int] = []
"""Ports of moto's servers that no test uses."""


@dataclass
class BucketServer:
    """A bucket of a server; ``directory`` is where rclone keeps its objects as files."""

    endpoint: str
    name: str
    directory: Path | None = None

    @property
    def credential(self) -> dict[str, str]:
        """What opens it."""
        return {"aws_access_key_id": KEY_ID, "aws_secret_access_key": SECRET}

    def place(self, prefix: str = "pre/fix", **more: Any) -> dict[str, Any]:
        """How a run's specification names it."""
        url = f"s3://{self.name}/{prefix}"
        return {
            "url": url, "endpoint_url": self.endpoint, "secret": "bucket", "part_bytes": PART_BYTES, **more,
        }  # fmt: skip

    @property
    def secrets(self) -> dict[str, str]:
        """What a node is given for ``place``."""
        return {"bucket": json.dumps(self.credential)}

    def store(self, **more: Any) -> CheckpointStore:
        return open_checkpoint_store(self.place(**more), self.secrets)


def free_port(address: str = "127.0.0.1") -> int:
    """A port of the address that nobody listens on at the moment."""
    with socket.socket() as sock:
        sock.bind((address, 0))
        port: int = sock.getsockname()[1]
        return port


@contextmanager
def rclone(base: Path) -> Iterator[BucketServer]:
    """``rclone serve s3`` over a directory."""
    (base / "models").mkdir(parents=True)
    with served_by(lambda port: rclone_words(base, "127.0.0.1", port)) as port:
        yield BucketServer(f"http://127.0.0.1:{port}", "models", base / "models")


@contextmanager
def moto() -> Iterator[BucketServer]:
    """``moto_server`` with one empty bucket. A server that a test has left is emptied for the next, and ends with this process."""
    port = _IDLE.pop() if _IDLE else _moto_server()
    bucket = BucketServer(f"http://127.0.0.1:{port}", "models")
    urlopen(Request(f"{bucket.endpoint}/moto-api/reset", method="POST")).close()
    S3Client(bucket.name, bucket.endpoint, bucket.credential).request("PUT")
    try:
        yield bucket
    finally:
        _IDLE.append(port)


def _moto_server() -> int:
    program = str(Path(sys.executable).with_name("moto_server"))
    return AT_END.enter_context(
        served_by(lambda port: [program, "-H", "127.0.0.1", "-p", str(port)])
    )


def rclone_words(base: Path, address: str, port: int) -> list[str]:
    """The command line of ``rclone serve s3`` over a directory."""
    program = str(Path(sys.executable).with_name("rclone"))
    config = base.parent / f"{base.name}.conf"
    config.touch()
    return [
        program, "serve", "s3", "--config", str(config), "--auth-key", f"{KEY_ID},{SECRET}",
        "--addr", f"{address}:{port}", "--vfs-cache-mode", "off", str(base),
    ]  # fmt: skip


@contextmanager
def served_by(words: Callable[[int], list[str]], work: Path | None = None) -> Iterator[int]:
    """A server that a command line starts on a port, in a directory, and that ends with the block; the port."""
    port = free_port()
    process = subprocess.Popen(
        words(port), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        cwd=work,
    )  # fmt: skip
    try:
        _await(port, process)
        yield port
    finally:
        process.kill()
        process.wait()


def _await(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(1200):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
            return
        assert process.poll() is None, "the server did not start"
        time.sleep(0.05)
    raise AssertionError("nobody listens")
