"""Which mirror is used where the manifest says nothing, and what its URL means."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.projects.plans import at, desired, resource
from trainctl.desired.values import DesiredState
from trainctl.errors import UsageError
from trainctl.ledger.state import RecordedResource
from trainctl.model.specs.location import StoreLocation
from trainctl.operations.mirrors import locate_host, mirror_url
from trainctl.plugin_api.provider import ClusterSettings, Node, Provider
from trainctl_local import LocalProvider
from trainctl_ssh import SshProvider

PROVIDERS: dict[str, Provider] = {"ssh": SshProvider(), "local": LocalProvider()}
HOME = {"HOME": "/home/ana"}


def wish(*clusters: tuple[str, str], mirror: str | None = None) -> DesiredState:
    """A manifest with clusters, by name and provider, in this order."""
    resources = [
        resource(f"cluster.{name}", {"provider": kind, "hosts": ["gpu-0", "gpu-1"]}, provider=kind)
        for name, kind in clusters
    ]
    result = desired(*sorted(resources, key=lambda resource: resource.address))
    return replace(
        result, clusters=tuple(name for name, _ in clusters), mirror=StoreLocation(mirror)
    )


def recorded(node: Node | None, *forgotten: str) -> RecordedResource:
    """A cluster in the state."""
    nodes = [node.to_json()] if node else []
    return RecordedResource(
        at("cluster.lab"), "ssh", {"forgotten": list(forgotten)}, {"nodes": nodes}
    )


def host(name: str = "gpu-0") -> Node:
    """A node that was made."""
    cluster = ClusterSettings("lab", {"hosts": ["gpu-0", "gpu-1"]})
    planned = next(item for item in PROVIDERS["ssh"].plan(cluster) if item.name == name)
    return replace(planned, root="/root", data="/data", python="/python", key="key")


@pytest.mark.parametrize(
    ("state", "url"),
    [
        (None, "file:///home/ana/.local/share/trainctl/mirror"),
        (wish(), "file:///home/ana/.local/share/trainctl/mirror"),
        (wish(("here", "local")), "file:///home/ana/.local/share/trainctl/mirror"),
        (wish(("here", "local"), ("lab", "ssh"), ("big", "ssh")), "node://lab"),
        (wish(("lab", "ssh"), mirror="file:///m"), "file:///m"),
        (wish(("lab", "none-such")), "file:///home/ana/.local/share/trainctl/mirror"),
    ],
)
def test_the_first_cluster_of_hosts_keeps_it(state: DesiredState | None, url: str) -> None:
    """In the order of the manifest, and not of names; a directory here where there is none, or where the manifest says so."""
    assert mirror_url(state, PROVIDERS.__getitem__, HOME) == url


def test_a_place_is_on_the_first_host() -> None:
    """A node that was made is used as it was; the directory is the URL's, decoded, or nobody's choice."""
    known = {at("cluster.lab"): recorded(host())}
    result = wish(("lab", "ssh"))

    named = locate_host("node://lab/data/my%20mirror/", result, PROVIDERS.__getitem__, known.get)
    usual = locate_host("node://lab", result, PROVIDERS.__getitem__, known.get)

    assert (named.provider, named.node.id, named.path) == ("ssh", "lab/gpu-0", "/data/my mirror")
    assert usual.path is None
    assert usual.node.data == "/data"


def test_a_cluster_that_only_the_state_knows_is_found_there() -> None:
    """As after it left the manifest; without either it is an error that names it."""
    known = {at("cluster.lab"): recorded(host())}

    assert locate_host("node://lab/m", wish(), PROVIDERS.__getitem__, known.get).node == host()
    with pytest.raises(UsageError, match="cluster lab not found"):
        locate_host("node://lab/m", wish(), PROVIDERS.__getitem__, lambda address: None)
