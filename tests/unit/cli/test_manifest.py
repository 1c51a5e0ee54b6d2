"""``explain``: fields of the manifest and codes of errors, offline."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.cases import cases
from tests.support.projects.program import ROOT, trainctl
from trainctl.manifest.fields import fields, find
from trainctl.model.diagnostics import explanations
from trainctl_schemas import schema

KNOWN = fields(schema("manifest"))


def test_every_field_of_the_schema_is_known_with_its_meaning() -> None:
    """Except for names that the author chooses."""
    assert [f.path for f in KNOWN.values() if not f.meaning and f.steps[-1] != "*"] == []
    assert all(field.type for field in KNOWN.values())
    for path in ("weights.*.source", "jobs.*.weights.source", "jobs.*.image.docker_auth"):
        assert tuple(path.split(".")) in KNOWN


@pytest.mark.parametrize("case", cases("cli/explain"))
def test_a_path_is_found_by_itself_or_by_its_end(case: list[Any]) -> None:
    query, paths = case
    assert [field.path for field in find(query, KNOWN)] == paths


def test_a_field_shows_its_type_its_meaning_and_the_fields_below() -> None:
    """Also a host's, which is a name or a mapping, and one of a provider's schema."""
    cache = trainctl("explain", "jobs.sft.runtime.cache_config").stdout
    assert cache.startswith("jobs.*.runtime.cache_config: a mapping\n  Training caches.\n")
    assert "\n  enabled                 true or false (default: false)\n" in cache
    mount = trainctl("explain", "weights.*.mount_location").stdout
    assert "default: `weights/` and the last part of the source" in mount
    jump = trainctl("explain", "clusters.lab.hosts.jump").stdout
    assert jump.startswith("clusters.*.hosts.jump: text\n  Jump hosts")
    nodes = trainctl("explain", "clusters.lab.nodes").stdout
    assert nodes.startswith("clusters.*.nodes: an integer, at least 1 (default: 1)\n")
    assert "For the provider local." in nodes


def test_codes_are_explained_as_on_the_page() -> None:
    unknown = explanations()["unknown-key"]
    shown = trainctl("explain", unknown.code).stdout
    assert shown.startswith(f"{unknown.code}: {unknown.title}\n\n")
    assert " ".join(shown.split()).endswith(" ".join(unknown.text.split()))
    listed = trainctl("explain").stdout.splitlines()
    assert [line.partition(":")[0] for line in listed] == list(explanations())
    everything = trainctl("explain", "--all").stdout
    assert all(f"{row.code}: {row.title}\n" in everything for row in explanations().values())
    page = trainctl("explain", "--all", "--format", "markdown").stdout
    assert page == (ROOT / "trainctl" / "errors.md").read_text()


@pytest.mark.parametrize(
    ("query", "nearest"), [("unknwon-key", "unknown-key"), ("jobs.sft.runtme", "jobs.*.runtime")]
)
def test_an_unknown_query_is_refused_with_the_nearest(query: str, nearest: str) -> None:
    done = trainctl("explain", query)
    assert (done.returncode, done.stdout) == (64, "")
    assert nearest in done.stderr
