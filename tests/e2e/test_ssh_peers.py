"""Hosts over real SSH that fetch the same weights from each other."""

from __future__ import annotations

import random
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.machines.sshd import SshUser, require_sshd, sshd
from tests.support.storage.mirrors import MemorySource, ingest, mirror_at
from tests.support.tiers import one_day_in
from trainctl.apply.step import ApplyStep
from trainctl.base.listing import CHUNK_BYTES
from trainctl.ledger.state import RecordedResource
from trainctl.model.action import Action
from trainctl.model.address import Address
from trainctl.model.specs.resource import ClusterSpec
from trainctl.plugin_api.provider import ClusterSettings
from trainctl.resources.agents import Agents, ProjectContext
from trainctl.resources.delivery import Delivery, RankAssignment
from trainctl.resources.mirror.access import DirectoryMirrorAccess
from trainctl_ssh import SshProvider

WEIGHTS = Address.parse("weights.model")


@one_day_in(5)
def test_one_copy_leaves_the_operators_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hosts have every byte; what came through the operator's connections is one copy, the rest came from the other."""
    require_sshd()
    store = mirror_at(tmp_path / "mirror")
    files = {"model.bin": random.Random(7).randbytes(3 * CHUNK_BYTES + 5), "config.json": b"{}"}
    source = MemorySource(files, piece=2**20)
    listing = ingest(store, source.resolve("memory://model", None, None), source)
    user = SshUser(tmp_path / "user")
    with ExitStack() as stack:
        hosts = [
            stack.enter_context(sshd(tmp_path / f"gpu-{n}", user, address=f"127.0.0.{n + 2}"))
            for n in range(2)
        ]
        user.known_hosts.write_text("".join(host.known for host in hosts))
        user.become(monkeypatch)
        provider = SshProvider()
        stack.callback(provider.close)
        agents = stack.enter_context(Agents(lambda name: provider))
        cluster = ClusterSettings("lab", {"hosts": [host.settings for host in hosts]})
        nodes = [provider.create(cluster, f"gpu-{n}", f"key-{n}") for n in range(2)]
        seats = [RankAssignment(node, agents.of("ssh", node), ClusterSpec("ssh")) for node in nodes]
        access = DirectoryMirrorAccess(agents, str(tmp_path / "mirror"), lambda token: token)
        home = ProjectContext(Path("/"), "lineage", "somebody", "project")
        recorded = RecordedResource(WEIGHTS, "", {"source": "file:./model"}, {})
        step = ApplyStep(
            Address.parse("job.sft"), Action.CREATE, "run-1", {}, None, (), None,
            lambda address: recorded, lambda *told: None, lambda address: 0.0,
        )  # fmt: skip

        delivery = Delivery(store, home, access)
        rows = delivery.deliver(step, seats, delivery.listings({str(WEIGHTS): listing.id}))

        for node in nodes:
            tree = Path(node.root) / "cache" / "trees" / listing.id
            assert {path.name: path.read_bytes() for path in tree.iterdir()} == files
    assert {row.path for row in rows} == {"peers"}
    assert sum(row.bytes_by_tier["mirror"] for row in rows) == listing.size
    assert sum(row.bytes_by_tier["peers"] for row in rows) == listing.size
