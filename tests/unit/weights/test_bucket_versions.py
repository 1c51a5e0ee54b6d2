"""What was locked of a bucket of S3 and has changed since, out of the versions that the bucket keeps; with moto."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import boto3
import pytest

from tests.support.buckets import KEY_ID, SECRET, Bucket
from tests.support.mirrors import REFERENCE, contents, mirror_at
from tests.support.s3_checksums import with_checksums
from trainctl.base.listing import SourceFile
from trainctl.errors import SourceWrong
from trainctl.spi.sources import Credential
from trainctl.weights.resolve import Resolution, Wanted, resolve
from trainctl.weights.sources import s3 as s3_module
from trainctl.weights.sources.s3 import S3Source
from trainctl.weights.sources.s3_api import Listed, Lister

pytestmark = pytest.mark.integration

KEYS = Credential(
    json.dumps({"aws_access_key_id": KEY_ID, "aws_secret_access_key": SECRET}), "secret keys"
)


@pytest.fixture
def versioned(server: Bucket) -> tuple[Any, str]:
    """A client, and the name of a bucket that keeps what was there."""
    client = boto3.client(
        "s3", endpoint_url=server.endpoint, region_name="us-east-1",
        aws_access_key_id=KEY_ID, aws_secret_access_key=SECRET,
    )  # fmt: skip
    name = f"kept-{secrets.token_hex(4)}"
    client.create_bucket(Bucket=name)
    client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    return client, name


def next_second() -> None:
    """Until the clock that versions are told apart by has moved on."""
    begun = int(time.time())
    while int(time.time()) == begun:
        time.sleep(0.02)


def locked_twice(
    source: S3Source, uri: str, directory: Path, change: Callable[[], object], **more: Any
) -> Resolution:
    """What is had of a source that was locked, and changed since."""
    wanted = Wanted(uri, directory, **more)
    entry = resolve(wanted, KEYS, open_source=lambda scheme: source).entry
    next_second()
    change()
    again = type(source)(environ=source._environ)
    return resolve(wanted, KEYS, locked=entry, open_source=lambda scheme: again)


def test_what_was_locked_is_had_from_the_versions_that_a_bucket_keeps(
    versioned: tuple[Any, str], source: S3Source, tmp_path: Path
) -> None:
    """Objects that were overwritten, deleted and added since are mirrored as they were, with a warning that says what moved."""
    client, name = versioned
    for key, data in {"a/x": b"old", "a/gone": b"gone", "a/kept": b"kept", "b/y": b"-"}.items():
        client.put_object(Bucket=name, Key=key, Body=data)

    def change() -> None:
        client.put_object(Bucket=name, Key="a/x", Body=b"new")
        next_second()
        client.delete_object(Bucket=name, Key="a/gone")
        client.put_object(Bucket=name, Key="a/more", Body=b"more")

    uri = f"s3://{name}/a"
    found = locked_twice(source, uri, tmp_path / "here", change)
    mirror = mirror_at(tmp_path / "mirror")
    again = S3Source(environ=source._environ)
    listing = mirror.mirror(found.resolved, again, REFERENCE, credential=KEYS)

    (told,) = found.warnings
    assert told.code == "upstream-moved"
    assert "as the bucket keeps it" in (told.detail or "")
    assert "more" in (told.detail or "")
    assert contents(mirror, listing.id) == {"x": b"old", "gone": b"gone", "kept": b"kept"}
    assert found.resolved.pin == found.entry.pin


def test_a_single_object_that_was_overwritten_is_had_as_it_was(
    versioned: tuple[Any, str], source: S3Source, tmp_path: Path
) -> None:
    """Its version is read by link, and by the engine where no link opens it."""
    client, name = versioned
    client.put_object(Bucket=name, Key="dir/model.bin", Body=b"old content")
    uri = f"s3://{name}/dir/model.bin"

    found = locked_twice(
        source, uri, tmp_path,
        lambda: client.put_object(Bucket=name, Key="dir/model.bin", Body=b"new content"),
    )  # fmt: skip

    unlinked = S3Source(environ=source._environ)
    unlinked.relays = lambda *_: True  # type: ignore[method-assign]
    for reader in (S3Source(environ=source._environ), unlinked):
        with reader.open(found.resolved, found.resolved.files[0], 4, KEYS) as pieces:
            assert b"".join(pieces) == b"content"
    with urlopen(
        str(S3Source(environ=source._environ).link(found.resolved, found.resolved.files[0], KEYS))
    ) as answer:
        assert answer.read() == b"old content"


def test_versions_are_known_by_their_digests_where_the_lock_is(
    versioned: tuple[Any, str], server: Bucket, tmp_path: Path
) -> None:
    """A lock over sha256 is found among versions that have one, told by a request for that very version; one without is known by its ETag."""
    client, name = versioned
    old = {"a/x": b"old", "a/gone": b"gone"}
    for key, data in old.items():
        client.put_object(Bucket=name, Key=key, Body=data, ChecksumAlgorithm="SHA256")
    client.put_object(Bucket=name, Key="a/plain", Body=b"plain")

    def change() -> None:
        client.put_object(Bucket=name, Key="a/x", Body=b"new", ChecksumAlgorithm="SHA256")
        next_second()
        client.delete_object(Bucket=name, Key="a/gone")
        client.put_object(Bucket=name, Key="a/plain", Body=b"other")

    with with_checksums(server) as (endpoint, _):
        source = S3Source(environ={"AWS_ENDPOINT_URL": endpoint})
        found = locked_twice(source, f"s3://{name}/a", tmp_path / "here", change)
        mirror = mirror_at(tmp_path / "mirror")
        again = S3Source(environ=source._environ)
        listing = mirror.mirror(found.resolved, again, REFERENCE, credential=KEYS)

    told = {one.path: one.validator.partition(":")[0] for one in found.resolved.files}
    assert told == {"gone": "sha256", "plain": "etag", "x": "sha256"}
    digests = {one.path: one.sha256 for one in found.resolved.files}
    assert digests["x"] == hashlib.sha256(b"old").hexdigest()
    assert found.resolved.pin == found.entry.pin
    kept = {"x": b"old", "gone": b"gone", "plain": b"plain"}
    assert contents(mirror, listing.id) == kept


def put_in_parts(client: Any, bucket: str, key: str) -> None:
    """An object of which there is only a digest of digests."""
    where = {"Bucket": bucket, "Key": key}
    where["UploadId"] = client.create_multipart_upload(**where, ChecksumAlgorithm="SHA256")[
        "UploadId"
    ]
    part = client.upload_part(**where, PartNumber=1, Body=b"part", ChecksumAlgorithm="SHA256")
    parts = [{"PartNumber": 1, "ETag": part["ETag"], "ChecksumSHA256": part["ChecksumSHA256"]}]
    client.complete_multipart_upload(**where, MultipartUpload={"Parts": parts})


@pytest.mark.parametrize("most", [2, 1])
def test_versions_whose_list_tells_no_digests_are_asked_one_by_one(
    versioned: tuple[Any, str],
    source: S3Source,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    most: int,
) -> None:
    """As moto's does: those that are locked, by number and size, and no more than so many."""
    monkeypatch.setattr(s3_module, "_MOST_ASKED", most)
    asked, once = list[Listed](), Lister.asked

    def ask(self: Lister, one: Listed) -> SourceFile:
        asked.append(one)
        return once(self, one)

    monkeypatch.setattr(Lister, "asked", ask)
    client, name = versioned
    for key, data in {"a/x": b"old", "a/gone": b"gone", "a/else.txt": b"1"}.items():
        client.put_object(Bucket=name, Key=key, Body=data, ChecksumAlgorithm="SHA256")
    put_in_parts(client, name, "a/parts")

    def change() -> None:
        asked.clear()
        client.put_object(Bucket=name, Key="a/x", Body=b"newer", ChecksumAlgorithm="SHA256")
        next_second()
        client.delete_object(Bucket=name, Key="a/gone")

    def again() -> Resolution:
        return locked_twice(source, f"s3://{name}/a", tmp_path, change, ignore=("*.txt",))

    if most == 1:
        with pytest.raises(SourceWrong, match="not upstream any more"):
            again()
        return
    found = again()

    versions = [(one.file.path, one.file.size) for one in asked if one.version]
    assert sorted(versions) == [("gone", 4), ("x", 3)]
    digests = {one.path: one.sha256 for one in found.resolved.files}
    assert digests["x"] == hashlib.sha256(b"old").hexdigest()
    assert digests["parts"] is None
    assert found.resolved.pin == found.entry.pin


def test_patterns_hold_for_what_a_bucket_keeps_too(
    versioned: tuple[Any, str], source: S3Source, tmp_path: Path
) -> None:
    """A lock of some files is found, whatever became of the others."""
    client, name = versioned
    client.put_object(Bucket=name, Key="a/x.bin", Body=b"old")
    client.put_object(Bucket=name, Key="a/y.txt", Body=b"1")

    def change() -> None:
        client.put_object(Bucket=name, Key="a/y.txt", Body=b"2")
        next_second()
        client.put_object(Bucket=name, Key="a/x.bin", Body=b"newer")

    found = locked_twice(source, f"s3://{name}/a", tmp_path, change, allow=("*.bin",))

    assert [(one.path, one.size) for one in found.resolved.files] == [("x.bin", 3)]


def test_a_bucket_that_keeps_no_versions_has_only_what_is_there(
    s3: Any, source: S3Source, tmp_path: Path
) -> None:
    """What was locked is an error where nothing has it any more."""
    s3.put_object(Bucket="models", Key="a/x", Body=b"old")

    with pytest.raises(SourceWrong, match="not upstream any more"):
        locked_twice(
            source,
            "s3://models/a",
            tmp_path,
            lambda: s3.put_object(Bucket="models", Key="a/x", Body=b"new"),
        )


def test_of_versions_of_one_second_the_last_is_the_one_that_was_there(
    versioned: tuple[Any, str], source: S3Source, tmp_path: Path
) -> None:
    """Times tell seconds only, and the bucket's own order tells the rest."""
    client, name = versioned
    next_second()
    for data in (b"1st", b"2nd", b"3rd"):
        client.put_object(Bucket=name, Key="a/x", Body=data)

    found = locked_twice(
        source, f"s3://{name}/a", tmp_path,
        lambda: client.put_object(Bucket=name, Key="a/x", Body=b"new"),
    )  # fmt: skip

    again = S3Source(environ=source._environ)
    with again.open(found.resolved, found.resolved.files[0], 0, KEYS) as pieces:
        assert b"".join(pieces) == b"3rd"
