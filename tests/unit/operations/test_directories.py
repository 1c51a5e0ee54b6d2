"""Where things are by default."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainctl.errors import UsageError
from trainctl.operations.directories import data_home, default_state_url, directory_of


@pytest.mark.parametrize(
    ("environ", "home"),
    [
        ({"XDG_DATA_HOME": "/data", "HOME": "/home/ana"}, "/data/trainctl"),
        ({"HOME": "/home/ana"}, "/home/ana/.local/share/trainctl"),
        ({"XDG_DATA_HOME": "", "HOME": "/home/ana"}, "/home/ana/.local/share/trainctl"),
    ],
)
def test_the_data_home_follows_xdg(environ: dict[str, str], home: str) -> None:
    """An empty variable counts as none, as the specification says."""
    assert data_home(environ) == Path(home)


def test_the_state_lies_beside_the_manifest(tmp_path: Path) -> None:
    """As a URL, whatever characters the directory's name has."""
    directory = tmp_path / "a b#c"
    url = default_state_url(directory)
    assert url.startswith("file:///")
    assert directory_of(url, "state") == directory / ".trainctl" / "state"


@pytest.mark.parametrize("url", ["s3://bucket/x", "file://host/x", "file:x", "/x", ""])
def test_only_directories_of_this_machine_are_understood(url: str) -> None:
    """Anything else is refused, with what it was for."""
    with pytest.raises(UsageError, match="mirror"):
        directory_of(url, "mirror")
