"""``explain``: fields of the manifest and codes of errors, offline."""

from __future__ import annotations

import pytest

from tests.support.projects.program import ROOT, trainctl
from trainctl.manifest.fields import fields, find, nearest_path
from trainctl.model.diagnostics import explanations
from trainctl_schemas import schema

KNOWN = fields(schema("manifest"))


def test_every_field_of_the_types_is_known_with_its_meaning() -> None:
    """Each property of the schema is a field, and what it means is said unless it is a name of the author's."""
    silent = [one.path for one in KNOWN.values() if not one.meaning and one.steps[-1] != "*"]
    assert silent == []
    for path in (
        "jobs.*.runtime.start_commands",
        "weights.*.source",
        "jobs.*.weights.source",
        "jobs.*.image.docker_auth",
    ):
        assert tuple(path.split(".")) in KNOWN  # fmt: skip
    assert all(one.type for one in KNOWN.values())


@pytest.mark.parametrize(
    ("query", "paths"),
    [
        ("jobs", ["jobs"]),
        ("jobs.*", ["jobs.*"]),
        ("jobs.sft.runtime.start_commands", ["jobs.*.runtime.start_commands"]),
        ("jobs.sft.weights[0].source", ["jobs.*.weights.source"]),
        ("runtime.cache_config", ["jobs.*.runtime.cache_config"]),
        ("start_commands", ["jobs.*.runtime.start_commands"]),
        ("weights", ["weights"]),
        ("nothing", []),
        ("jobs.sft.nothing", []),
        ("", []),
        ("...", []),
    ],
)
def test_a_path_is_found_whole_or_by_its_end(query: str, paths: list[str]) -> None:
    """A whole path with any name for ``*`` means that field alone; the end of one means every field that ends so."""
    assert [one.path for one in find(query, KNOWN)] == paths


def test_an_end_may_mean_several() -> None:
    """A name that stands in several sections is explained in each."""
    assert {one.path for one in find("prevent_destroy", KNOWN)} > {
        "jobs.*.lifecycle.prevent_destroy", "clusters.*.lifecycle.prevent_destroy",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("query", "meant"),
    [
        ("jobs.sft.runtme", "jobs.*.runtime"),
        ("start_command", "jobs.*.runtime.start_commands"),
        ("zzzzzz", None),
    ],
)
def test_the_nearest_is_offered(query: str, meant: str | None) -> None:
    """What was probably meant is a path that can be asked for."""
    assert nearest_path(query, KNOWN) == meant


def test_settings_of_hosts_are_explained() -> None:
    """A host is a name or a mapping, whose keys are found."""
    done = trainctl("explain", "clusters.lab.hosts.jump")
    assert done.stdout.startswith("clusters.*.hosts.jump: text\n  Jump hosts")


def test_a_field_says_what_it_takes_and_what_lies_below() -> None:
    """Type, default, meaning, and the same of each field directly below."""
    done = trainctl("explain", "jobs.sft.runtime.cache_config")
    assert done.returncode == 0
    assert done.stdout.startswith("jobs.*.runtime.cache_config: a mapping\n  Training caches.\n")
    assert "\n  enabled                 true or false (default: false)\n" in done.stdout
    assert "(required)" in trainctl("explain", "start_commands").stdout


def test_a_setting_of_a_provider_is_a_field_too() -> None:
    """What an installed provider's schema says of its settings is explained below ``clusters``."""
    said = trainctl("explain", "clusters.lab.nodes").stdout
    assert said.startswith("clusters.*.nodes: an integer, at least 1 (default: 1)\n")
    assert "For the provider local." in said


def test_a_code_is_explained_as_on_the_page() -> None:
    """``explain CODE`` prints the code's section of ``errors.md``, and ``--all --format markdown`` the page itself."""
    one = explanations()["unknown-key"]
    said = trainctl("explain", one.code).stdout
    assert said.startswith(f"{one.code}: {one.title}\n\n")
    assert " ".join(said.split()).endswith(" ".join(one.text.split()))
    page = trainctl("explain", "--all", "--format", "markdown").stdout
    assert page == (ROOT / "trainctl" / "errors.md").read_text()


def test_all_codes_are_listed() -> None:
    """Without a name each code stands on a line; ``--all`` prints every explanation."""
    listed = trainctl("explain").stdout.splitlines()
    assert [line.partition(":")[0] for line in listed] == list(explanations())
    everything = trainctl("explain", "--all").stdout
    assert all(f"{one.code}: {one.title}\n" in everything for one in explanations().values())


def test_what_is_neither_is_refused_with_the_nearest() -> None:
    """A name that is no field and no code exits 64 and offers one that is."""
    for wrong, meant in (("unknwon-key", "unknown-key"), ("jobs.sft.runtme", "jobs.*.runtime")):
        done = trainctl("explain", wrong)
        assert (done.returncode, done.stdout) == (64, "")
        assert meant in done.stderr
