"""Files that a node fetches chunk by chunk."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_program.nodes import MirrorFixture
from tests.support.storage.weights_data import noise
from trainctl.base.listing import CHUNK_BYTES
from trainctl.node.system.blob_files import BlobFiles, PartialFile


@pytest.mark.parametrize("refusal", ["", "open", "pwrite"])
def test_chunks_bypass_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: str
) -> None:
    """Their whole blocks do, unless the file system refuses that with EINVAL, opening or writing."""
    content, direct = noise(CHUNK_BYTES + 12345), list[int]()
    mirror, files = MirrorFixture(tmp_path), BlobFiles(tmp_path)
    mirror.add("model.bin", content)
    (file,) = mirror.listing.files
    files.partial.mkdir()
    open_, pwrite = os.open, os.pwrite

    def opened(path: Any, flags: int, mode: int = 0) -> int:
        if flags & os.O_DIRECT and refusal == "open":
            raise OSError(errno.EINVAL, "no direct writes")
        return open_(path, flags, mode)

    def written(descriptor: int, data: Any, offset: int) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            if refusal == "pwrite":
                raise OSError(errno.EINVAL, "needs larger blocks")
            direct.append(len(data))
        return pwrite(descriptor, data, offset)

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "pwrite", written)
    partial = PartialFile(files, file, direct=True)
    for chunk in file.chunk_ranges:
        view = memoryview(mmap.mmap(-1, CHUNK_BYTES))[: chunk.length]
        view[:] = content[chunk.offset : chunk.offset + chunk.length]
        partial.write(partial.missing()[0], view)
    partial.complete()
    partial.close()

    assert Path(files.part(file.sha256)).read_bytes() == content
    assert direct == ([] if refusal else [CHUNK_BYTES, 12288])
