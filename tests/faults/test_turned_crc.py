"""Content that arrives with the right length and other bytes, of objects of which buckets tell CRCs and no MD5: those that were put in parts, above all."""

from __future__ import annotations

import base64
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from awscrt import checksums

from tests.faults.test_turned_content import (
    CHUNK,
    IN_PARTS,
    KEYS,
    RIGHT,
    SMALL,
    STREAMED,
    WRONG,
    Signing,
    plain_s3_client,
)
from tests.support.bucket_mirrors import Directory
from tests.support.buckets import PART_BYTES, Bucket, moto
from tests.support.clouds import google
from tests.support.mirrors import REFERENCE, assert_sound, contents, impatient, leftovers, mirror_at
from tests.support.nodes import python38
from tests.support.s3_checksums import with_checksums
from tests.support.turning import turning
from tests.support.weights_data import noise
from tests.unit.weights.test_bucket_versions import next_second
from trainctl.base.listing import ResolvedSource
from trainctl.base.retry import just_once
from trainctl.errors import Interrupted, SourceDenied, SourceWrong
from trainctl.remote.agent import NodeAgent
from trainctl.remote.archive import Archive
from trainctl.resources.agents import Agents
from trainctl.resources.host_mirror import HostMirror
from trainctl.spi.provider import Node
from trainctl.spi.sources import Credential, WeightSource
from trainctl.weights.bucket.mirror import BucketMirror
from trainctl.weights.bucket.shelf import Shelf
from trainctl.weights.metered import Metered
from trainctl.weights.mirror.caller import Caller
from trainctl.weights.mirror.forms import file_rows, resolved_from_json, resolved_to_json
from trainctl.weights.mirror.links import Links
from trainctl.weights.mirror.place import Place
from trainctl.weights.mirror.signed import SignedSource
from trainctl.weights.sources.gs import GoogleSource
from trainctl.weights.sources.s3 import S3Source
from trainctl.weights.sources.s3_api import Lister
from trainctl_local.transport import LocalTransport

AT_ONCE = noise(20 * 2**20, 3) + RIGHT
"""As large as what is put at once and held against a CRC."""
SIZES = pytest.mark.parametrize(
    "data", [SMALL, STREAMED, IN_PARTS], ids=["small", "streamed", "parts"]
)
TURNED = r"model\.bin arrived with other content"


Put = Callable[[Any, str], object]
"""Puts something by a client into a bucket."""


@pytest.fixture(scope="module")
def storage() -> Iterator[Bucket]:
    """moto, for all of these tests: each has a bucket of its own."""
    with moto() as server:
        yield server


def in_parts(
    data: bytes, algorithm: str = "CRC64NVME", kind: str = "", first: int | None = None
) -> Put:
    """As tools put what is large; the first part may have another size."""
    return lambda client, bucket: _put_in_parts(client, bucket, data, algorithm, kind, first)


def _put_in_parts(
    client: Any, bucket: str, data: bytes, algorithm: str, kind: str, first: int | None
) -> None:
    where = {"Bucket": bucket, "Key": "w/model.bin"}
    more = {"ChecksumAlgorithm": algorithm, **({"ChecksumType": kind} if kind else {})}
    where["UploadId"] = client.create_multipart_upload(**where, **more)["UploadId"]
    size = max(PART_BYTES, len(data) // 3)
    parts = []
    cuts = [0, *range(first or size, len(data), size), len(data)]
    for number, (start, end) in enumerate(pairwise(cuts), 1):
        sent = {"PartNumber": number, "Body": data[start:end]}
        part = client.upload_part(**where, **sent)
        parts.append({"PartNumber": number, "ETag": part["ETag"]})
    client.complete_multipart_upload(**where, MultipartUpload={"Parts": parts})


@contextmanager
def bucket_with(
    storage: Bucket, put: Put, told: Mapping[str, str] | None = None, listed: str | None = None
) -> Iterator[tuple[S3Source, str, list[str]]]:
    """A source that reads what was put by way of bad memory, its URI, and what was asked for by HEAD."""
    client, bucket = plain_s3_client(storage.endpoint), f"b-{secrets.token_hex(4)}"
    client.create_bucket(Bucket=bucket)
    put(client, bucket)
    with (
        with_checksums(storage, told, listed) as (telling, asked),
        turning(telling, RIGHT, WRONG) as endpoint,
    ):
        yield S3Source(environ={"AWS_ENDPOINT_URL": endpoint}), f"s3://{bucket}/w", asked


def assert_refused(
    root: Path, source: WeightSource, resolved: ResolvedSource, key: Credential | None, by: str
) -> None:
    """Nothing of it is kept."""
    with pytest.raises(SourceWrong, match=TURNED) as caught:
        mirror_at(root, CHUNK).mirror(resolved, source, REFERENCE, credential=key)
    assert f"Its {by} should be" in str(caught.value)
    assert leftovers(root) == []
    assert not list(root.glob("listings/*"))
    assert_sound(root)


def crc32c_of(data: bytes) -> Mapping[str, str]:
    """What S3 tells, by headers; moto has none of its own."""
    value = checksums.crc32c(data).to_bytes(4, "big")
    told = base64.b64encode(value).decode()
    return {"x-amz-checksum-crc32c": told, "x-amz-checksum-type": "FULL_OBJECT"}


@SIZES
@pytest.mark.parametrize("algorithm", ["CRC64NVME", "CRC32", "CRC32C"])
def test_an_object_in_parts_is_held_against_its_crc(
    storage: Bucket, data: bytes, algorithm: str, tmp_path: Path
) -> None:
    """It is asked for once, when its bytes are; a plan asks for nothing but the list."""
    told = crc32c_of(data) if algorithm == "CRC32C" else None
    with bucket_with(storage, in_parts(data, algorithm, "FULL_OBJECT"), told) as (
        source,
        uri,
        asked,
    ):
        resolved = source.resolve(uri, None, KEYS)
        assert asked == []
        assert_refused(tmp_path / "mirror", source, resolved, KEYS, algorithm)
    assert asked == [uri.replace("s3://", "/") + "/model.bin"]


@pytest.mark.parametrize("name", ["", "/model.bin"])
def test_it_is_asked_for_where_no_list_says_that_there_is_one(
    storage: Bucket, name: str, tmp_path: Path
) -> None:
    """The tag says that it was put in parts, in a list without checksums and of an object alone."""
    with bucket_with(storage, in_parts(STREAMED), listed="") as (source, uri, _):
        resolved = source.resolve(uri + name, None, KEYS)
        assert_refused(tmp_path / "mirror", source, resolved, KEYS, "CRC64NVME")


def test_it_is_compared_on_the_way_into_a_bucket(storage: Bucket, tmp_path: Path) -> None:
    """Small ones that go into packs, and large ones chunk by chunk."""
    for number, data in enumerate((SMALL, STREAMED)):
        root = tmp_path / str(number)
        with bucket_with(storage, in_parts(data)) as (source, uri, _):
            resolved = source.resolve(uri, None, KEYS)
            with pytest.raises(SourceWrong, match=TURNED):
                BucketMirror(Shelf(Directory(root)), impatient()).mirror(
                    resolved, source, REFERENCE, credential=KEYS
                )
        assert not list(root.glob("listings/*"))
        assert not list(root.glob("packs/*"))


def test_a_version_is_held_against_its_own(storage: Bucket, tmp_path: Path) -> None:
    """What was there before is asked for as such: the CRC of what is there now is another."""

    def put(client: Any, bucket: str) -> None:
        kept = {"Status": "Enabled"}
        client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration=kept)
        in_parts(STREAMED)(client, bucket)
        next_second()
        in_parts(noise(6 * 2**20, 9))(client, bucket)

    with bucket_with(storage, put) as (source, uri, asked):
        source.resolve(uri, None, KEYS)
        (before, *_) = source.earlier(uri, KEYS, lambda files: (), just_once)
        assert_refused(tmp_path / "mirror", source, before, KEYS, "CRC64NVME")
    assert len(asked) == 1
    assert "versionId=" in asked[0]


def test_what_was_there_before_a_transfer_broke_off_is_part_of_it(
    storage: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wrong bytes came the first time; the second time only the rest comes, and the whole is refused."""
    data = RIGHT + noise(32 * 2**20)
    root = tmp_path / "mirror"
    with bucket_with(storage, in_parts(data)) as (source, uri, _):
        resolved = source.resolve(uri, None, KEYS)
        whole = source.open

        @contextmanager
        def half(*about: Any) -> Iterator[Iterator[bytes]]:
            with whole(*about) as pieces:
                yield chain(islice(pieces, 16), stopping())

        monkeypatch.setattr(source, "open", half)
        with pytest.raises(Interrupted):
            mirror_at(root, CHUNK).mirror(resolved, source, REFERENCE, credential=KEYS)
        assert leftovers(root)
        monkeypatch.undo()
        metered = Metered(source)
        assert_refused(root, metered, resolved, KEYS, "CRC64NVME")
    assert 0 < metered.read < len(data)


def stopping() -> Iterator[bytes]:
    raise Interrupted("it was stopped")
    yield b""


@SIZES
@pytest.mark.parametrize("algorithm", ["CRC32"])
def test_a_checksum_of_checksums_is_compared_part_by_part(
    storage: Bucket, data: bytes, algorithm: str, tmp_path: Path
) -> None:
    """As boto3 leaves it: the first part and the last tell where the others begin."""
    with bucket_with(storage, in_parts(data, algorithm, "COMPOSITE")) as (source, uri, asked):
        resolved = source.resolve(uri, None, KEYS)
        assert asked == []
        assert_refused(tmp_path / "mirror", source, resolved, KEYS, algorithm)
    assert len(asked) == 3


@pytest.mark.parametrize("listed", [None, ""])
def test_right_content_passes_by_its_checksum_of_checksums(
    storage: Bucket, listed: str | None, tmp_path: Path
) -> None:
    """Whether or not the list says that there is one, and by several connections."""
    data = noise(70 * 2**20)
    with bucket_with(storage, in_parts(data, "CRC32", "COMPOSITE"), listed=listed) as (
        source,
        uri,
        asked,
    ):
        resolved = source.resolve(uri, None, KEYS)
        mirror = mirror_at(tmp_path / "mirror")
        listing = mirror.mirror(resolved, source, REFERENCE, credential=KEYS)
    assert contents(mirror, listing.id) == {"model.bin": data}
    assert len(asked) == 3


@pytest.mark.parametrize("first", [PART_BYTES + 1, PART_BYTES + 2**20])
def test_a_checksum_of_uneven_parts_checksums_is_compared_with_nothing(
    storage: Bucket, first: int, tmp_path: Path
) -> None:
    """Nobody knows where they begin."""
    data = STREAMED + noise(12 * 2**20)
    with bucket_with(storage, in_parts(data, "CRC32", "COMPOSITE", first)) as (source, uri, _):
        resolved = source.resolve(uri, None, KEYS)
        mirror = mirror_at(tmp_path / "mirror", CHUNK)
        listing = mirror.mirror(resolved, source, REFERENCE, credential=KEYS)
    assert contents(mirror, listing.id) == {"model.bin": data.replace(RIGHT, WRONG)}


@pytest.mark.parametrize("value", ["no base64!", "AAAAAAAAAAA=-3", "Ã¼"])
def test_who_tells_nonsense_has_told_nothing(storage: Bucket, value: str, tmp_path: Path) -> None:
    """It is not compared, and a large object that was put at once is held against its MD5."""
    told = {"x-amz-checksum-crc64nvme": value, "x-amz-checksum-type": "FULL_OBJECT"}
    with bucket_with(storage, in_parts(SMALL), told) as (source, uri, _):
        resolved = source.resolve(uri, None, KEYS)
        mirror = mirror_at(tmp_path / "parts", CHUNK)
        listing = mirror.mirror(resolved, source, REFERENCE, credential=KEYS)
        assert contents(mirror, listing.id) == {"model.bin": SMALL.replace(RIGHT, WRONG)}
    with bucket_with(storage, put_at_once, told) as (source, uri, _):
        resolved = source.resolve(uri, None, KEYS)
        assert_refused(tmp_path / "at once", source, resolved, KEYS, "MD5")


def put_at_once(client: Any, bucket: str, algorithm: str | None = "CRC64NVME") -> None:
    """A large object that has an MD5, too."""
    more = {"ChecksumAlgorithm": algorithm} if algorithm else {}
    client.put_object(Bucket=bucket, Key="w/model.bin", Body=AT_ONCE, **more)


@pytest.mark.parametrize(("algorithm", "by"), [("CRC64NVME", "CRC64NVME"), (None, "MD5")])
def test_a_large_object_is_held_against_what_costs_less(
    storage: Bucket, algorithm: str | None, by: str, tmp_path: Path
) -> None:
    """Its CRC, where the list says that there is one; else nobody asks."""
    with bucket_with(storage, partial(put_at_once, algorithm=algorithm)) as (source, uri, asked):
        resolved = source.resolve(uri, None, KEYS)
        assert_refused(tmp_path / "mirror", source, resolved, KEYS, by)
    assert len(asked) == 1  # of the MD5 it is asked whether it is one


@pytest.mark.parametrize("metered", [False, True])
@pytest.mark.parametrize(("algorithm", "right"), [("CRC64NVME", False), (None, True)])
def test_what_has_a_tag_that_is_no_digest_is_held_against_its_crc(
    storage: Bucket, algorithm: str | None, right: bool, metered: bool, tmp_path: Path
) -> None:
    """S3 says of what it encrypts by a key of its user's that its tag is none, when it tells the CRC; without one the content is taken as it comes."""

    def put(client: Any, bucket: str) -> None:
        more = {"ChecksumAlgorithm": algorithm} if algorithm else {}
        client.put_object(
            Bucket=bucket, Key="w/model.bin", Body=SMALL, ServerSideEncryption="aws:kms", **more
        )

    with bucket_with(storage, put) as (telling, uri, _):
        source: WeightSource = Metered(telling) if metered else telling
        resolved = source.resolve(uri, None, KEYS)
        if right:
            mirror_at(tmp_path / "mirror").mirror(resolved, source, REFERENCE, credential=KEYS)
        else:
            assert_refused(tmp_path / "mirror", source, resolved, KEYS, "CRC64NVME")


@SIZES
def test_a_composite_object_of_google_is_held_against_its_crc(data: bytes, tmp_path: Path) -> None:
    """It has no MD5."""
    with (
        google(tmp_path) as server,
        turning(server.url, RIGHT, WRONG) as turned,
        turning(turned, b'"md5Hash"', b'"md5None"') as endpoint,
    ):
        server.put("w/model.bin", data)
        source = GoogleSource(environ={"STORAGE_EMULATOR_HOST": endpoint})
        resolved = source.resolve("gs://models/w", None, None)
        assert_refused(tmp_path / "mirror", source, resolved, None, "CRC32C")


@pytest.mark.usefixtures("only_standard_library")
@pytest.mark.parametrize("algorithm", ["CRC32", "CRC64NVME"])
def test_a_host_compares_what_its_python_can(
    storage: Bucket, algorithm: str, tmp_path: Path
) -> None:
    """It asks its caller for a CRC32, as a link is for the bytes alone; the others it leaves, and asks for nothing."""
    with bucket_with(storage, in_parts(STREAMED, algorithm, "FULL_OBJECT")) as (source, uri, asked):
        resolved = source.resolve(uri, None, KEYS)
        rows = file_rows(resolved.files)
        read = resolved_from_json(resolved_to_json(resolved), [*rows])
        signed = SignedSource(Links(cast(Caller, Signing(source, resolved, KEYS)), in_turn=True))
        if algorithm == "CRC32":
            assert_refused(tmp_path / "mirror", signed, read, None, "CRC32")
        else:
            mirror_at(tmp_path / "mirror").mirror(read, signed, REFERENCE)
    assert len(asked) == (algorithm == "CRC32")


class OneHost:
    """Agents of this machine, as if it were another."""

    def of_program(
        self, provider: str, node: Node, archive: Archive, *, installs: bool
    ) -> NodeAgent:
        return NodeAgent(node, LocalTransport(), visiting=True, archive=archive)


@pytest.mark.parametrize("data", [SMALL, STREAMED], ids=["small", "streamed"])
def test_the_program_on_a_host_is_told_by_this_side(
    storage: Bucket, data: bytes, tmp_path: Path
) -> None:
    """Of the whole conversation: what it can compare it is told, and with the credential that stays here."""
    python = python38() or sys.executable
    node = Node("lab", "gpu-0", "local", str(tmp_path), str(tmp_path), python)
    mirror = HostMirror(
        cast(Agents, OneHost()), lambda: Place("local", node), impatient(), lambda secret: secret
    )
    with bucket_with(storage, in_parts(data, "CRC32", "FULL_OBJECT")) as (source, uri, asked):
        resolved = source.resolve(uri, None, KEYS)
        with pytest.raises(SourceWrong, match=TURNED) as caught:
            mirror.mirror(resolved, source, REFERENCE, credential=KEYS)
    assert "Its CRC32 should be" in str(caught.value)
    assert len(asked) == 1


@pytest.mark.usefixtures("only_standard_library")
def test_a_host_holds_a_large_object_against_its_md5(storage: Bucket, tmp_path: Path) -> None:
    """Both are announced."""
    with bucket_with(storage, put_at_once) as (source, uri, _):
        resolved = source.resolve(uri, None, KEYS)
        assert_refused(tmp_path / "mirror", source, resolved, KEYS, "MD5")


def test_a_credential_that_has_ended_meanwhile_is_renewed(
    storage: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a plan and the last of its files there may be hours."""
    ask = Lister.told
    refused = iter([True])

    def told(self: Lister, *about: Any) -> str:
        if next(refused, False):
            raise SourceDenied("it has expired")
        return ask(self, *about)

    monkeypatch.setattr(Lister, "told", told)
    key = replace(KEYS, renew=lambda: KEYS)
    with bucket_with(storage, in_parts(SMALL)) as (source, uri, _):
        resolved = source.resolve(uri, None, key)
        assert_refused(tmp_path / "mirror", source, resolved, key, "CRC64NVME")
