"""What changes between two revisions of weights."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.support.servers.hub import HttpFault, Hub, serve
from tests.support.servers.shards import publish_shards, safetensors
from trainctl.model.address import Address
from trainctl.model.contents import ContentChange, ContentDiff
from trainctl.model.specs.resource import WeightsSpec
from trainctl.weights.contents import compare_revisions

REPO = "owner/name"
CARD = "---\nlicense: {}\ntags: [a]\n---\n# Model\n"
BEFORE: dict[str, bytes] = {
    "README.md": CARD.format("apache-2.0").encode(),
    "config.json": json.dumps({"rope": {"theta": 1e4}, "layers": 2, "old": [1]}).encode(),
    "tokenizer_config.json": b'{"chat_template": "a"}',
    "gone.txt": b"gone",
    "model-1.safetensors": safetensors(
        {f"layers.{n}.q": ("BF16", [2, 2]) for n in range(4)} | {"gone": ("F32", [1])}
    ),
    "same.safetensors": safetensors({"same": ("F32", [3])}),
}
AFTER: dict[str, bytes] = BEFORE | {
    "README.md": CARD.format("other").encode(),
    "LICENSE": b"mine",
    "config.json": json.dumps({"rope": {"theta": 1e6}, "layers": 2, "new": None}).encode(),
    "tokenizer_config.json": b'{"chat_template": "b"}',
    "modeling_x.py": b"import os\n",
    "extra.bin": b"pickle",
    "model-1.safetensors": safetensors(
        {f"layers.{n}.q": ("F16", [2, 2]) for n in range(3)}
        | {"layers.3.q": ("BF16", [4, 1]), "new": ("F32", [1])}
        | {f"long.{n}": ("F32", [n, 2]) for n in range(900)}
    ),
}
del AFTER["gone.txt"]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


def compare(hub: Hub, before: str, after: str) -> ContentDiff:
    """Compare two commits without their licence file, which is always compared."""
    diff = ContentDiff(Address.parse("weights.w"), "weights", before, after)
    spec = WeightsSpec.from_attributes({"source": f"hf://{REPO}", "ignore_patterns": ["LICENSE"]})
    return compare_revisions(diff, (spec, spec), None)


def rows(diff: ContentDiff, title: str) -> dict[str, Any]:
    (group,) = (group for group in diff.groups if group.title == title)
    return {row.name: (row.before, row.after) for row in group.changes}


def test_files_keys_tensors_and_alerts(hub: Hub) -> None:
    before = hub.add(REPO, BEFORE)
    hub.add(REPO, BEFORE | {"config.json": b"{}"}, title="Between")
    diff = compare(hub, before, hub.add(REPO, AFTER, title="Newest"))
    counts: Mapping[str, Mapping[str, int]] = {group.title: group.counts for group in diff.groups}

    assert diff.notes == ()
    assert [*rows(diff, "commits")] == ["Newest", "Between"]
    assert counts["files"] == {"added": 3, "changed": 4, "removed": 1}
    assert rows(diff, "files")["gone.txt"] == (4, None)
    assert rows(diff, "config.json") == {
        "rope.theta": ("10000.0", "1000000.0"),
        "old": ("[1]", None),
        "new": (None, "null"),
    }
    assert counts["tensors"] == {"added": 901, "retyped": 3, "gone": 1, "reshaped": 1}
    assert ContentChange("layers.*.q", "BF16 [2, 2]", "F16 [2, 2]", 3) in diff.groups[-1].changes
    assert set(diff.alerts.items()) == {
        ("added Python code", "modeling_x.py"),
        ("added pickle", "extra.bin"),
        ("changed chat template", 'tokenizer_config.json: chat_template "a" -> "b"'),
        ("added licence", "LICENSE"),
        ("changed licence", 'README.md: license "apache-2.0" -> "other"'),
    }
    assert not hub.asked("same.safetensors")


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xff\xff\xff\xff\xff\xff\x7f" + b"{" * 100,
        b"\x02\0\0\0\0\0\0\0[]",
        b"\x08\0\0\0\0\0\0\0" + b'{"a": 1}',
        b"",
    ],
)
def test_an_invalid_header_is_a_note(hub: Hub, content: bytes) -> None:
    """The other tensors that both revisions have are compared."""
    before = hub.add(REPO, BEFORE)
    diff = compare(hub, before, hub.add(REPO, AFTER | {"x.safetensors": content}))
    assert "x.safetensors is not valid" in diff.notes[0]
    assert diff.groups[-1].counts == {"retyped": 3, "reshaped": 1}


def test_failed_requests_are_notes(hub: Hub) -> None:
    before = hub.add(REPO, BEFORE)
    after = hub.add(REPO, AFTER | {"config.json": b"[" * 100_000})
    hub.faults += [
        HttpFault("status", f"/commits/{after}", times=9),
        HttpFault("cut", "/README.md", times=9, at=3),
    ]
    diff = compare(hub, before, after)
    assert len(diff.notes) == 3
    assert {"files", "tokenizer_config.json", "tensors"} <= {group.title for group in diff.groups}
    diff = compare(hub, "0" * 40, after)
    assert (diff.groups, len(diff.notes)) == ((), 1)


def test_tensors_of_many_shards_take_a_thousandth_of_the_bytes(hub: Hub) -> None:
    """As with 1,000 shards in ``tests/benchmarks/tensors.py``."""
    shards, size = 20, 100 * 10**6
    before = publish_shards(hub, REPO, shards, size, "BF16")
    diff = compare(hub, before, publish_shards(hub, REPO, shards, size, "F16"))
    assert diff.notes == ()
    assert diff.groups[-1].counts == {"retyped": shards * 10}
    assert len(hub.asked(".safetensors")) == 2 * shards
    assert hub.sent_bytes <= shards * size / 1000
