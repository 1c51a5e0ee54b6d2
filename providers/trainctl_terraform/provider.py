"""Provider of machines that a module creates; see DESIGN.md."""

from __future__ import annotations

import json
import shutil
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from threading import Event

from trainctl.base.json import JsonObject
from trainctl.base.lazy_dataclass import asdict, replace
from trainctl.base.parallel import each
from trainctl.errors import NodeError, PermissionDenied
from trainctl.model.single_flight import SingleFlight
from trainctl.plugin_api.machines import (
    ListsMachines,
    Machine,
    MachinePlan,
    PlansMachines,
    ProjectAccess,
)
from trainctl.plugin_api.provider import (
    Capabilities,
    ClusterSettings,
    Node,
    Provider,
    ResourceStatus,
    SettingsProblem,
)
from trainctl_ssh import keys
from trainctl_ssh.machines import PARALLELISM, SshMachines, planned_nodes
from trainctl_terraform.module import NodeModule, TerraformModule
from trainctl_terraform.settings import (
    PROVIDER,
    TerraformNode,
    TerraformSettings,
    find_problems,
)


class TerraformProvider(SshMachines):
    """Machines that a module creates, each with a state of its own, reached over ssh."""

    name = PROVIDER
    capabilities = Capabilities(
        creates_machines=True,
        costs_money=True,
        replacement_settings=("module", "version", "variables", "secrets", "gpus"),
    )

    def __init__(self) -> None:
        super().__init__()
        self._modules: SingleFlight[TerraformModule] = SingleFlight()
        self._plans: dict[tuple[str, TerraformModule], MachinePlan] = {}
        """Of nodes that were read."""
        self._deleting = threading.Lock()
        self._changing: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def set_project(self, project: ProjectAccess) -> None:
        """Set the project before anything else."""
        self._project = project

    def schema(self) -> JsonObject:
        return TerraformSettings.schema("module")

    def check(self, cluster: ClusterSettings) -> Sequence[SettingsProblem]:
        return tuple(find_problems(cluster))

    def plan(self, cluster: ClusterSettings) -> Sequence[Node]:
        settings = TerraformSettings.read(cluster.settings)
        return planned_nodes(cluster, settings, gpus=settings.gpus)

    def create(self, cluster: ClusterSettings, name: str, key: str) -> Node:
        """Returns when the machine has booted."""
        with self._changing[key]:
            record = self._known_or_new(cluster, name, key)
            reviewed, module = cluster.planned.get(key), self._module(record)
            self._save(replace(record, backend=module.module.backend))
            if reviewed is not None or not record.output or not self._exists(record):
                module.recover(cluster.cancelled)
                module.apply(cluster.cancelled, reviewed)
                module.output()  # raises if it isn't a machine

        def look() -> tuple[Node, str]:
            record = self._known_or_new(cluster, name, key)
            # The machine keeps a key that its module passes.
            following = record.output.get("host_key") or record.host_keys.get(keys.NEXT_HOST_KEY)
            return record.node(), following or ""

        def save_key(kind: str, value: str) -> None:
            record = self._known_or_new(cluster, name, key)
            self._save(replace(record, host_keys={**record.host_keys, kind: value}))

        return self.await_boot(cluster, look, save_key)

    def plan_machines(
        self, cluster: ClusterSettings, keys: Mapping[str, str], ending: Sequence[Node]
    ) -> Sequence[MachinePlan]:
        def create(name: str) -> MachinePlan:
            module = self._module(self._known_or_new(cluster, name, keys[name]))
            return self._plans.pop((keys[name], module.module), None) or module.plan()

        def end(node: Node) -> MachinePlan | None:
            record = self._record(node.key)
            module = self._module(record) if record else None
            return module.plan("-destroy") if module and module.has_resources() else None

        ended = [plan for plan in each(end, ending, PARALLELISM) if plan is not None]
        return [*ended, *each(create, [*keys], PARALLELISM)]

    def find(self, cluster: ClusterSettings, key: str) -> Node | None:
        """Paths are empty if the machine doesn't respond, the address if its creation was interrupted."""
        record = self._record(key)
        if record is None or (record.output and not self._exists(record)):
            return None
        return self.try_to_log_in(record.node())

    def read(self, node: Node) -> ResourceStatus:
        try:
            record = self._record(node.key)
            if record is None or not self._exists(record):
                return ResourceStatus.MISSING
        except (NodeError, PermissionDenied):
            return ResourceStatus.UNREACHABLE
        return ResourceStatus.PRESENT if node.root else ResourceStatus.UNREACHABLE

    def list_machines(self, cluster: ClusterSettings) -> Sequence[Machine]:
        """Those of the records, whatever the cluster."""
        return [
            Machine(each.node(), each.id, each.lineage, "created" if each.output else "unknown")
            for each in self._all_records()
        ]

    def delete(self, node: Node) -> None:
        record = self._record(node.key)
        if record is not None:
            with self._changing[node.key]:
                module = self._module(record)
                module.recover(Event())
                if module.has_resources():
                    module.apply(Event(), None, "-destroy")
                if module.module.backend:
                    with suppress(NodeError):  # it doesn't exist
                        module.module.run(["workspace", "delete", record.id], module.directory, {})
        # A deletion that was killed may have left files on this computer.
        record = record or TerraformNode(node.key, node.cluster)
        place = keys.data_directory(self.name) / "nodes" / record.id
        shutil.rmtree(place, ignore_errors=True)
        with self._deleting:
            others = {each.attempt for each in self._all_records() if each.key != node.key}
            if record.attempt not in others:
                record.login_path.unlink(missing_ok=True)
            # The record goes last: what it names can always be deleted again.
            self._project.records().delete([record.path("state"), record.path("node")])

    def _exists(self, record: TerraformNode) -> bool:
        """Whether the machine exists, or was only partly created."""
        module = self._module(record)
        if not module.has_resources():
            return False
        if not record.output:
            return True
        self._plans[record.key, module.module] = plan = module.plan()
        return not plan.node.details["gone"]

    def _module(self, record: TerraformNode) -> NodeModule:
        """Return the module of a node, initialised once per command."""
        module = self._modules.get(
            json.dumps([record.settings, record.backend], sort_keys=True),
            lambda: TerraformModule(record, self._project),
        )
        return NodeModule(module, self._project.records(), record)

    def _record(self, key: str) -> TerraformNode | None:
        data = self._project.records().get(TerraformNode(key).path("node")) if key else None
        return None if data is None else TerraformNode(**json.loads(data))

    def _known_or_new(self, cluster: ClusterSettings, name: str, key: str) -> TerraformNode:
        new = TerraformNode(key, cluster.name, name, cluster.lineage, cluster.settings)
        return replace(self._record(key) or new.with_inputs(), settings=cluster.settings)

    def _save(self, record: TerraformNode) -> None:
        self._project.records().put(record.path("node"), json.dumps(asdict(record)).encode())

    def _all_records(self) -> Iterator[TerraformNode]:
        records = self._project.records()
        for item in records.list("nodes"):
            if item.key.endswith("/node.json") and (data := records.get(item.key)):
                yield TerraformNode(**json.loads(data))


_: type[Provider] = TerraformProvider
__: type[ListsMachines | PlansMachines] = TerraformProvider
