"""S3's digests of objects are asked for once, and known from then on."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from tests.support.buckets import KEY_ID, SECRET, Bucket
from trainctl.base.listing import SourceFile
from trainctl.spi.sources import Credential
from trainctl.weights.sources.s3 import S3Source
from trainctl.weights.sources.s3_api import Listed, Lister

KEYS = Credential(f'{{"aws_access_key_id": "{KEY_ID}", "aws_secret_access_key": "{SECRET}"}}', "")
NAMES = ["a b", "b/c.bin", "ü/1", "\U0001f600", "z"]
"""In the order of their UTF-8 bytes, as S3 lists them."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the objects that were asked for one by one."""
    paths: list[str] = []
    ask = Lister.asked

    def counting(lister: Lister, listed: Listed) -> SourceFile:
        paths.append(listed.file.path)
        return ask(lister, listed)

    monkeypatch.setattr(Lister, "asked", counting)
    return paths


def put(s3: Any, name: str, data: bytes) -> None:
    s3.put_object(Bucket="models", Key=f"w/{name}", Body=data, ChecksumAlgorithm="SHA256")


def digests(server: Bucket, home: Path | None) -> dict[str, str | None]:
    """What a new process would find."""
    more = {"HOME": str(home)} if home else {}
    source = S3Source(environ={"AWS_ENDPOINT_URL": server.endpoint, **more})
    return {one.path: one.sha256 for one in source.resolve("s3://models/w", None, KEYS).files}


def test_what_has_not_changed_is_asked_for_once(
    s3: Any, server: Bucket, tmp_path: Path, asked: list[str]
) -> None:
    """A second look has the listing alone; of what is new, changed and gone only the first two are asked for, and no drafts stay."""
    contents = {name: name.encode() for name in NAMES}
    for name, data in contents.items():
        put(s3, name, data)
    s3.put_object(Bucket="models", Key="w/plain", Body=b"no digest")
    expected = {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
    assert digests(server, tmp_path) == {**expected, "plain": None}
    assert sorted(asked) == sorted(NAMES)

    asked.clear()
    assert digests(server, tmp_path) == {**expected, "plain": None}
    assert asked == []

    put(s3, "b/c.bin", b"B/C.BIN")
    put(s3, "new", b"new")
    s3.delete_object(Bucket="models", Key="w/z")
    found = digests(server, tmp_path)
    assert sorted(asked) == ["b/c.bin", "new"]
    assert found["b/c.bin"] == hashlib.sha256(b"B/C.BIN").hexdigest()
    assert "z" not in found
    asked.clear()
    assert digests(server, tmp_path) == found
    assert asked == []
    assert len(list((tmp_path / ".cache/trainctl/checksums").iterdir())) == 1


def test_without_what_was_remembered_all_is_asked_for(
    s3: Any, server: Bucket, tmp_path: Path, asked: list[str]
) -> None:
    """Without a home, where nothing may be written, and behind a damaged line: the digests are right all the same."""
    for name in NAMES:
        put(s3, name, name.encode())
    expected = digests(server, tmp_path)
    (file,) = (tmp_path / ".cache/trainctl/checksums").iterdir()
    lines = file.read_text().splitlines()

    for damaged in ("", "[1, 2", '["ü/1", 3, "x", "no digest"]', "[[], {}]", "\x00\xff" * 40):
        asked.clear()
        file.write_text("\n".join([lines[0], damaged, *lines[2:]]), encoding="latin-1")
        assert digests(server, tmp_path) == expected
        assert set(asked) == set(NAMES[1:])
    asked.clear()
    assert digests(server, None) == expected
    assert len(asked) == len(NAMES)
    (tmp_path / "full").write_text("no directory")
    assert digests(server, tmp_path / "full") == expected


def test_another_server_has_told_nothing(
    s3: Any, server: Bucket, tmp_path: Path, asked: list[str]
) -> None:
    """The same bucket by another name of its server is another listing."""
    put(s3, "a b", b"1")
    digests(server, tmp_path)
    asked.clear()
    other = Bucket(server.endpoint.replace("127.0.0.1", "localhost"), server.name)
    digests(other, tmp_path)
    assert asked == ["a b"]
