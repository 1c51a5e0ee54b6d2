"""Where things are by default."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainctl.errors import UsageError
from trainctl.model.specs.location import StoreLocation
from trainctl.operations.directories import (
    data_home,
    default_state_url,
    directory_of,
    environment_url,
    environments_url,
    split_environment,
)
from trainctl.operations.states import list_states


def test_the_data_home_follows_xdg() -> None:
    """An empty variable counts as none, as the specification says."""
    home = Path("/home/ana/.local/share/trainctl")
    assert data_home({"XDG_DATA_HOME": "/data", "HOME": "/home/ana"}) == Path("/data/trainctl")
    assert data_home({"HOME": "/home/ana"}) == home
    assert data_home({"XDG_DATA_HOME": "", "HOME": "/home/ana"}) == home


def test_the_state_is_next_to_the_manifest(tmp_path: Path) -> None:
    """As a URL, whatever characters the directory's name has."""
    url = default_state_url(tmp_path / "a b#c")
    assert url.startswith("file:///")
    assert directory_of(url, "state") == tmp_path / "a b#c" / ".trainctl" / "state"
    for other in ("s3://bucket/x", "file://host/x", "file:x", "/x", ""):
        with pytest.raises(UsageError, match="mirror"):
            directory_of(other, "mirror")


@pytest.mark.parametrize("main", ["file:///srv/state", "s3://bucket/team/demo"])
def test_an_environment_is_below_its_main_state(main: str) -> None:
    """Naming it again, or another from within it, is the same as from the main state."""
    url = environment_url(f"{main}/", "pr-12")

    assert url == environment_url(url, "pr-12") == f"{main}/envs/pr-12"
    assert environment_url(url, "next") == f"{main}/envs/next"
    assert split_environment(url) == (main, "pr-12")
    assert split_environment(main) == (main, "")


def test_environments_are_listed_with_their_main_state(tmp_path: Path) -> None:
    """And alone, below their own URL."""
    main = tmp_path.as_uri()
    for place in (".", "envs/pr-1", "envs/pr-2"):
        (tmp_path / place / "log").mkdir(parents=True)
    environments = [f"{main}/envs/pr-1", f"{main}/envs/pr-2"]

    assert list_states(main, StoreLocation(), None, {}) == [main, *environments]  # type: ignore[arg-type]
    assert list_states(environments_url(main), StoreLocation(), None, {}) == environments  # type: ignore[arg-type]
