"""Files of shared sections that manifests extend."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.projects.manifests import attributes, desired, problems
from trainctl.desired.build import build
from trainctl.errors import ManifestError, SourceError
from trainctl.manifest.files import Fetch, PinnedFile
from trainctl.manifest.read import no_fetch, read
from trainctl.model.diagnostics import Diagnostic

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SHARED = """\
state: {url: "file:///srv/${{ project.name }}"}
vars: {steps: 3, lr: 1e-5}
clusters:
  lab: {provider: local, gpus: 8}
  spare: {provider: local}
weights:
  data: {source: "file:./data"}
  unused: {source: "file:./unused"}
"""
OWN = """\
extends: ../shared/defaults.yaml
project: {name: sft}
vars: {steps: 4}
jobs:
  train:
    cluster: lab
    weights: [data]
    runtime: {start_commands: ["echo ${{ var.steps }} ${{ var.lr }}"]}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The directory of a manifest in a repository with a shared file."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "defaults.yaml").write_text(SHARED)
    (tmp_path / "sft").mkdir()
    return tmp_path / "sft"


def refused(directory: Path, reference: str, fetch: Fetch = no_fetch) -> Diagnostic:
    (directory / "trainctl.yaml").write_text(f"extends: {reference}\n")
    with pytest.raises(ManifestError) as failure:
        read(directory, fetch=fetch)
    (problem,) = failure.value.diagnostics
    assert isinstance(problem, Diagnostic)
    return problem


def test_own_names_win_and_unused_resources_are_left_out(project: Path) -> None:
    """The digest is that of one file that declares the same."""
    merged = desired(project, OWN)
    assert attributes(merged, "job.train")["runtime"]["start_commands"] == ["echo 4 1e-5"]
    assert list(map(str, merged.resources)) == [
        "project.sft", "cluster.lab", "weights.data", "job.train",
    ]  # fmt: skip
    assert merged.clusters == ("lab",)
    assert merged.state.url == "file:///srv/sft"
    assert merged.extended is not None
    assert merged.extended.name == "../shared/defaults.yaml"
    text = SHARED.replace("steps: 3", "steps: 4") + OWN.partition("\n")[2]
    for line in (
        "  spare: {provider: local}",
        '  unused: {source: "file:./unused"}',
        "vars: {steps: 4}",
    ):
        text = text.replace(line + "\n", "")
    alone = desired(project, text)
    assert alone.manifest_digest == merged.manifest_digest
    (project.parent / "shared" / "defaults.yaml").write_text(SHARED.replace("1e-5", "2e-5"))
    assert desired(project, OWN).manifest_digest != merged.manifest_digest


def test_an_own_section_replaces_the_shared_one(project: Path) -> None:
    """Merged locations would send a secret to another bucket."""
    auth = "auth: {auth_method: CUSTOM_SECRET, auth_secret_name: s}"
    shared = f"{SHARED}mirror: {{url: s3://shared/m, {auth}}}\nsecrets: {{s: {{from: env}}}}\n"
    (project.parent / "shared" / "defaults.yaml").write_text(shared)
    mirror = desired(project, f"{OWN}mirror: {{url: s3://own/m}}\n").mirror
    assert (mirror.url, mirror.secret) == ("s3://own/m", None)


def test_errors_name_the_file_that_has_them(project: Path) -> None:
    (project.parent / "shared" / "defaults.yaml").write_text(
        "extends: other.yaml\njobs: {x: {}}\nstate: {url: file:///srv/all}\n"
        "clusters: {lab: {provider: local, gpsu: 1}}\n"
        "weights: {data: {source: 'file:./data'}}\nvars: {lr: 1}\n"
    )
    codes = {str(problem.where): problem.code for problem in problems(project, OWN)}
    assert codes == {
        "../shared/defaults.yaml:1:1": "invalid-extends",
        "../shared/defaults.yaml:2:1": "invalid-extends",
        "../shared/defaults.yaml:3:14": "shared-state",
        "../shared/defaults.yaml:4:35": "unknown-key",
    }


def test_a_file_outside_the_repository_is_not_read(project: Path) -> None:
    """Neither by its path nor through a symlink; without git only below the manifest."""
    outside = project.parent.parent / "outside.yaml"
    outside.write_text("vars: {x: 1}\n")
    (project / "link.yaml").symlink_to(outside)
    for reference in ("../../outside.yaml", str(outside), "link.yaml"):
        assert "is outside" in refused(project, reference).summary
    (project.parent / ".git").rmdir()
    assert "is outside" in refused(project, "../shared/defaults.yaml").summary


@pytest.mark.parametrize(
    "reference",
    [
        "git::https://git.example/a.git//d.yaml",
        "git::https://git.example/a.git//d.yaml?ref=main",
        f"git::https://git.example/a.git//d.yaml?ref={COMMIT[:12]}",
        f"git::file:///srv/a.git//d.yaml?ref={COMMIT}",
        f"git::https://git.example/a?ref={COMMIT}//d.yaml",
        f"git::ext::sh -c id//d.yaml?ref={COMMIT}",
        "https://git.example/d.yaml",
    ],
)
def test_another_repository_is_pinned(tmp_path: Path, reference: str) -> None:
    """By a complete commit id."""
    assert refused(tmp_path, reference).code == "invalid-extends"


@pytest.mark.parametrize(
    ("repository", "pinned"),
    [
        ("https://git.example/a.git//x/d.yaml", "a//x/d.yaml@01234567"),
        ("ssh://git@git.example:22/o/a.git//d.yaml", "a//d.yaml@01234567"),
    ],
)
def test_pinned_files_are_fetched(tmp_path: Path, repository: str, pinned: str) -> None:
    """A file that may not be fetched is a problem of that line."""
    reference = f"git::{repository}?ref={COMMIT}"
    copy = tmp_path / "copy"
    copy.write_text("vars: {steps: 5}\nclusters: {lab: {provider: local}}\n")
    (tmp_path / "trainctl.yaml").write_text(
        f'extends: "{reference}"\njobs: {{a: {{cluster: lab, runtime: {{start_commands: ["${{{{ var.steps }}}}"]}}}}}}\n'
    )
    asked: list[PinnedFile] = []

    def fetch(file: PinnedFile) -> Path:
        asked.append(file)
        return copy

    fetched = build(read(tmp_path, fetch=fetch), provider_schema=lambda _: None)
    assert "cluster.lab" in map(str, fetched.resources)
    assert [file.name for file in asked] == [pinned]

    problem = refused(tmp_path, reference)
    assert (problem.code, str(problem.where)) == ("storage-failed", "trainctl.yaml:1:10")

    def unreachable(_: PinnedFile) -> Path:
        raise SourceError("connection refused")

    with pytest.raises(SourceError):
        read(tmp_path, fetch=unreachable)


def test_credentials_are_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    problem = refused(tmp_path, f"git::https://me:hunter22@git.example/a.git//d.yaml?ref={COMMIT}")
    assert problem.code == "credential"
    assert "hunter22" not in str(problem)
