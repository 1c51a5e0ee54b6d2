"""Provider of machines that a module creates; see DESIGN.md."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

from trainctl.base.json import JsonObject
from trainctl.base.lazy_dataclass import asdict, dataclass, field, replace
from trainctl.base.parallel import each
from trainctl.errors import NodeError, NodeUnreachable, PermissionDenied
from trainctl.model.single_flight import SingleFlight
from trainctl.plugin_api.machines import ListsMachines, Machine, MachinePlan, PlansMachines
from trainctl.plugin_api.project import ProjectAccess, ProviderRecords
from trainctl.plugin_api.provider import (
    Capabilities,
    ClusterSettings,
    Node,
    Provider,
    ResourceStatus,
    SettingsProblem,
)
from trainctl_ssh.keys import (
    HOST_KEY,
    NEXT_HOST_KEY,
    data_directory,
    derive_host_key,
    ensure_login_key,
    login_key_path,
)
from trainctl_ssh.machines import PARALLELISM, SshMachines
from trainctl_ssh.user_data import LOGIN_USER, user_data
from trainctl_terraform.module import (
    NodeModule,
    ProgramPlan,
    TerraformModule,
    apply_reviewed,
    review_plan,
)
from trainctl_terraform.settings import (
    find_problems,
    node_facts,
    read_output,
    read_settings,
    schema,
)
from trainctl_terraform.states import NodeState


@dataclass(frozen=True, slots=True)
class TerraformNode:
    """What is known of a node before its machine exists; ``inputs`` of its module, and public host ``keys`` by name."""

    key: str
    cluster: str
    name: str
    lineage: str
    settings: JsonObject
    inputs: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    is_complete: bool = False
    """Whether its module has been applied completely."""

    @property
    def id(self) -> str:
        """Name of the node's directory in the records."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:32]

    @property
    def attempt(self) -> str:
        """What names the login key: the attempt that makes the nodes, as plans are older than the lineage."""
        return self.key.rpartition("/")[0]

    @property
    def login_path(self) -> Path:
        """File of the login key."""
        return login_key_path(os.environ, TerraformProvider.name, self.cluster, self.attempt)

    def with_inputs(self) -> TerraformNode:
        """Set the inputs, which stay as they are, with the login key of this computer and a first host key."""
        login = ensure_login_key(self.login_path)
        host = derive_host_key(login, self.key)
        boot_timeout = read_settings(self.settings).boot_timeout
        inputs = {
            "name": self.name,
            "key": self.id,
            "public_key": login.public,
            "user_data": user_data(LOGIN_USER, login, host, boot_timeout),
        }
        return replace(self, inputs=inputs, keys={HOST_KEY: host.public})


class TerraformProvider(SshMachines):
    """Machines that a module creates, each with a state of its own, reached over ssh."""

    name = "terraform"
    capabilities = Capabilities(
        creates_machines=True,
        costs_money=True,
        replacement_settings=("module", "version", "variables", "secrets", "gpus"),
    )

    def __init__(self) -> None:
        super().__init__()
        self._modules: SingleFlight[TerraformModule] = SingleFlight()
        self._plans: dict[str, ProgramPlan] = {}
        """Of nodes that were read, by key."""
        self._deleting = threading.Lock()
        self._changing: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def set_project(self, project: ProjectAccess) -> None:
        """Set the project before anything else."""
        self._project = project

    def schema(self) -> JsonObject:
        return schema()

    def check(self, cluster: ClusterSettings) -> Sequence[SettingsProblem]:
        return tuple(find_problems(cluster))

    def plan(self, cluster: ClusterSettings) -> Sequence[Node]:
        settings = read_settings(cluster.settings)
        names = (f"{cluster.name}-{number}" for number in range(settings.nodes))
        # Equal details would mean the same machine.
        return [
            Node(cluster.name, name, gpus=settings.gpus, details={"node": name}) for name in names
        ]

    def locate(self, cluster: ClusterSettings, node: Node) -> Node:
        record = self._record(node.key)
        if record is None:
            raise NodeUnreachable(f"{node.id} does not exist")
        return self.log_in(self._node(record))

    def create(self, cluster: ClusterSettings, name: str, key: str) -> Node:
        """Returns when the machine has booted."""
        record = self._known_or_new(cluster, name, key)
        self._save(record)
        with self._changing[key]:
            reviewed = cluster.planned.get(key)
            if reviewed is not None or not record.is_complete or not self._exists(record):
                module = self._module(record)
                if reviewed is not None:
                    apply_reviewed(module, reviewed, cluster.cancelled)
                else:
                    module.apply(cluster.cancelled)
                self._save(replace(self._require(key), is_complete=True))

        def look() -> tuple[Node, str]:
            record = self._require(key)
            node, given = self._node(record), (self._output(record) or {}).get("host_key")
            # The machine keeps a key that its module passes.
            return node, node.details["host_key"] if given else record.keys.get(NEXT_HOST_KEY, "")

        def save_key(name: str, value: str) -> None:
            record = self._require(key)
            self._save(replace(record, keys={**record.keys, name: value}))

        return self.await_boot(cluster, look, save_key)

    def plan_machines(
        self, cluster: ClusterSettings, keys: Mapping[str, str], ending: Sequence[Node]
    ) -> Sequence[MachinePlan]:
        def create(item: tuple[str, str]) -> MachinePlan:
            name, key = item
            module = self._module(self._known_or_new(cluster, name, key))
            planned = self._plans.pop(key, None)
            if planned is None or planned.settings != module.module.settings:
                planned = module.plan()
            return review_plan(module, planned, cluster.name, name, key)

        def end(node: Node) -> MachinePlan | None:
            record = self._record(node.key)
            if record is None or not _has_resources(self._state(record).load()):
                return None
            module = self._module(record)
            return review_plan(module, module.plan("-destroy"), cluster.name, node.name, node.key)

        ended = [plan for plan in each(end, ending, PARALLELISM) if plan is not None]
        return [*ended, *each(create, [*keys.items()], PARALLELISM)]

    def find(self, cluster: ClusterSettings, key: str) -> Node | None:
        """Paths are empty if the machine doesn't respond, the address if its creation was interrupted."""
        record = self._record(key)
        if record is None or not self._exists(record):
            return None
        return self.try_to_log_in(self._node_or_blank(record))

    def list(self, cluster: ClusterSettings) -> Sequence[Node]:
        records = [item for item in self._all_records() if item.cluster == cluster.name]
        made = [item for item in records if _has_resources(self._state(item).load())]
        return self.list_nodes(map(self._node_or_blank, made))

    def read(self, node: Node) -> ResourceStatus:
        try:
            record = self._record(node.key)
            if record is None or not self._exists(record):
                return ResourceStatus.MISSING
        except PermissionDenied:
            return ResourceStatus.FORBIDDEN
        except NodeError:
            return ResourceStatus.UNREACHABLE
        return ResourceStatus.PRESENT if node.root else ResourceStatus.UNREACHABLE

    def delete(self, node: Node) -> None:
        self._delete(node.key, node.cluster)

    def machines(self, cluster: ClusterSettings) -> Sequence[Machine]:
        """Those of the records, whatever the cluster."""

        def machine(record: TerraformNode) -> Machine:
            node = self._node_or_blank(record)
            state, price = "created" if node.address else "unknown", node.price_per_hour
            identity = (record.id, record.cluster, record.name, record.lineage, record.key)
            return Machine(*identity, state, price_per_hour=price)

        return each(machine, list(self._all_records()), PARALLELISM)

    def end(self, machine: Machine) -> None:
        self._delete(machine.key, machine.cluster)

    def _delete(self, key: str, cluster: str) -> None:
        record = self._record(key)
        if record is not None:
            with self._changing[key]:
                module = self._module(record)
                module.recover(Event())
                if _has_resources(module.state.load()):
                    module.apply(Event(), destroy=True)
                module.state.delete()
        # A deletion that was killed may have left files on this computer.
        record = record or TerraformNode(key, cluster, "", "", {})
        place = data_directory(os.environ, self.name) / "nodes" / record.id
        shutil.rmtree(place, ignore_errors=True)
        with self._deleting:
            others = {each.attempt for each in self._all_records() if each.key != key}
            if record.attempt not in others:
                record.login_path.unlink(missing_ok=True)
            # The record goes last: what it names can always be deleted again.
            self._records.delete([_path(record)])

    def _exists(self, record: TerraformNode) -> bool:
        """Whether the machine exists, or was only partly created: then it has no output, or an invalid one.

        It doesn't if its address becomes null, or unknown since something was deleted elsewhere.
        """
        if not _has_resources(self._state(record).load()):
            return False
        try:
            made = self._output(record)
        except NodeError:
            return True
        if made is None:
            return True
        self._plans[record.key] = planned = self._module(record).plan()
        change = planned.document.get("output_changes", {}).get("node", {})
        after, unknown = change.get("after"), change.get("after_unknown")
        if unknown.get("address") if isinstance(unknown, dict) else unknown:
            drift = planned.document.get("resource_drift") or ()
            return not any("delete" in each["change"]["actions"] for each in drift)
        return isinstance(after, dict) and bool(after.get("address"))

    def _output(self, record: TerraformNode) -> dict[str, Any] | None:
        return read_output(self._state(record).load(), record.name)

    def _node(self, record: TerraformNode) -> Node:
        """Return the node of a record, without paths; without an address unless its module has been applied."""
        settings, made = read_settings(record.settings), self._output(record)
        details: dict[str, Any] = {"node": record.name, "lineage": record.attempt}
        if made is None:
            return self._blank(record, details)
        key = made.get("host_key") or record.keys[HOST_KEY]
        details |= {name: made[name] for name in ("user", "port", "jump") if name in made}
        return replace(
            self._blank(record, {**details, "host_key": " ".join(key.split()[:2])}),
            address=made["address"],
            gpus=settings.gpus,
            **node_facts(settings, made),
        )

    def _blank(self, record: TerraformNode, details: Mapping[str, Any]) -> Node:
        return Node(record.cluster, record.name, key=record.key, details=details)

    def _node_or_blank(self, record: TerraformNode) -> Node:
        with suppress(NodeError):  # its output is invalid
            return self._node(record)
        return self._blank(record, {})

    def _module(self, record: TerraformNode) -> NodeModule:
        """Return the module of a node, initialised once per command."""
        settings, state = read_settings(record.settings), self._state(record)
        self._project.require_module(settings.module)
        base = data_directory(os.environ, self.name)
        module = self._modules.get(
            json.dumps(asdict(settings), sort_keys=True),
            lambda: TerraformModule(settings, self._project, base, state),
        )
        return NodeModule(module, record.id, state, record.inputs)

    @property
    def _records(self) -> ProviderRecords:
        return self._project.records()

    def _state(self, record: TerraformNode) -> NodeState:
        return NodeState(self._records, record.id)

    def _record(self, key: str) -> TerraformNode | None:
        data = self._records.get(_path(TerraformNode(key, "", "", "", {}))) if key else None
        return None if data is None else TerraformNode(**json.loads(data))

    def _known_or_new(self, cluster: ClusterSettings, name: str, key: str) -> TerraformNode:
        new = TerraformNode(key, cluster.name, name, cluster.lineage, cluster.settings)
        return replace(self._record(key) or new.with_inputs(), settings=cluster.settings)

    def _require(self, key: str) -> TerraformNode:
        record = self._record(key)
        if record is None:
            raise NodeError("the node was deleted by another command")
        return record

    def _save(self, record: TerraformNode) -> None:
        self._records.put(_path(record), json.dumps(asdict(record)).encode())

    def _all_records(self) -> Iterator[TerraformNode]:
        for item in self._records.list("nodes"):
            if item.key.endswith("/node.json"):
                data = self._records.get(item.key)
                if data is not None:
                    yield TerraformNode(**json.loads(data))


def _path(record: TerraformNode) -> str:
    return f"nodes/{record.id}/node.json"


def _has_resources(state: Mapping[str, Any]) -> bool:
    return any(each.get("mode") == "managed" for each in state.get("resources") or ())


_: type[Provider] = TerraformProvider
__: type[ListsMachines | PlansMachines] = TerraformProvider
