"""The cache of a manifest's desired state."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.projects.manifests import desired
from trainctl.desired.cache import ManifestCache, open_cache
from trainctl.desired.values import SecretSpec
from trainctl.manifest.files import read_all_files
from trainctl.model.diagnostics import warning

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
def test_a_plan_of_an_unchanged_manifest_loads_no_yaml(manifest: Path) -> None:
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
    assert loaded == ["['pydantic', 'yaml']", "[]"]
