"""The packed program: the protocol's edges."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.support.node_program.nodes import NodeHarness, NodeProgramError


@pytest.mark.parametrize("text", [b"", b"[]\n", b"{not json\n", b"\xff\xfe\n"])
def test_an_invalid_request_is_an_error(node: NodeHarness, text: bytes) -> None:
    done = subprocess.run(node.argv("status"), input=text, capture_output=True)

    assert done.returncode == 1
    assert b'"kind": "NodeError"' in done.stdout


def test_an_unknown_method_and_a_missing_member_are_named(node: NodeHarness) -> None:
    with pytest.raises(NodeProgramError, match="fly"):
        node.call("fly")
    with pytest.raises(NodeProgramError, match="digest"):
        node.call("has_code")


def test_a_delivery_completes_without_its_caller(node: NodeHarness) -> None:
    node.mirror.add("model.bin", os.urandom(40 * 2**20))
    process = node.popen("deliver", node.delivery())
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stderr.close()
    process.wait()

    trees = node.cached(listings=[node.mirror.listing.id])["trees"]

    assert trees == [node.mirror.listing.id]
