"""Plugins are found by the entry points of the distributions on ``sys.path``, and imported when they are used."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainctl.errors import UsageError
from trainctl.plugin_api import discovery
from trainctl.plugin_api.discovery import PROVIDERS


@pytest.fixture(autouse=True)
def own_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """More folders on ``sys.path``, and nothing remembered before and after."""
    folders = [tmp_path / "first", tmp_path / "second", tmp_path / "absent"]
    monkeypatch.setattr(sys, "path", [*map(str, folders), *sys.path])
    discovery._all_entry_points.cache_clear()
    yield
    discovery._all_entry_points.cache_clear()


def install(folder: Path, distribution: str, points: str) -> None:
    """Put a distribution with entry points there."""
    directory = folder / f"{distribution}.dist-info"
    directory.mkdir(parents=True)
    (directory / "entry_points.txt").write_text(points)


def test_entry_points_are_read_as_pip_writes_them(tmp_path: Path) -> None:
    text = "[console_scripts]\nx = a:b\n\n# a note = 1\n[trainctl.providers]\nmoon = trainctl_moon:Moon [extra]\n"
    install(tmp_path / "first", "trainctl_moon-1.5", text)
    (tmp_path / "second" / "other-1.dist-info").mkdir(parents=True)

    assert ("moon", "trainctl_moon") in discovery.plugin_packages(PROVIDERS)
    assert discovery.plugin_versions(PROVIDERS)["moon"] == "1.5"
    assert "local" in discovery.plugin_names(PROVIDERS)


def test_a_plugin_is_imported_when_it_is_loaded(tmp_path: Path) -> None:
    install(tmp_path / "first", "moon-1", "[trainctl.providers]\nmoon = moon_module:make\n")
    (tmp_path / "first" / "moon_module.py").write_text("def make():\n    return 'the moon'\n")

    provider: object = discovery.load_provider("moon")

    assert provider == "the moon"


def test_a_plugin_may_be_an_attribute_of_a_class(tmp_path: Path) -> None:
    install(tmp_path / "first", "mars-1", "[trainctl.providers]\nmars = mars_module:Mars.make\n")
    text = "class Mars:\n    @staticmethod\n    def make():\n        return 'mars'\n"
    (tmp_path / "first" / "mars_module.py").write_text(text)

    provider: object = discovery.load_provider("mars")

    assert provider == "mars"


def test_the_first_copy_of_a_distribution_counts(tmp_path: Path) -> None:
    install(tmp_path / "first", "moon-2", "[trainctl.providers]\nmoon = moon_module:make\n")
    install(tmp_path / "second", "Moon-1", "[trainctl.providers]\nmoon = moon_module:make\n")

    assert discovery.plugin_versions(PROVIDERS)["moon"] == "2"


@pytest.mark.parametrize(
    ("name", "value", "code", "message"),
    [
        ("sun", "sun:make", "missing-provider", "provider plugin 'moon' is not installed"),
        ("moon", "absent_module:make", "missing-provider", "cannot import plugin 'moon' from"),
    ],
)
def test_what_cannot_be_loaded_says_why(
    tmp_path: Path, name: str, value: str, code: str, message: str
) -> None:
    install(tmp_path / "first", "x-1", f"[trainctl.providers]\n{name} = {value}\n")

    with pytest.raises(UsageError, match=message) as caught:
        discovery.load_provider("moon")

    assert caught.value.code == code


def test_two_packages_cannot_have_one_name(tmp_path: Path) -> None:
    for name in ("moon_a", "moon_b"):
        install(tmp_path / "first", f"{name}-1", "[trainctl.providers]\nmoon = m:make\n")

    with pytest.raises(UsageError, match="by several packages: moon-a and moon-b"):
        discovery.load_provider("moon")
