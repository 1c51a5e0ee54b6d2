"""The cache of a manifest's desired state."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.projects.manifests import desired
from trainctl.desired.cache import ManifestCache, _has_only_projects, open_cache
from trainctl.desired.values import DesiredState, SecretSpec
from trainctl.errors import ManifestError
from trainctl.manifest import read
from trainctl.manifest.files import read_all_files
from trainctl.manifest.tree import ManifestNode
from trainctl.model.diagnostics import Diagnostic, warning
from trainctl.model.redaction import Redactor
from trainctl.operations.workspace import Workspace, WorkspaceSettings

MANIFEST = """\
vars: {lr: 1.0e-5}
secrets: {token: {from: env, name: TOKEN}}
weights: {data: {source: "file:./src"}}
jobs:
  sft:
    code: src
    weights: [data]
    matrix: {seed: [1, 2]}
    runtime: {start_commands: ["python train.py --lr ${{ var.lr }}"], environment_variables: {T: {secret: token}}}
"""
PLUGINS = [("local", "trainctl_local")]


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """A directory with a manifest of a sweep."""
    directory = tmp_path / "project"
    (directory / "src").mkdir(parents=True)
    (directory / "trainctl.yaml").write_text(MANIFEST)
    return directory


def cache_of(
    directory: Path, plugins: list[tuple[str, str]] = PLUGINS, **variables: str
) -> ManifestCache:
    """The cache for the manifest as it is now."""
    home = directory.resolve().parent / "cache"
    return open_cache(home, directory, read_all_files(directory), variables, plugins)


def test_a_desired_state_is_cached_with_every_place(manifest: Path) -> None:
    state = desired(manifest, MANIFEST)
    cache_of(manifest).store(state)

    cached = cache_of(manifest).load(read_all_files(manifest))

    assert cached == state
    assert cached is not None
    for resource, other in zip(cached.resources.values(), state.resources.values(), strict=True):
        assert list(resource.attributes) == list(other.attributes)
        assert str(resource.where) == str(other.where)
        assert resource.where
        assert other.where
        assert [*(resource.where.lines or ())] == [*(other.where.lines or ())]
    assert str(cached.secrets["token"].where) == str(state.secrets["token"].where)


def test_whatever_a_desired_state_was_made_from_is_compared(manifest: Path) -> None:
    """A byte of a file, another file, a variable, an installed provider, the directory of code."""
    cache_of(manifest).store(desired(manifest, MANIFEST))
    files = read_all_files(manifest)

    assert cache_of(manifest, lr="2").load(files) is None
    assert cache_of(manifest, [*PLUGINS, ("ssh", "trainctl_local")]).load(files) is None
    (manifest / "more.trainctl.yaml").write_text("caches: {}\n")
    assert cache_of(manifest).load(read_all_files(manifest)) is None
    (manifest / "more.trainctl.yaml").unlink()
    assert cache_of(manifest).load(files) is not None
    (manifest / "src").rmdir()
    assert cache_of(manifest).load(files) is None
    (manifest / "src").mkdir()
    (manifest / "trainctl.yaml").write_text(MANIFEST + "# more\n")
    assert cache_of(manifest).load(read_all_files(manifest)) is None


def _read(directory: Path, cache: str) -> DesiredState | str:
    """The desired state of a directory, or its problems."""
    environ = {"XDG_CACHE_HOME": str(directory.parent / cache)}
    settings = WorkspaceSettings(directory, environ, Redactor(), lambda _: {})
    try:
        return Workspace(settings).desired
    except ManifestError as error:
        return "\n".join(map(repr, error.diagnostics))


@pytest.mark.parametrize(
    "changed",
    [
        "projects: {c: {labels: {z: 1, a: x}}}\njobs: {j: {project: a, runtime: {start_commands: [x]}}}\n",
        "projects: {a: {}}\n",
        "project: {name: c}\n",
        "projects: {c: {lifecycle: {ignore_changes: [d]}}}\n",
        "vars: {v: x}\n",
        None,
    ],
)
def test_projects_of_unchanged_files_are_not_read_again(
    tmp_path: Path, changed: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state, its digest and its problems are those of reading everything."""
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "a.trainctl.yaml").write_text("projects:\n  a: {labels: {z: y, b: c}}\n  b:\n")
    (directory / "b.trainctl.yaml").write_text(
        "vars: {v: x}\nprojects: {d: {name: '${{ var.v }}'}}\n"
    )
    _read(directory, "first")
    (directory / "c.trainctl.yaml").write_text(changed or "vars: {w: x}\n")
    if changed is None:
        (directory / "b.trainctl.yaml").unlink()
    expected, parsed = _read(directory, "other"), list[str]()
    parse = read.parse_mapping

    def spy(data: bytes, name: str, problems: list[Diagnostic]) -> ManifestNode:
        parsed.append(name)
        return parse(data, name, problems)

    monkeypatch.setattr(read, "parse_mapping", spy)
    found = _read(directory, "first")
    assert found == expected
    if isinstance(found, DesiredState) and isinstance(expected, DesiredState):
        assert [*found.resources] == [*expected.resources]
        assert [str(item.where) for item in found.resources.values()] == [
            str(item.where) for item in expected.resources.values()
        ]
        assert found.digests == expected.digests
        assert "a.trainctl.yaml" not in parsed


@pytest.mark.parametrize(
    "text", ["# x\n", "  c: {name: '\\x24{{ var.v }}'}\n", "\rjobs:\n", "\u2028"]
)
def test_files_with_more_than_projects_are_read_again(text: str) -> None:
    data = f"projects:\n  a:\n{text}".encode()
    assert _has_only_projects(data) is (text == "# x\n")


def test_a_directory_has_the_name_that_is_used_now(
    manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(manifest)
    cache_of(Path()).store(desired(Path(), MANIFEST))

    cached = cache_of(manifest).load(read_all_files(manifest))

    assert cached is not None
    assert cached.directory == manifest


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"key": 1}', b"\xff"])
def test_a_damaged_cache_is_not_used(manifest: Path, damage: bytes) -> None:
    cache = cache_of(manifest)
    cache.store(desired(manifest, MANIFEST))
    cache.path.write_bytes(damage)
    assert cache.load(read_all_files(manifest)) is None


def test_a_manifest_with_warnings_is_not_cached(manifest: Path) -> None:
    state = desired(manifest, MANIFEST)
    cache_of(manifest).store(replace(state, warnings=(warning("odd", code="x"),)))
    assert not cache_of(manifest).path.exists()


@pytest.mark.parametrize(
    "spec",
    [
        SecretSpec("token", "command", "pass", "2", command=("pass", "show")),
        SecretSpec("token", "aws-secrets-manager", "a/b", region="us-west-2", key="k"),
        SecretSpec("token", "keyring", "me", service="hub", redact=False),
    ],
)
def test_origins_of_secrets_are_cached(manifest: Path, spec: SecretSpec) -> None:
    cache = cache_of(manifest)
    cache.store(replace(desired(manifest, MANIFEST), secrets={"token": spec}))
    cached = cache.load(read_all_files(manifest))
    assert cached is not None
    assert cached.secrets["token"] == spec


def test_a_cache_that_cannot_be_written_is_not_used(manifest: Path) -> None:
    (manifest.parent / "cache").write_text("a file is in the way")
    cache_of(manifest).store(desired(manifest, MANIFEST))
    assert cache_of(manifest).load(read_all_files(manifest)) is None


@pytest.mark.integration
def test_a_plan_loads_yaml_after_a_change_and_pydantic_for_an_error(manifest: Path) -> None:
    program = (
        "import sys\nfrom trainctl.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print(sorted({'pydantic', 'yaml'} & set(sys.modules)), file=sys.stderr)"
    )
    loaded = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", program, "plan"],
            cwd=manifest,
            env={"HOME": str(manifest.parent / "home"), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        )
        loaded.append(done.stderr.splitlines()[-1])
    assert loaded == ["['yaml']", "[]"]
