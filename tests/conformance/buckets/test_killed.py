"""What who is killed while an object is put leaves in a bucket: nothing. S3 by moto and rclone, Google's XML interface, Azure by azurite."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest

from tests.support.bucket_mirrors import place_in
from tests.support.buckets import KEY_ID, SECRET, Bucket, moto, rclone
from tests.support.clouds import Azure, azure
from tests.support.cutting import proxy
from tests.support.google_xml import GoogleXml, google_xml
from trainctl.base.checkpoints.s3_client import Client
from trainctl.objects.opening import opened
from trainctl.objects.place import place_of
from trainctl.objects.store import Bucket as Store
from trainctl.spi.sources import Credential

SIZE = 3 * 2**20
ROOT = Path(__file__).resolve().parents[3]
Server = Bucket | GoogleXml | Azure
SERVERS: dict[str, Callable[[Path], AbstractContextManager[Server]]] = {
    "moto": lambda work: moto(),
    "rclone": lambda work: rclone(work / "root"),
    "google": lambda work: google_xml(),
    "azure": azure,
}


@pytest.fixture(scope="module", params=SERVERS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    with SERVERS[request.param](tmp_path_factory.mktemp(request.param)) as one:
        yield one


def everything(server: Server) -> list[str]:
    """The names of all that is in the bucket, whole or not."""
    if isinstance(server, Azure):
        return server.names("closed")
    if isinstance(server, Bucket) and server.directory:
        return [one.name for one in server.directory.rglob("*") if one.is_file()]
    endpoint = server.endpoint if isinstance(server, Bucket) else server.url
    key = {"aws_access_key_id": KEY_ID, "aws_secret_access_key": SECRET}
    client = Client("models", endpoint, key)
    with closing(client):
        answers = [client.ask("GET", "", query).body for query in ([], [("uploads", "")])]
    return [name for body in answers for name in re.findall("<Key>(.*?)</Key>", body.decode())]


def killed_at(server: Server, sent: int, key: str, file: Path) -> None:
    """Put a file, and kill who does it when so many bytes have gone out."""
    url, environ, credential = place_in(server, "pre")
    ((variable, endpoint),) = environ.items()
    host = re.match("https?://[^/]*", endpoint)
    assert host is not None
    with proxy(host[0]) as between:
        there = between.endpoint + endpoint[host.end() :]
        words = url, json.dumps({variable: there}), credential.replace(endpoint, there), key
        command = [sys.executable, "-m", "tests.support.long_objects", *words, str(file)]
        process = subprocess.Popen(command, cwd=ROOT)

        def kill() -> None:
            process.kill()
            process.wait()

        between.after, between.dying, between.cuts = sent, kill, 1
        assert process.wait(60) == -9


@pytest.mark.parametrize("sent", [2**12, SIZE // 2, SIZE], ids=["begun", "half", "nearly"])
def test_an_object_whose_writer_is_killed_was_never_there(
    server: Server, tmp_path: Path, sent: int
) -> None:
    """Neither a part of it nor an unfinished upload is left for anybody to find and pay for; what was there before still is."""
    url, environ, credential = place_in(server, "pre")
    store: Store = opened(place_of(url, None, environ), Credential(credential, "test"), environ)
    new, old = f"new-{sent}", f"old-{sent}"
    store.put(old, b"as it was")
    before = sorted(everything(server))
    file = tmp_path / "long"
    file.write_bytes(os.urandom(SIZE))

    killed_at(server, sent, new, file)
    killed_at(server, sent, old, file)

    deadline = time.monotonic() + 30
    while (
        sorted(everything(server)) != before
    ):  # rclone sees a moment later that nothing more comes
        assert time.monotonic() < deadline, everything(server)
        time.sleep(0.05)
    assert store.get(old) == b"as it was"
    store.put(new, file)
    store.put(old, file)
    assert store.get(new) == store.get(old) == file.read_bytes()
