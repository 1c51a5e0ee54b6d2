"""Discovery of plugins by entry points; they are imported only when used."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoints, entry_points
from typing import Any

from trainctl.base.objects import ObjectStore
from trainctl.errors import UsageError
from trainctl.plugin_api.provider import Provider
from trainctl.plugin_api.state import StateLog

PROVIDERS = "trainctl.providers"
STATE = "trainctl.state"


def plugin_names(group: str) -> list[str]:
    """Return the names of the installed plugins of a group."""
    return sorted(point.name for point in _entry_points(group))


def plugin_packages(group: str) -> list[tuple[str, str]]:
    """Return names and packages of the installed plugins of a group."""
    return sorted((point.name, point.module.partition(".")[0]) for point in _entry_points(group))


def plugin_versions(group: str) -> dict[str, str]:
    """Return the version of each plugin's distribution by name; empty if unknown."""
    versions = ((point.name, point.dist) for point in _entry_points(group))
    return {name: dist.version if dist else "" for name, dist in versions}


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
        packages = sorted(point.dist.name if point.dist else point.value for point in points)
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


def _entry_points(group: str) -> EntryPoints:
    points: EntryPoints = _all_entry_points().select(group=group)
    return points


_all_entry_points = cache(entry_points)
"""All entry points, read once, as it takes a scan of all distributions."""
