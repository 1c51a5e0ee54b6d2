"""Whatever a manifest holds: it declares resources, or its problems are reported. Nothing else happens."""

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

SCHEMA = schema("manifest")
KEYS = sorted(
    {key for section in SCHEMA["$defs"].values() for key in section.get("properties", {})}
    | set(SCHEMA["properties"])
    | {"a", "b", "a-0", "lr", "A", "bad name", "nodes", ""}
)
TOKEN = "hf_abcdefghijklmnopqrstuv1"
WORDS = [
    *("a", "b", "local", "ssh", "env", "file", "x", "", "/m", "/m/n", "..", "1TB", "64Gi"),
    *("H100:2", "hf://a/b", "hf://a/b@", "file:./x", "file:../..", "s3://bucket/x", "file:///m"),
    *("in full", "${{ var.a }}", "${{ var.lr }}/x", "${{ weights.a.path }}", "${{ job.name }}"),
    *("'${{ var.a }}'", "${{", "${{ raw(var.a) }}", "CUSTOM_SECRET", TOKEN, "config", "host"),
]
LEAVES = st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from(WORDS)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)
RUNTIME = st.fixed_dictionaries(
    {"start_commands": st.lists(LEAVES, min_size=1, max_size=2) | LEAVES},
    optional={"environment_variables": VALUES, "cache_config": VALUES, "engine": LEAVES},
)
JOB = VALUES | st.fixed_dictionaries(
    {"runtime": RUNTIME},
    optional={
        "weights": st.lists(VALUES, max_size=3),
        **dict.fromkeys(("cluster", "code", "project"), LEAVES),
        **dict.fromkeys(("lifecycle", "compute", "image", "labels"), VALUES),
    },
)
NAMES = st.sampled_from(["a", "b", "a-0", "bad name", "${{ var.a }}"])
SECTIONS = {
    "version": LEAVES,
    **dict.fromkeys(("project", "secrets", "mirror", "surprise"), VALUES),
    "vars": VALUES | st.dictionaries(st.sampled_from(["a", "lr"]), LEAVES),
    **dict.fromkeys(
        ("projects", "clusters", "weights", "caches"), st.dictionaries(NAMES, VALUES, max_size=3)
    ),
    "jobs": st.dictionaries(NAMES, JOB, max_size=3),
}


@given(st.fixed_dictionaries({}, optional=SECTIONS), st.sampled_from(["", "1", "x y"]))
def test_any_document_declares_resources_or_has_problems(
    tmp_path: Path, document: dict[str, object], variable: str
) -> None:
    """A problem has a place and repeats no credential."""
    (tmp_path / "trainctl.yaml").write_text(json.dumps(document or {"jobs": {}}))
    variables = {"a": variable} if variable else {}
    try:
        state = build(
            read(tmp_path), variables=variables, provider_schema=schema_of, providers=["local"]
        )
    except ManifestError as failure:
        diagnostics = [item for item in failure.diagnostics if isinstance(item, Diagnostic)]
        assert any(problem.severity is Severity.ERROR for problem in diagnostics)
        for problem in diagnostics:
            assert problem.summary
            assert problem.where is not None
            assert TOKEN[:11] not in str(problem.to_json())
    else:
        for resource in state.resources.values():
            canonical(resource.attributes)
            assert all(needed in state.resources for needed in resource.depends_on)
        assert state.manifest_digest.startswith("sha256:")


@pytest.mark.parametrize("suffix", ["yaml", "toml"])
@given(text=st.text(alphabet="ab:[]{}&*!-#'\"\n ,=.1\t|>%@`?~<", max_size=60))
def test_any_text_is_read_or_has_problems(tmp_path: Path, suffix: str, text: str) -> None:
    (tmp_path / f"trainctl.{suffix}").write_text(text)
    try:
        build(read(tmp_path), provider_schema=schema_of)
    except ManifestError as failure:
        diagnostics = failure.diagnostics
        assert diagnostics
