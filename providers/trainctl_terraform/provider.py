"""Provider of machines that a module creates; see DESIGN.md."""

from __future__ import annotations

import hashlib
import json
import os
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
from trainctl.plugin_api.project import ProjectAccess, ProviderRecords, UsesProject
from trainctl.plugin_api.provider import (
    Capabilities,
    ClusterSettings,
    Confirm,
    Node,
    Provider,
    ResourceStatus,
    SettingsProblem,
    Transport,
)
from trainctl_ssh.keys import (
    HOST_KEY,
    NEXT_HOST_KEY,
    data_directory,
    derive_host_key,
    ensure_login_key,
    locate_with_own_key,
    login_key_path,
)
from trainctl_ssh.machines import SshMachines, await_boot
from trainctl_ssh.user_data import LOGIN_USER, user_data
from trainctl_terraform.module import NodeModule, TerraformModule
from trainctl_terraform.plans import apply_reviewed, plan_creation, plan_deletion
from trainctl_terraform.program import TerraformProgram, find_program
from trainctl_terraform.settings import (
    TerraformSettings,
    find_problems,
    node_facts,
    read_output,
    read_settings,
    schema,
)
from trainctl_terraform.state_server import NodeStateDocument

_PARALLELISM = 16


@dataclass(frozen=True, slots=True)
class TerraformNode:
    """What is known of a node before its machine exists; ``keys`` are its public host keys by name."""

    key: str
    cluster: str
    name: str
    lineage: str
    settings: JsonObject
    keys: Mapping[str, str] = field(default_factory=dict)
    module: str = ""
    """Digest of the module that was applied completely."""

    @property
    def id(self) -> str:
        """Name of the node's directory in the records."""
        return node_id(self.key)


def node_id(key: str) -> str:
    """Return the name of a node's directory in the records."""
    return hashlib.sha256(key.encode()).hexdigest()[:32]


class TerraformProvider:
    """Machines that a module creates, each with a state of its own, reached over ssh."""

    name = "terraform"
    capabilities = Capabilities(
        creates_machines=True,
        costs_money=True,
        replacement_settings=("module", "version", "variables", "secrets", "gpus"),
    )

    def __init__(self) -> None:
        self._machines = SshMachines(self.name)
        self._project: ProjectAccess | None = None
        self._programs: SingleFlight[TerraformProgram] = SingleFlight()
        self._modules: SingleFlight[TerraformModule] = SingleFlight()
        self._changing: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def set_confirm(self, confirm: Confirm) -> None:
        self._machines.ssh.set_confirm(confirm)

    def set_project(self, project: ProjectAccess) -> None:
        self._project = project

    def close(self) -> None:
        self._machines.ssh.close()

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
        return self._located(record, self._node(record))

    def create(self, cluster: ClusterSettings, name: str, key: str) -> Node:
        """Returns when the machine has booted."""
        settings = read_settings(cluster.settings)
        record = self._record(key) or TerraformNode(
            key, cluster.name, name, cluster.lineage, cluster.settings
        )
        self._save(replace(record, settings=cluster.settings))
        with self._changing[record.id]:
            module = self._node_module(record, cluster.cancelled)
            reviewed = cluster.planned.get(key)
            if reviewed is not None:
                apply_reviewed(module, reviewed)
            elif not record.module or not self._exists(record):
                module.apply()
            if reviewed is not None or not record.module:
                made = replace(self._require(key), module=module.module.digest)
                self._save(made)
        return await_boot(
            cluster,
            settings.boot_timeout,
            lambda: self._node(self._require(key)),
            lambda node: self._with_own_key(self._require(key), node),
        )

    def plan_machines(
        self, cluster: ClusterSettings, keys: Mapping[str, str], ending: Sequence[Node]
    ) -> Sequence[MachinePlan]:
        def create(item: tuple[str, str]) -> MachinePlan | None:
            name, key = item
            before = self._record(key)
            record = before or TerraformNode(key, cluster.name, name, "", cluster.settings)
            module = self._node_module(record, Event())
            if before is not None and before.module == module.module.digest:
                return None
            return plan_creation(module, cluster.name, name, key)

        found = [self._record(node.key) for node in ending]
        deletions = [
            plan_deletion(record.name, record.key, self._state(record))
            for record in found
            if record
        ]
        created = each(create, [*keys.items()], _PARALLELISM)
        return [*deletions, *(plan for plan in created if plan is not None)]

    def find(self, cluster: ClusterSettings, key: str) -> Node | None:
        """Paths are empty if the machine doesn't respond, the address if its creation was interrupted."""
        record = self._record(key)
        if record is None or not self._exists(record):
            return None
        return self._try_to_locate(record)

    def list(self, cluster: ClusterSettings) -> Sequence[Node]:
        records = [item for item in self._all_records() if item.cluster == cluster.name]
        made = [item for item in records if _has_resources(self._state(item).load())]
        nodes = each(self._try_to_locate, made, _PARALLELISM)
        return sorted(nodes, key=lambda node: node.name)

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
        record = self._record(node.key)
        if record is not None:
            self._delete(record)

    def machines(self, cluster: ClusterSettings) -> Sequence[Machine]:
        """Those of the records, whatever the cluster."""

        def machine(record: TerraformNode) -> Machine:
            made = None
            with suppress(NodeError):  # of an invalid output
                made = read_output(self._state(record).load(), record.name)
            return Machine(
                record.id,
                record.cluster,
                record.name,
                record.lineage,
                record.key,
                "created" if made else "unknown",
                price_per_hour=made.get("price_per_hour") if made else None,
            )

        return each(machine, list(self._all_records()), _PARALLELISM)

    def end(self, machine: Machine) -> None:
        record = self._record(machine.key)
        if record is not None:
            self._delete(record)

    def transport(self, node: Node) -> Transport:
        return self._machines.transport(node)

    def _delete(self, record: TerraformNode) -> None:
        state = self._state(record)
        with self._changing[record.id]:
            module = self._node_module(record, Event())
            module.recover()
            if _has_resources(state.load()):
                module.apply(destroy=True)
            # The record goes last: what it names can always be deleted again.
            state.delete()
            self._records.delete([_record_path(record.key)])
            module.clean()
        if _login_name(record) not in map(_login_name, self._all_records()):
            self._login_path(record).unlink(missing_ok=True)

    def _exists(self, record: TerraformNode) -> bool:
        """Whether the machine exists, or was only partly created: then it has no output, or an invalid one."""
        state = self._state(record).load()
        if not _has_resources(state):
            return False
        try:
            if read_output(state, record.name) is None:
                return True
        except NodeError:
            return True
        _, plan = self._node_module(record, Event()).plan("-refresh-only")
        value = plan.get("planned_values", {}).get("outputs", {}).get("node", {}).get("value")
        return isinstance(value, dict) and bool(value.get("address"))

    def _node(self, record: TerraformNode) -> Node:
        """Return the node of a record, without paths; without an address unless its module has been applied."""
        settings = read_settings(record.settings)
        made = read_output(self._state(record).load(), record.name)
        node = Node(
            record.cluster,
            record.name,
            key=record.key,
            gpus=settings.gpus,
            details={"node": record.name, "lineage": _login_name(record)},
        )
        if made is None:
            return node
        host_key = made.get("host_key") or record.keys.get(HOST_KEY) or self._first_host_key(record)
        login: dict[str, Any] = {
            name: made[name] for name in ("user", "port", "jump") if name in made
        }
        return replace(
            node,
            address=made["address"],
            details={**node.details, **login, "host_key": " ".join(host_key.split()[:2])},
            **node_facts(settings, made),
        )

    def _with_own_key(self, record: TerraformNode, node: Node) -> Node:
        """Log in; a machine with a host key of user data gets its own."""
        made = read_output(self._state(record).load(), record.name)
        if made is None or "host_key" in made:
            return self._located(record, node)

        def save(name: str, value: str) -> None:
            now = self._require(record.key)
            self._save(replace(now, keys={**now.keys, name: value}))

        following = record.keys.get(NEXT_HOST_KEY, "")
        return locate_with_own_key(
            node, following, lambda each: self._located(record, each), self.transport, save
        )

    def _located(self, record: TerraformNode, node: Node) -> Node:
        return self._machines.locate(node, f"{record.id} {node.address} {node.details.get('port')}")

    def _try_to_locate(self, record: TerraformNode) -> Node:
        try:
            node = self._node(record)
        except NodeError:  # its output is invalid
            return Node(record.cluster, record.name, key=record.key)
        with suppress(NodeUnreachable):
            return self._located(record, node)
        return node

    def _first_host_key(self, record: TerraformNode) -> str:
        return derive_host_key(self._login(record), record.key).public

    def _login(self, record: TerraformNode) -> Any:
        return ensure_login_key(self._login_path(record))

    def _login_path(self, record: TerraformNode) -> Path:
        return login_key_path(os.environ, self.name, record.cluster, _login_name(record))

    def _node_module(self, record: TerraformNode, cancelled: Event) -> NodeModule:
        settings, state = read_settings(record.settings), self._state(record)
        login = self._login(record)
        host = derive_host_key(login, record.key)
        inputs = {
            "name": record.name,
            "key": record.id,
            "public_key": login.public,
            "user_data": user_data(LOGIN_USER, login, host, settings.boot_timeout),
        }
        module = self._module(settings, state, cancelled)
        return NodeModule(module, record.id, state, inputs, cancelled)

    def _module(
        self, settings: TerraformSettings, state: NodeStateDocument, cancelled: Event
    ) -> TerraformModule:
        """Return the module, initialised once per command."""
        self._opened.require_module(settings.module)
        program = self._programs.get(settings.program, lambda: find_program(settings.program))

        def initialised() -> TerraformModule:
            base = data_directory(os.environ, self.name)
            module = TerraformModule(program, settings, self._opened, base)
            module.initialise(state, cancelled)
            return module

        return self._modules.get(json.dumps(asdict(settings), sort_keys=True), initialised)

    @property
    def _opened(self) -> ProjectAccess:
        if self._project is None:
            raise NodeError("the terraform provider has no project")
        return self._project

    @property
    def _records(self) -> ProviderRecords:
        return self._opened.records()

    def _state(self, record: TerraformNode) -> NodeStateDocument:
        return NodeStateDocument(self._records, record.id)

    def _record(self, key: str) -> TerraformNode | None:
        data = self._records.get(_record_path(key)) if key else None
        return None if data is None else TerraformNode(**json.loads(data))

    def _require(self, key: str) -> TerraformNode:
        record = self._record(key)
        if record is None:
            raise NodeError("the node was deleted by another command")
        return record

    def _save(self, record: TerraformNode) -> None:
        self._records.put(_record_path(record.key), json.dumps(asdict(record)).encode())

    def _all_records(self) -> Iterator[TerraformNode]:
        for item in self._records.list("nodes"):
            if item.key.endswith("/node.json"):
                data = self._records.get(item.key)
                if data is not None:
                    yield TerraformNode(**json.loads(data))


def _record_path(key: str) -> str:
    return f"nodes/{node_id(key)}/node.json"


def _login_name(record: TerraformNode) -> str:
    """Return what names the login key: the attempt that makes the nodes, as plans are older than the lineage."""
    return record.key.rpartition("/")[0]


def _has_resources(state: Mapping[str, Any]) -> bool:
    return any(each.get("mode") == "managed" for each in state.get("resources") or ())


_: type[Provider] = TerraformProvider
__: type[ListsMachines | PlansMachines] = TerraformProvider
___: type[UsesProject] = TerraformProvider
