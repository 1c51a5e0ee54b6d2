"""Default places, by the XDG base directories (https://specifications.freedesktop.org/basedir-spec/)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from trainctl.errors import UsageError


def data_home(environ: Mapping[str, str]) -> Path:
    """Where trainctl keeps what must last: the mirror and checkpoints."""
    return _home(environ, "XDG_DATA_HOME", ".local/share")


def cache_home(environ: Mapping[str, str]) -> Path:
    """Where trainctl keeps what may vanish at any time."""
    return _home(environ, "XDG_CACHE_HOME", ".cache")


def config_home(environ: Mapping[str, str]) -> Path:
    """Where the user's own settings are: what manifests may do."""
    return _home(environ, "XDG_CONFIG_HOME", ".config")


def _home(environ: Mapping[str, str], variable: str, usual: str) -> Path:
    base = environ.get(variable)
    return (
        Path(base) if base else Path(environ.get("HOME", "~")).expanduser() / usual
    ) / "trainctl"


def default_state(directory: Path) -> str:
    """The state beside the manifest."""
    return (directory.absolute() / ".trainctl" / "state").as_uri()


def directory_of(url: str, what: str) -> Path:
    """The directory that a ``file:`` URL names; UsageError for another scheme."""
    if not url.startswith("file:///"):
        raise UsageError(
            f"{what} {url!r}: only file:///… is supported by this version",
            "Name a directory: file:///path.",
            code="unsupported",
        )
    return Path(unquote(urlsplit(url).path))
