"""Discovery of plugins by entry points; they are imported only when used.

Entry points are read from ``*.dist-info/entry_points.txt`` on ``sys.path``, as
https://packaging.python.org/specifications/entry-points describes them: ``importlib.metadata`` parses the metadata of all
distributions as mail, which takes a twelfth of a plan.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache, reduce
from importlib import import_module
from typing import Any

from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.objects import ObjectStore
from trainctl.errors import UsageError
from trainctl.plugin_api.provider import Provider
from trainctl.plugin_api.state import StateLog

PROVIDERS = "trainctl.providers"
STATE = "trainctl.state"


class EntryPoint(NamedTuple):
    """A plugin: where it is, and the distribution that has it."""

    group: str
    name: str
    value: str
    """Module, and after a colon the attribute in it, such as ``Class.method``."""
    distribution: str
    version: str

    def load(self) -> Any:
        """Import it."""
        module, _, attributes = self.value.partition(":")
        return reduce(getattr, filter(None, attributes.split(".")), import_module(module))


def plugin_names(group: str) -> list[str]:
    """Return the names of the installed plugins of a group."""
    return sorted(point.name for point in _entry_points(group))


def plugin_packages(group: str) -> list[tuple[str, str]]:
    """Return names and packages of the installed plugins of a group."""
    return sorted((point.name, re.split("[.:]", point.value)[0]) for point in _entry_points(group))


def plugin_versions(group: str) -> dict[str, str]:
    """Return the version of each plugin's distribution by name."""
    return {point.name: point.version for point in _entry_points(group)}


def load_provider(name: str) -> Provider:
    """Load a provider; raise UsageError if it is not installed."""
    provider: Provider = _load(PROVIDERS, name)()
    return provider


def open_state(url: str, objects: ObjectStore | None = None) -> StateLog:
    """Open the state log at a URL with the plugin of its scheme.

    ``objects``: the opened objects below the URL, for buckets.
    """
    plugin = _load(STATE, url.partition(":")[0])
    log: StateLog = plugin(url) if objects is None else plugin(url, objects)
    return log


def _load(group: str, name: str) -> Any:
    points = [point for point in _entry_points(group) if point.name == name]
    kind = group.removeprefix("trainctl.").removesuffix("s")
    if len(points) > 1:
        packages = sorted(point.distribution for point in points)
        raise UsageError(
            f"{kind} plugin {name!r} is installed by several packages: {' and '.join(packages)}",
            "Uninstall all but one of them.",
            code="plugin-conflict",
        )
    if not points:
        raise UsageError(
            f"{kind} plugin {name!r} is not installed",
            f"Installed: {', '.join(plugin_names(group)) or 'none'}. {installation_hint(name)}",
            code="missing-provider",
        )
    try:
        return points[0].load()
    except (ImportError, AttributeError, SyntaxError) as error:
        raise UsageError(
            f"cannot import plugin {name!r} from {points[0].value}: {error}",
            "Reinstall the package of the plugin with its dependencies.",
            code="missing-provider",
        ) from error


def installation_hint(name: str) -> str:
    """Return how to install a plugin, whose package is trainctl-NAME by convention."""
    return f"Install the package of the plugin, for example: pip install trainctl-{name}"


def _entry_points(group: str) -> list[EntryPoint]:
    return [point for point in _all_entry_points() if point.group == group]


@cache
def _all_entry_points() -> list[EntryPoint]:
    """Read the entry points of trainctl's groups; of two copies of a distribution, the first on ``sys.path`` counts.

    There are hundreds of files, and values of ``Path`` would take longer than reading them.
    """
    points: list[EntryPoint] = []
    seen = set()
    for folder in sys.path:
        names: list[str] = []
        with suppress(OSError):
            names = sorted(name for name in os.listdir(folder or ".") if name.endswith(_INFO))  # noqa: PTH208
        for name in names:
            distribution, _, version = name.removesuffix(_INFO).partition("-")
            if distribution.lower() not in seen:
                seen.add(distribution.lower())
                path = f"{folder or '.'}/{name}/entry_points.txt"
                points += _read_points(path, distribution.replace("_", "-"), version)
    return points


_INFO = ".dist-info"


def _read_points(path: str, distribution: str, version: str) -> Iterator[EntryPoint]:
    try:
        with open(path, encoding="utf-8") as stream:  # noqa: PTH123
            text = stream.read()
    except OSError:
        return
    group = ""
    for line in text.splitlines() if "[trainctl." in text else ():
        name, equals, value = line.partition("=")
        if equals and group.startswith("trainctl.") and not line.startswith(("#", ";")):
            yield EntryPoint(
                group, name.strip(), value.split("[")[0].strip(), distribution, version
            )
        elif line.startswith("["):
            group = line.strip(" []")
