"""The program as a whole: Python 3.8, the protocol's edges."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.node_program.nodes import NodeHarness, NodeProgramError, python38
from trainctl.node.__main__ import _METHODS, _PAYLOAD_METHODS, _RAW_METHODS, _find_function


def test_it_works_under_python_38(tmp_path: Path) -> None:
    """Deliver, start, log, stop and forget work with the oldest Python that nodes may have."""
    python = python38()
    if python is None:
        pytest.skip("no python3.8 on this machine")
    node = NodeHarness(tmp_path, python=python)
    node.mirror.add("a/b.bin", os.urandom(20 * 2**20))
    node.deliver()
    weights = [{"name": "w", "listing": node.mirror.listing.id, "mount_location": "weights/w"}]

    facts = node.call("facts", {"data": str(node.data), "mounts": ["/app/x"]})
    status = node.run("ls weights/w/a", weights=weights)

    assert facts["python"].startswith("3.8.")
    assert status["status"] == "TRAINING_JOB_COMPLETED", status["error"]
    assert node.log() == "b.bin\n"
    assert node.call("forget", {"lineage": "lineage-1"})["empty"]


@pytest.mark.parametrize(
    "where", [*_METHODS.values(), *_RAW_METHODS.values(), *_PAYLOAD_METHODS.values()]
)
def test_every_verb_is_where_the_table_says(where: str) -> None:
    """The module is found, and in it the function."""
    assert callable(_find_function(where))


@pytest.mark.parametrize("text", [b"", b"[]\n", b"{not json\n", b"\xff\xfe\n"])
def test_a_broken_request_is_an_error(node: NodeHarness, text: bytes) -> None:
    """A request that was cut off does nothing and says so."""
    done = subprocess.run(node.argv("status"), input=text, capture_output=True)

    assert done.returncode == 1
    assert b'"kind": "request"' in done.stdout


def test_an_unknown_verb_and_a_missing_member_are_errors(node: NodeHarness) -> None:
    """Both are told by name."""
    with pytest.raises(NodeProgramError, match="fly"):
        node.call("fly")
    with pytest.raises(NodeProgramError, match="digest"):
        node.call("has_code")


def test_a_delivery_goes_on_without_its_caller(node: NodeHarness) -> None:
    """A caller that closes its end early does not keep the tree from being sealed."""
    node.mirror.add("model.bin", os.urandom(40 * 2**20))
    process = node.popen("deliver", node.delivery())
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stderr.close()
    process.wait()

    found = node.cached(listings=[node.mirror.listing.id])

    assert found["trees"] == [node.mirror.listing.id]


def test_a_root_that_cant_be_made_is_a_storage_error(node: NodeHarness) -> None:
    """A file where the node's directory belongs is named in the error."""
    node.root.write_text("in the way")
    node.mirror.add("x", b"x")

    with pytest.raises(NodeProgramError, match=str(node.root)):
        node.deliver()
    node.root.unlink()
