"""Apptainer's images: files named by their digest, removed with the last lineage that needs them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from tests.support.machines.apptainer import Apptainer
from tests.support.machines.containers import BUSYBOX, EngineHarness
from tests.support.node_program.nodes import NodeHarness

pytestmark = pytest.mark.long


@pytest.fixture
def held(node: NodeHarness, own_apptainer: Apptainer) -> NodeHarness:
    """A node that finds apptainer."""
    node.variables = own_apptainer.variables
    return node


def pull(node: NodeHarness, image: str, lineage: str = "lineage-1") -> dict[str, Any]:
    request = {"lineage": lineage, "image": image, "engine": "apptainer"}
    return node.call("pull_image", request)


def moved(podman: EngineHarness, tmp_path: Path, text: str) -> str:
    """A new image under one name; that name."""
    (tmp_path / "Containerfile").write_text(f"FROM {BUSYBOX}\nRUN echo {text} >/file\n")
    podman("build", "--quiet", "--tag", "localhost/moved:1", str(tmp_path))
    return "localhost/moved:1"


def test_a_tag_becomes_a_file_by_its_content(
    held: NodeHarness, own_apptainer: Apptainer, own_podman: EngineHarness, tmp_path: Path
) -> None:
    """It is converted once; a tag that moved is another file."""
    name = own_apptainer.offered(moved(own_podman, tmp_path, "one"))
    first, again = pull(held, name), pull(held, name)
    own_apptainer.offered(moved(own_podman, tmp_path, "two"))
    second = pull(held, name)
    files = [Path(one["id"]).read_bytes() for one in (first, second)]

    assert (first["pulled"], again["pulled"], second["pulled"]) == (True, False, True)
    assert first["id"] == again["id"] != second["id"]
    assert [one["digest"] for one in (first, second)] == [
        f"sha256:{hashlib.sha256(data).hexdigest()}" for data in files
    ]


def test_the_last_lineage_removes_the_file(held: NodeHarness, own_apptainer: Apptainer) -> None:
    """Also its downloads, and those of a pull that was killed."""
    killed = held.root / "images/pulling-999999999-x"
    killed.mkdir(parents=True)
    (killed / "image.sif").touch()
    found = pull(held, own_apptainer.small)
    pull(held, own_apptainer.small, "lineage-2")

    assert not killed.exists()
    held.call("forget", {"lineage": "lineage-1"})
    assert Path(found["id"]).is_file()
    held.call("forget", {"lineage": "lineage-2"})
    assert not (held.root / "images").exists()
    assert list(held.home.rglob("cache")) == []
