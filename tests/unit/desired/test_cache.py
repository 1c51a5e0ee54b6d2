"""What a manifest asked for, remembered."""

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


def memory(directory: Path, **variables: str) -> ManifestCache:
    """The memory of a directory's manifest as it is now."""
    return open_cache(
        directory.parent / "cache", directory, read_all_files(directory), variables, PLUGINS
    )


def test_the_wish_comes_back_as_it_was(manifest: Path) -> None:
    """With every value, and with the place and the line of each resource."""
    desired_state = desired(manifest, MANIFEST)
    memory(manifest).store(desired_state)

    recalled = memory(manifest).load(read_all_files(manifest))

    assert recalled == desired_state
    assert recalled is not None
    assert [list(one.attributes) for one in recalled.resources.values()] == [
        list(one.attributes) for one in desired_state.resources.values()
    ]
    places = {
        str(one.address): (str(one.where), one.where and one.where.lines)
        for one in desired_state.resources.values()
    }
    assert recalled is not None
    assert {
        str(one.address): (str(one.where), one.where and one.where.lines)
        for one in recalled.resources.values()
    } == places
    assert str(recalled.secrets["token"].where) == str(desired_state.secrets["token"].where)


def test_whatever_it_was_made_from_may_change(manifest: Path) -> None:
    """A byte of a file, another file, a variable, a provider that is installed: each means that the manifest is read."""
    memory(manifest).store(desired(manifest, MANIFEST))
    files = read_all_files(manifest)
    place = manifest.parent / "cache"

    assert memory(manifest, lr="2").load(files) is None
    assert (
        open_cache(place, manifest, files, {}, [*PLUGINS, ("ssh", "trainctl_local")]).load(files)
        is None
    )
    (manifest / "more.trainctl.yaml").write_text("caches: {}\n")
    assert memory(manifest).load(read_all_files(manifest)) is None
    (manifest / "more.trainctl.yaml").unlink()
    assert memory(manifest).load(files) is not None
    (manifest / "trainctl.yaml").write_text(MANIFEST + "# more\n")
    assert memory(manifest).load(read_all_files(manifest)) is None


def test_a_directory_is_called_as_it_is_this_time(
    manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From another working directory the same one has another relative name."""
    monkeypatch.chdir(manifest)
    open_cache(manifest.parent / "cache", Path(), read_all_files(Path()), {}, PLUGINS).store(
        desired(Path(), MANIFEST)
    )

    recalled = memory(manifest).load(read_all_files(manifest))

    assert recalled is not None
    assert recalled.directory == manifest


def test_code_that_is_gone_is_looked_at_again(manifest: Path) -> None:
    """Whether its directory exists is no matter of the manifest's text."""
    memory(manifest).store(desired(manifest, MANIFEST))

    (manifest / "src").rmdir()

    assert memory(manifest).load(read_all_files(manifest)) is None


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"key": 1}', b"\xff"])
def test_a_damaged_memory_is_none(manifest: Path, damage: bytes) -> None:
    """The manifest is read instead."""
    kept = memory(manifest)
    kept.store(desired(manifest, MANIFEST))
    kept.path.write_bytes(damage)

    assert kept.load(read_all_files(manifest)) is None


def test_what_must_be_looked_at_each_time_is_not_kept(manifest: Path) -> None:
    """Warnings are told every time."""
    desired_state = desired(manifest, MANIFEST)
    memory(manifest).store(replace(desired_state, warnings=(warning("odd", code="x"),)))

    assert not memory(manifest).path.exists()


def test_every_kind_of_secret_is_kept_whole(manifest: Path) -> None:
    """Where a value comes from, commands and regions with it; never a value, as nothing here knows one."""
    kinds = (
        SecretSpec("token", "command", "pass", "2", command=("pass", "show")),
        SecretSpec("token", "aws-secrets-manager", "a/b", region="us-west-2", key="k"),
        SecretSpec("token", "keyring", "me", service="hub", redact=False),
        SecretSpec("token", "file", "token.txt"),
    )
    for spec in kinds:
        kept = memory(manifest)
        kept.store(replace(desired(manifest, MANIFEST), secrets={"token": spec}))
        found = kept.load(read_all_files(manifest))
        assert found is not None
        assert found.secrets["token"] == spec


def test_a_cache_home_that_cannot_be_written_changes_nothing(manifest: Path) -> None:
    """Nothing is kept, and nothing is said."""
    (manifest.parent / "cache").write_text("a file is in the way")

    memory(manifest).store(desired(manifest, MANIFEST))

    assert memory(manifest).load(read_all_files(manifest)) is None


@pytest.mark.integration
def test_a_plan_of_an_unchanged_manifest_loads_no_checker(manifest: Path) -> None:
    """The second command finds what the first one kept: neither YAML nor the types of a manifest are loaded."""
    home = manifest.parent / "home"
    program = (
        "import sys\nfrom trainctl.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print(sorted({'pydantic', 'yaml'} & set(sys.modules)), file=sys.stderr)"
    )

    def loaded() -> str:
        done = subprocess.run(
            [sys.executable, "-c", program, "plan"],
            cwd=manifest,
            env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stderr.splitlines()[-1]

    assert [loaded(), loaded()] == ["['pydantic', 'yaml']", "[]"]
