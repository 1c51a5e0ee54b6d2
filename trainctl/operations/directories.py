"""Default directories (https://specifications.freedesktop.org/basedir-spec/)."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

from trainctl.base.lazy_pattern import compile_lazily
from trainctl.desired.values import DesiredState
from trainctl.errors import UsageError
from trainctl.model.address import Kind


def data_home(environ: Mapping[str, str]) -> Path:
    """Return the directory of the mirror and checkpoints."""
    return home(environ, "XDG_DATA_HOME", ".local/share")


def cache_home(environ: Mapping[str, str]) -> Path:
    """Return the directory of files that may be deleted at any time."""
    return home(environ, "XDG_CACHE_HOME", ".cache")


def home(environ: Mapping[str, str], variable: str, default: str) -> Path:
    """Return trainctl's directory below a base directory of the user."""
    base = environ.get(variable) or Path(environ.get("HOME", "~")).expanduser() / default
    return Path(base) / "trainctl"


def own_directories(
    desired: DesiredState, state_url: str | None, environ: Mapping[str, str]
) -> tuple[Path, ...]:
    """Return the resolved directories of mirror, checkpoints, state and caches."""
    urls = (desired.mirror.url, desired.checkpoints.url, state_url)
    declared = [_path(url) for url in urls if url and url.startswith(_FILE)]
    caches = [
        Path(tier.dir)
        for resource in desired.external.values()
        for tier in (
            (resource.cache_spec,)
            if resource.address.kind is Kind.CACHE
            else (resource.cluster_spec.cache.node, resource.cluster_spec.cache.cluster)
            if resource.address.kind is Kind.CLUSTER
            else ()
        )
        if tier and tier.dir
    ]
    defaults = (data_home(environ), cache_home(environ))
    return tuple(path.resolve() for path in (*defaults, *declared, *caches))


def output_files() -> tuple[Path, ...]:
    """Return the files that stdout and stderr are redirected to; proc(5)."""
    files = []
    for number in (1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISREG(os.fstat(number).st_mode):
                files.append(Path(f"/proc/self/fd/{number}").readlink())
    return tuple(files)


_FILE = "file:///"


def default_state_url(directory: Path) -> str:
    """Return the URL of the state next to the manifest."""
    return (directory.absolute() / ".trainctl" / "state").as_uri()


ENVIRONMENTS = "envs"
_ENVIRONMENT = compile_lazily(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def environments_url(main: str) -> str:
    """Return the URL below which the environments of a main state are."""
    return f"{main.rstrip('/')}/{ENVIRONMENTS}"


def environment_url(url: str, name: str) -> str:
    """Return the URL of an environment of a main state, or of the main state of another one."""
    if not _ENVIRONMENT.fullmatch(name):
        raise UsageError(
            f"--env {name!r}: not a name", "Use letters, digits and . _ -, for example pr-12."
        )
    return f"{environments_url(split_environment(url)[0])}/{name}"


def split_environment(url: str) -> tuple[str, str]:
    """Return the URL of the main state, and the name of the environment; empty for the main state."""
    main, slash, name = url.rstrip("/").rpartition(f"/{ENVIRONMENTS}/")
    return (main, name) if slash and "/" not in name else (url.rstrip("/"), "")


def used_states(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the directories of manifests by the state that this user changed with them.

    Leaves out states in directories that no longer exist.
    """
    from trainctl.base.filesystem.files import read_json

    used = read_json(data_home(environ) / "states.json") or {}
    return {
        url: str(directory)
        for url, directory in used.items()
        if not url.startswith(_FILE) or _path(url).is_dir()
    }


def record_used_state(environ: Mapping[str, str], url: str, directory: Path) -> None:
    """Remember a state and its manifest's directory; write errors are ignored."""
    from trainctl.base.filesystem.files import make_directory, write_json

    used, where = used_states(environ), str(directory.absolute())
    if used.get(url) != where:
        with contextlib.suppress(OSError):
            path = make_directory(data_home(environ)) / "states.json"
            write_json(path, {**used, url: where}, durable=False)


def directory_of(url: str, setting: str) -> Path:
    """Return the directory of a ``file:`` URL; UsageError for other schemes."""
    if not url.startswith(_FILE):
        raise UsageError(
            f"{setting} {url!r}: this version supports only file:///…",
            "Use a directory: file:///PATH.",
            code="unsupported",
        )
    return _path(url)


def _path(url: str) -> Path:
    """Return the path of a ``file:///`` URL, quoted or not."""
    return Path(unquote(url.removeprefix("file://")))
