"""Code trees: received completely, and unpacked only below their directory."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from tests.support.cases import cases
from tests.support.node_program.nodes import NodeHarness, NodeProgramError
from trainctl.base.filesystem.archives import unpack
from trainctl.errors import TrainctlError


def _tar(*members: tuple[tarfile.TarInfo, bytes]) -> io.BytesIO:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info, data in members:
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    stream.seek(0)
    return stream


def _member(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    return info


def _of_case(name: str, kind: str = "REG", link: str = "") -> tarfile.TarInfo:
    return _member(name, getattr(tarfile, f"{kind}TYPE"), link)


def test_files_links_and_the_executable_bit_arrive(tmp_path: Path) -> None:
    stream = _tar(
        (_member("deep/run.sh", mode=0o755), b"#!/bin/sh\n"),
        (_member("link", tarfile.SYMTYPE, "deep/run.sh"), b""),
        (_member("plain", mode=0o6777 & ~0o100), b"x"),
    )

    unpack(stream, tmp_path)

    assert (tmp_path / "link").read_bytes() == b"#!/bin/sh\n"
    assert os.access(tmp_path / "deep/run.sh", os.X_OK)
    assert (tmp_path / "plain").stat().st_mode & 0o7111 == 0


@pytest.mark.parametrize("members", cases("node/unsafe_archives"))
def test_nothing_leaves_the_directory(tmp_path: Path, members: list[dict[str, str]]) -> None:
    target = tmp_path / "work"
    target.mkdir()

    with pytest.raises((TrainctlError, FileExistsError)):
        unpack(_tar(*((_of_case(**member), b"") for member in members)), target)

    assert [path.name for path in tmp_path.iterdir()] == ["work"]


@pytest.mark.parametrize("length", [20, 512, 1240, 5120])
def test_a_truncated_upload_is_refused(node: NodeHarness, length: int) -> None:
    archive = _tar((_member("a"), b"a" * 2000), (_member("b"), b"b" * 2000)).getvalue()
    with pytest.raises(NodeProgramError):
        node.call("upload_code", {"digest": "sha256:x"}, archive[:length])

    assert node.call("has_code", {"digest": "sha256:x"}) == {"present": False, "sha256": None}
    assert list((node.root / "code").iterdir()) == []


def test_code_is_returned_as_it_was_sent(node: NodeHarness) -> None:
    sent = _tar((_member("train.py"), b"print(1)")).getvalue()
    node.call("upload_code", {"digest": "sha256:x"}, sent)

    assert node.raw("read_code", {"digest": "sha256:x"}) == sent
    with pytest.raises(NodeProgramError) as raised:
        node.raw("read_code", {"digest": "sha256:y"})
    assert raised.value.kind == "UnknownOnNode"
