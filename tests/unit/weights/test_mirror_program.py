"""The mirror program: what travels to a host, with the oldest Python that hosts may have."""

from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.support.mirrors import REFERENCE, MemorySource, contents, mirror_at, stored
from tests.support.nodes import python38
from tests.support.weights_data import noise
from trainctl.base.listing import CHUNK_BYTES, Listing
from trainctl.base.protocol.rows import sent
from trainctl.resources.mirror_program import mirror_archive
from trainctl.weights.mirror.forms import file_rows, listed_file, resolved_to_json

URI = "hf://acme/model"


def call(
    python: str,
    program: Path,
    verb: str,
    request: dict[str, Any],
    following: Iterable[bytes] = (),
) -> dict[str, Any]:
    """Run a verb; the last line that it says, with the rows that it said before."""
    line = json.dumps(request).encode() + b"\n" + b"".join(following)
    done = subprocess.run(
        [python, "-I", "-S", str(program), verb], input=line, capture_output=True, check=False
    )
    assert done.stdout, done.stderr.decode()
    *blocks, answer = map(json.loads, done.stdout.splitlines())
    return {**answer, "rows": [row for block in blocks for row in block["event"].get("rows", ())]}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The program as a file."""
    path = tmp_path / "mirror.pyz"
    path.write_bytes(mirror_archive().data)
    return path


def test_it_holds_the_standard_library_and_what_it_needs_of_ours() -> None:
    """Whatever a module of it imports is Python's own or travels with it, but for what only types name and what it does without."""
    with zipfile.ZipFile(io.BytesIO(mirror_archive().data)) as archive:
        names = {name[: -len(".py")].replace("/", ".") for name in archive.namelist()}
        texts = {name: archive.read(name) for name in archive.namelist()}
    ours = {name.removesuffix(".__init__") for name in names}
    only_here = {"trainctl/weights/mirror/place.py", "trainctl/weights/mirror/port.py"}
    only_here |= {"trainctl/weights/mirror/here.py"}
    spared = {*sys.stdlib_module_names, "awscrt"}
    for name in texts.keys() - only_here:
        for found in ast.walk(ast.parse(texts[name])):
            if isinstance(found, ast.ImportFrom):
                module = found.module or ""
                assert module in ours or module.partition(".")[0] in spared, name


def test_it_works_under_python_38(program: Path, tmp_path: Path) -> None:
    """Looking, listing, verifying and collecting a mirror that was written here give there what they give here."""
    python = python38()
    if python is None:
        pytest.skip("no python3.8 on this machine")
    mirror = mirror_at(tmp_path / "mirror")
    source = MemorySource({"a.bin": noise(CHUNK_BYTES + 7), "b": b"x"}, piece=2**20)
    resolved = source.resolve(URI, None, None)
    listing = mirror.mirror(resolved, source, REFERENCE)
    root = {"root": str(mirror.root)}

    looked = call(
        python, program, "look",
        {**root, "sources": [resolved_to_json(resolved)], "listings": [listing.id, "0" * 64]},
        sent([file_rows(resolved.files)]),
    )  # fmt: skip
    loaded = call(python, program, "load_listing", {**root, "listing": listing.id})
    long = call(python, program, "load_listing", {**root, "listing": listing.id, "most": 1})
    (row,) = call(python, program, "inventory", root)["result"]["rows"]
    renewed = {"lineage": REFERENCE.lineage, "address": REFERENCE.address}
    dropped = call(python, program, "drop_reference", {**root, **renewed})["result"]

    assert looked["result"]["known"] == [listing.id]
    assert looked["result"]["listings"] == [listing.id]
    assert looked["rows"] == [[file.sha256, file.size, True] for file in listing.files]
    assert (long["result"], long["rows"]) == ({"listing": listing.id, "long": True}, [])
    assert Listing(tuple(listed_file(*row) for row in loaded["rows"])) == listing
    assert (row["source"], row["files"]) == (URI, 2)
    assert dropped == {"dropped": True}
    assert contents(mirror, listing.id)["b"] == b"x"


_COMPARED = """
import sys
sys.path.insert(0, sys.argv[1])
from trainctl.base.listing import SourceFile
from trainctl.weights.mirror.sums import announced, is_worth_asking, sums_of
file = SourceFile("x", 9, "etag:t", "crc64nvme:ae8b14860a799888 crc32:cbf43926")
sums = sums_of(file)
sums.update(b"123456789")
print(announced(file), sums.told(), is_worth_asking(SourceFile("x", 9, "etag:t", "crc64nvme:")))
"""


def test_under_python_38_it_compares_what_that_can(program: Path) -> None:
    """CRC32 is in the standard library, and nothing else is there."""
    python = python38()
    if python is None:
        pytest.skip("no python3.8 on this machine")
    words = [python, "-I", "-S", "-c", _COMPARED, str(program)]

    done = subprocess.run(words, capture_output=True, text=True, check=True)

    assert done.stdout == "('crc32', 'cbf43926') {'crc32': 'cbf43926'} False\n"


def test_what_is_wrong_is_said_in_our_own_errors(program: Path, tmp_path: Path) -> None:
    """A damaged listing there is the error that it is here; an unknown verb is named."""
    listings = tmp_path / "mirror" / "listings"
    listings.mkdir(parents=True)
    (listings / f"{'0' * 64}.json").write_text("{}")
    root = {"root": str(tmp_path / "mirror")}

    damaged = call(sys.executable, program, "load_listing", {**root, "listing": "0" * 64})
    unknown = call(sys.executable, program, "fly", root)

    assert damaged["error"]["kind"] == "StorageError"
    assert damaged["error"]["code"] == "mirror-damaged"
    assert "fly" in unknown["error"]["summary"]


def test_a_collection_whose_caller_has_gone_deletes_nothing(program: Path, tmp_path: Path) -> None:
    """It ends in its grace period, and puts back what it had condemned."""
    mirror = mirror_at(tmp_path / "mirror")
    source = MemorySource({"a.bin": noise(2**21), "b": b"x"}, piece=2**20)
    mirror.mirror(source.resolve(URI, None, None), source, REFERENCE)
    mirror.drop_reference(REFERENCE.lineage, REFERENCE.address)
    before = stored(mirror.root)
    asked = {"dry_run": False, "grace_seconds": 5.0, "unused_seconds": None}

    ended = call(sys.executable, program, "collect", {"root": str(mirror.root), **asked})

    assert ended["error"]["kind"] == "Interrupted"
    assert stored(mirror.root) == before


def test_a_collection_there_refuses_as_here(program: Path, tmp_path: Path) -> None:
    """Where a listing is lost that a reference names."""
    mirror = mirror_at(tmp_path / "mirror")
    source = MemorySource({"b": b"x"})
    listing = mirror.mirror(source.resolve(URI, None, None), source, REFERENCE)
    mirror._layout.listing(listing.id).unlink()
    asked = {"dry_run": False, "grace_seconds": 0.0, "unused_seconds": None}

    refused = call(sys.executable, program, "collect", {"root": str(mirror.root), **asked})
    told = call(sys.executable, program, "inventory", {"root": str(mirror.root)})
    (row,) = told["result"]["rows"]

    assert refused["error"]["code"] == "mirror-damaged"
    assert f"{listing.id}.json is missing" in refused["error"]["summary"]
    assert row["listing_is"] == "missing"
    assert len(stored(mirror.root)) == 1
