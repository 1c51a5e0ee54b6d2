"""Whatever a manifest holds: it is a wish, or it is told what is wrong with it. Nothing else happens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.projects.manifests import schema_of
from trainctl.base.json import canonical
from trainctl.desired.build import build
from trainctl.errors import ManifestError
from trainctl.manifest.read import read
from trainctl.model.diagnostics import Diagnostic, Severity
from trainctl_schemas import schema

KEYS = sorted(
    {
        key
        for section in schema("manifest")["$defs"].values()
        for key in section.get("properties", {})
    }
    | set(schema("manifest")["properties"])
    | {"a", "b", "a-0", "lr", "A", "bad name", "nodes", ""}
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 3),
    st.sampled_from(
        [
            *(
                "a",
                "b",
                "local",
                "ssh",
                "env",
                "file",
                "x",
                "",
                "/m",
                "/m/n",
                "..",
                "1TB",
                "64Gi",
                "H100:2",
            ),
            *(
                "hf://a/b",
                "hf://a/b@",
                "file:./x",
                "file:../..",
                "s3://bucket/x",
                "file:///m",
                "in full",
            ),
            *(
                "${{ var.a }}",
                "${{ var.lr }}/x",
                "${{ weights.a.path }}",
                "${{ job.name }}",
                "'${{ var.a }}'",
            ),
            *(
                "${{",
                "${{ raw(var.a) }}",
                "CUSTOM_SECRET",
                "hf_abcdefghijklmnopqrstuv1",
                "config",
                "host",
            ),
        ]
    ),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)
RUNTIME = st.fixed_dictionaries(
    {"start_commands": st.one_of(st.lists(LEAVES, min_size=1, max_size=2), LEAVES)},
    optional={"environment_variables": VALUES, "cache_config": VALUES, "engine": LEAVES},
)
JOB = st.one_of(
    VALUES,
    st.fixed_dictionaries(
        {"runtime": RUNTIME},
        optional={"weights": st.lists(VALUES, max_size=3), "cluster": LEAVES, "lifecycle": VALUES}
        | {"compute": VALUES, "image": VALUES, "labels": VALUES, "code": LEAVES, "project": LEAVES},
    ),
)
NAMED = st.sampled_from(["a", "b", "a-0", "bad name", "${{ var.a }}"])
SECTIONS = {
    "version": LEAVES,
    "project": VALUES,
    "projects": st.dictionaries(NAMED, VALUES, max_size=2),
    "vars": st.one_of(VALUES, st.dictionaries(st.sampled_from(["a", "lr"]), LEAVES)),
    "secrets": VALUES,
    "mirror": VALUES,
    "clusters": st.dictionaries(NAMED, VALUES, max_size=2),
    "weights": st.dictionaries(NAMED, VALUES, max_size=3),
    "caches": st.dictionaries(NAMED, VALUES, max_size=2),
    "jobs": st.dictionaries(NAMED, JOB, max_size=3),
    "surprise": VALUES,
}


@given(
    document=st.fixed_dictionaries({}, optional=SECTIONS),
    overrides=st.sampled_from(["", "1", "x y"]),
)
def test_any_manifest_is_a_wish_or_is_told(
    tmp_path: Path, document: dict[str, object], overrides: str
) -> None:
    """Every problem has words and a place, and repeats no credential; every wish is JSON."""
    (tmp_path / "trainctl.yaml").write_text(json.dumps(document or {"jobs": {}}))
    try:
        wish = build(
            read(tmp_path),
            variables={"a": overrides} if overrides else {},
            provider_schema=schema_of,
            providers=["local"],
        )
    except ManifestError as failure:
        found = [one for one in failure.diagnostics if isinstance(one, Diagnostic)]
        assert any(one.severity is Severity.ERROR for one in found)
        for one in found:
            assert one.summary
            assert one.where is not None
            assert "hf_abcdefgh" not in str(one.to_json())
    else:
        for resource in wish.resources.values():
            canonical(resource.attributes)
            assert all(needed in wish.resources for needed in resource.depends_on)
        assert wish.manifest_digest.startswith("sha256:")


@pytest.mark.parametrize("suffix", ["yaml", "toml"])
@given(text=st.text(alphabet="ab:[]{}&*!-#'\"\n ,=.1\t|>%@`?~<", max_size=60))
def test_any_text_is_read_or_is_told(tmp_path: Path, suffix: str, text: str) -> None:
    """Neither syntax has a text that does anything else."""
    for old in tmp_path.iterdir():
        old.unlink()
    (tmp_path / f"trainctl.{suffix}").write_text(text)
    try:
        build(read(tmp_path), provider_schema=schema_of)
    except ManifestError as failure:
        told = failure.diagnostics
        assert told
