"""A source with a meter: what is read is counted, by whichever way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.support.hub import serve
from tests.support.weights_data import noise
from trainctl.sources.file import FileSource
from trainctl.sources.hf import HubSource
from trainctl.spi.sources import Span
from trainctl.weights.metered import Metered


def test_what_is_read_is_counted(tmp_path: Path) -> None:
    """All that comes of a file, from the offset on; twice if it is read twice."""
    (tmp_path / "model").write_bytes(b"0123456789")
    source = Metered(FileSource())
    resolved = source.resolve((tmp_path / "model").as_uri(), None, None)
    (file,) = resolved.files

    for offset in (0, 4):
        with source.open(resolved, file, offset, None) as pieces:
            assert b"".join(pieces) == b"0123456789"[offset:]

    assert source.read == 16


class Telling(FileSource):
    """Tells more when it is asked."""

    def told(self, *about: object) -> str:
        return "md5:of this one"


def test_who_asks_for_one_file_is_told_what_its_source_tells(tmp_path: Path) -> None:
    """Of a source that has no more to tell, what it told."""
    (tmp_path / "model").write_bytes(b"0123456789")
    resolved = FileSource().resolve((tmp_path / "model").as_uri(), None, None)
    (file,) = resolved.files
    listed = replace(file, checksum="md5:as listed")

    assert Metered(Telling()).told(resolved, listed, None) == "md5:of this one"
    assert Metered(FileSource()).told(resolved, listed, None) == "md5:as listed"


def test_what_is_read_by_parts_is_counted() -> None:
    """Each view that is filled."""
    with serve() as hub:
        hub.add("acme/tiny", {"model.safetensors": noise(3_000_000)})
        source = Metered(HubSource(hub.url))
        resolved = source.resolve("hf://acme/tiny", None, None)
        (file,) = resolved.files
        with source.part(resolved, file, Span(1_000_000, 500_000), None) as fill:
            assert fill is not None
            for _ in range(2):
                fill(memoryview(bytearray(250_000)))

    assert source.read == 500_000
