"""Default places, by the XDG base directories (https://specifications.freedesktop.org/basedir-spec/)."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

from trainctl.desired.values import DesiredState
from trainctl.errors import UsageError
from trainctl.model.address import Kind
from trainctl.model.specs.resource import CacheSpec, CacheTierSpec, DesiredResource
from trainctl.model.trust import Trust


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


def own_directories(
    desired: DesiredState, state_url: str | None, environ: Mapping[str, str]
) -> tuple[Path, ...]:
    """The directories in which trainctl keeps things, as far as they may be on this machine; links followed."""
    urls = (desired.mirror.url, desired.checkpoints.url, state_url)
    named = [_path(url) for url in urls if url and url.startswith(_FILE)]
    caches = [
        tier.dir
        for resource in desired.resources.values()
        for tier in _cache_settings(resource)
        if tier
    ]
    usual = (data_home(environ), cache_home(environ))
    return tuple(one.resolve() for one in (*usual, *named, *map(Path, filter(None, caches))))


def output_files() -> tuple[Path, ...]:
    """The files that this process itself writes its output to, as ``trainctl apply > apply.log`` has it; proc(5), /proc/self/fd."""
    found = []
    for number in (1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISREG(os.fstat(number).st_mode):
                found.append(Path(f"/proc/self/fd/{number}").readlink())
    return tuple(found)


def _cache_settings(resource: DesiredResource) -> tuple[CacheSpec | CacheTierSpec | None, ...]:
    """What may name a directory: a training cache itself, and the caches of weights of a cluster."""
    if resource.address.kind is Kind.CACHE:
        return (resource.cache_spec,)
    cache = resource.cluster_spec.cache if resource.address.kind is Kind.CLUSTER else None
    return (cache.node, cache.cluster) if cache else ()


_FILE = "file:///"


def default_state_url(directory: Path) -> str:
    """The state beside the manifest."""
    return (directory.absolute() / ".trainctl" / "state").as_uri()


def directory_of(url: str, what: str) -> Path:
    """The directory that a ``file:`` URL names; UsageError for another scheme."""
    if not url.startswith(_FILE):
        raise UsageError(
            f"{what} {url!r}: this version supports only file:///…",
            "Use a directory: file:///PATH.",
            code="unsupported",
        )
    return _path(url)


def _path(url: str) -> Path:
    """What a ``file:///`` URL names, written by people as it is or by programs in quotes; a name may hold ``?`` and ``#``."""
    return Path(unquote(url.removeprefix("file://")))


def load_trust(environ: Mapping[str, str], directory: Path, given: Path | None) -> Trust:
    """What the user's trust file allows, or the ``given`` one in its place; without any, nothing is allowed.

    The policies of the user's own hold in any case. TrustError where a file can't be relied upon.
    """
    usual = config_home(environ) / "trust.toml"
    chosen = _read_trust(given) if given is not None else None
    if chosen is not None and given is not None and given.resolve() == usual.resolve():
        return chosen
    own = _read_trust(usual, directory) if os.path.lexists(usual) else Trust(str(usual))
    if chosen is None:
        return own
    return replace(chosen, policies=(*own.policies, *chosen.policies))


def _read_trust(path: Path, outside: Path | None = None) -> Trust:
    from trainctl.manifest.trust_file import read_trust  # a parser, loaded only if there is a file

    return read_trust(path, outside=outside)
