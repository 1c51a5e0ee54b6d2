"""Plugins that are missing or can't be imported."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints

import pytest

from trainctl.errors import UsageError
from trainctl.plugin_api import discovery


def test_a_missing_provider_names_the_command_that_installs_it() -> None:
    """The package name is a convention, so that it is only an example."""
    with pytest.raises(UsageError, match="'cloud' is not installed") as raised:
        discovery.load_provider("cloud")
    assert "pip install trainctl-cloud" in raised.value.detail


@pytest.mark.parametrize("value", ["no_such_module:Provider", "json:NoSuchProvider"])
def test_a_provider_that_fails_to_import_is_reported(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """The error names the plugin and the cause."""
    points = EntryPoints([EntryPoint("cloud", value, discovery.PROVIDERS)])
    monkeypatch.setattr(discovery, "_entry_points", lambda group: points)
    with pytest.raises(UsageError, match=f"cannot import plugin 'cloud' from {value}"):
        discovery.load_provider("cloud")
