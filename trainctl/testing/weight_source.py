"""Conformance suite of weight sources: provide a way to put files upstream."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import pytest

from trainctl.base.lazy_dataclass import dataclass, replace
from trainctl.base.listing import ResolvedSource, SourceFile
from trainctl.errors import SourceDenied, SourceError, SourceNotFound
from trainctl.plugin_api.sources import ByteRange, RangeSource, SourceCredential, WeightSource
from trainctl.sources.client import SourceClient

BUFFER_BYTES = 2**20
CONTENT = {
    "weights.bin": bytes(range(256)) * 10_000,
    "empty": b"",
    "deep/er/config.json": b'{"a": 1}\n',
    "names with space.txt": b"x",
    "ümläut ☃ %20 #?&+.txt": b"y",
    "-rf": b"z",
}
"""Small, large and empty files, and unusual valid names."""


@dataclass(frozen=True, slots=True)
class UpstreamFixture:
    """A source and its URIs; only ``credential`` opens ``private``."""

    source: WeightSource
    uri: str
    missing: str
    credential: SourceCredential | None = None
    private: str | None = None


class WeightSourceConformance(ABC):
    """Inherit, define ``place``, and pytest runs the rest.

    ``one_file``: for schemes whose URI names a single file; ``place`` then gets one file, or none to remove it.
    """

    one_file: ClassVar[bool] = False

    @abstractmethod
    def place(self, files: Mapping[str, bytes]) -> UpstreamFixture:
        """Replace the files upstream by these, and return how to access them."""

    def test_resolve_lists_every_file_with_its_size(self) -> None:
        """Every file is listed once, with its size and a validator, sorted by path."""
        content = self._content("weights.bin")
        upstream = self.place(content)
        resolved = upstream.source.resolve(upstream.uri, None, None)
        assert {file.path: file.size for file in resolved.files} == {
            path: len(data) for path, data in content.items()
        }
        assert list(resolved.files) == sorted(resolved.files)
        assert all(":" in file.validator for file in resolved.files)

    def test_resolve_twice_is_the_same(self) -> None:
        """An unchanged source has the same revision, validators and pin."""
        upstream = self.place(self._content("weights.bin"))
        first, second = (upstream.source.resolve(upstream.uri, None, None) for _ in range(2))
        assert first == second
        assert first.pin == second.pin

    def test_changed_content_changes_the_pin(self) -> None:
        """Other content of the same size and name has another validator."""
        path = "deep/er/config.json"
        content = self._content(path)
        pins = []
        for files in (content, {**content, path: b'{"a": 2}\n'}):
            upstream = self.place(files)
            pins.append(upstream.source.resolve(upstream.uri, None, None).pin)
        assert pins[0] != pins[1]

    def test_open_gives_the_bytes(self) -> None:
        """All bytes come in order, in buffers that are neither empty nor above 1 MiB."""
        for contents in [self._content(path) for path in CONTENT] if self.one_file else [CONTENT]:
            upstream = self.place(contents)
            resolved = upstream.source.resolve(upstream.uri, None, None)
            for path, data in contents.items():
                buffers = self._read(upstream.source, resolved, path, 0)
                assert b"".join(buffers) == data, path
                assert all(0 < len(buffer) <= BUFFER_BYTES for buffer in buffers), path

    def test_open_from_an_offset(self) -> None:
        """Exactly the rest is returned."""
        upstream, resolved, _ = self._opened()
        for offset in (1, 255, 2**20 - 1, 2**20, 2**20 + 1, 2_559_999):
            rest = b"".join(self._read(upstream.source, resolved, "weights.bin", offset))
            assert rest == CONTENT["weights.bin"][offset:], offset

    def test_a_part_is_exactly_what_was_asked_for(self) -> None:
        """A range has exactly the requested bytes, or upstream doesn't serve ranges."""
        upstream, resolved, file = self._opened()
        if not isinstance(upstream.source, RangeSource):
            return
        for offset, length in ((0, 1), (255, 2**20 + 1), (2**20, 2**20), (2_559_999, 1)):
            for step in (length, 1000):
                buffer = bytearray(length)
                with upstream.source.read_range(
                    resolved, file, ByteRange(offset, length), None
                ) as fill:
                    if fill is None:
                        return
                    for at in range(0, length, step):
                        fill(memoryview(buffer)[at : at + step])
                assert buffer == CONTENT["weights.bin"][offset : offset + length], offset

    def test_open_may_be_left_early_and_begun_again(self) -> None:
        """A reader that stops early doesn't affect later ones."""
        upstream, resolved, file = self._opened()
        for _ in range(3):
            with upstream.source.open(resolved, file, 0, None) as body:
                assert CONTENT["weights.bin"].startswith(next(body))
        data = b"".join(self._read(upstream.source, resolved, "weights.bin", 0))
        assert data == CONTENT["weights.bin"]

    def test_a_missing_source_is_gone(self) -> None:
        """A missing source is SourceNotFound and named."""
        upstream = self.place(self._content("weights.bin"))
        with pytest.raises(SourceNotFound) as caught:
            upstream.source.resolve(upstream.missing, None, None)
        assert upstream.missing in str(caught.value)

    def test_a_missing_file_is_an_error_that_names_it(self) -> None:
        """A missing file is SourceError with its name."""
        upstream, resolved, file = self._opened()
        if self.one_file:
            self.place({})
        else:
            file = replace(file, path="absent.bin")
        with (
            pytest.raises(SourceError, match=re.escape(file.path)),
            upstream.source.open(resolved, file, 0, None) as body,
        ):
            list(body)

    def test_another_size_than_announced_is_an_error(self) -> None:
        """A file that is longer or shorter than announced is an error."""
        upstream, resolved, file = self._opened()
        for size in (file.size - 1, file.size + 1):
            with (
                pytest.raises(SourceError, match=r"weights\.bin"),
                upstream.source.open(resolved, replace(file, size=size), 0, None) as body,
            ):
                list(body)

    def test_a_private_source_needs_its_credential(self) -> None:
        """It resolves with its credential only; errors hide the value."""
        upstream = self.place(self._content("weights.bin"))
        if upstream.private is None or upstream.credential is None:
            pytest.skip("the scheme has no credentials")
        with pytest.raises((SourceDenied, SourceNotFound)):
            upstream.source.resolve(upstream.private, None, None)
        assert upstream.source.resolve(upstream.private, None, upstream.credential).files
        wrong = SourceCredential("wrong-" + upstream.credential.value, "test")
        with pytest.raises((SourceDenied, SourceNotFound)) as caught:
            upstream.source.resolve(upstream.private, None, wrong)
        assert upstream.credential.value not in str(caught.value)

    def test_a_link_opens_the_file_and_holds_no_credential(self) -> None:
        """A presigned URL returns the file and doesn't contain the credential."""
        upstream = self.place(self._content("weights.bin"))
        credentials = [None, upstream.credential] if upstream.private else [None]
        for credential in credentials:
            uri = (upstream.private if credential else None) or upstream.uri
            resolved = upstream.source.resolve(uri, None, credential)
            file = self._find(resolved, "weights.bin")
            presigned_url = upstream.source.presigned_url(resolved, file, credential)
            if upstream.source.needs_relay(file, credential):
                assert presigned_url is None
            if presigned_url is not None:
                assert credential is None or credential.value not in presigned_url
                with SourceClient().get(presigned_url, "the link", {}) as response:
                    assert response.read(2**24) == CONTENT["weights.bin"]

    def _content(self, path: str) -> dict[str, bytes]:
        return {path: CONTENT[path]} if self.one_file else CONTENT

    def _opened(self) -> tuple[UpstreamFixture, ResolvedSource, SourceFile]:
        upstream = self.place(self._content("weights.bin"))
        resolved = upstream.source.resolve(upstream.uri, None, None)
        return upstream, resolved, self._find(resolved, "weights.bin")

    def _read(
        self, source: WeightSource, resolved: ResolvedSource, path: str, offset: int
    ) -> list[bytes]:
        with source.open(resolved, self._find(resolved, path), offset, None) as body:
            return list(body)

    def _find(self, resolved: ResolvedSource, path: str) -> SourceFile:
        name = path.rpartition("/")[2] if self.one_file else path
        return next(file for file in resolved.files if file.path == name)
