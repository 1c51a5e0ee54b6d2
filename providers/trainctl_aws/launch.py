"""Create one instance for a key: the first offer with capacity, and never a second instance."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from trainctl.base.filesystem.files import write_json
from trainctl.errors import NodeError, NodeUnreachable
from trainctl.plugin_api.machines import Offer
from trainctl_aws.account import (
    LIVE,
    AwsAccount,
    AwsError,
    Instance,
    find_instances,
    ignore_refusal,
    state_of,
    tag_filters,
)
from trainctl_aws.catalog import quota_of, quota_page
from trainctl_aws.request import MachineRequest
from trainctl_ssh.keys import data_directory
from trainctl_ssh.machines import wait

_CAPACITY = frozenset(
    [
        "InsufficientInstanceCapacity",
        "InsufficientHostCapacity",
        "InsufficientReservedInstanceCapacity",
        "InsufficientCapacity",
        "ReservationCapacityExceeded",
        "CapacityReservationNotActive",
        "InvalidCapacityReservationState",
        "InstanceLimitExceeded",
        "Unsupported",
        "UnsupportedOperation",
        "SpotMaxPriceTooLow",
        "MaxSpotInstanceCountExceeded",
        "VcpuLimitExceeded",
    ]
)
"""Errors after which the next offer is tried."""
_QUOTA = frozenset({"VcpuLimitExceeded", "MaxSpotInstanceCountExceeded", "InstanceLimitExceeded"})
_ROUND_SECONDS = 15.0
_MAX_ENDED = 20
"""How many earlier instances of a key may have ended."""
LAG_SECONDS = 60.0
"""How long a new instance may be missing from answers of EC2."""


class InstanceLauncher:
    """Launches the instance of one key."""

    def __init__(self, request: MachineRequest) -> None:
        self._request = request
        self._account, self._cluster = request.account, request.cluster
        self._settings, self._name, self._key = request.settings, request.name, request.key
        self._record = LaunchRecord(request.environ, request.key)
        self._failures: list[tuple[str, str, str]] = []
        """Type of each offer without capacity, the reason, and both in words."""

    def launch(self, offers: Sequence[Offer]) -> Instance:
        """Launch with the first offer that has capacity; NodeError without any."""
        cluster, most = self._cluster, self._settings.max_nodes
        filters = tag_filters(cluster=cluster.name, lineage=cluster.lineage)
        if most and (count := len(find_instances(self._account, filters))) >= most:
            raise NodeError(
                f"cluster {cluster.name} has {count} machines already, and max_nodes is {most}",
                "Delete machines, or raise max_nodes.",
            )
        started = self._record.read()
        if started is not None:
            instance = self._try(started[0], 0, started[1])
            if instance is not None:
                return self._only_one(instance)
        end, rounds = time.monotonic() + self._settings.capacity_timeout, 0
        while True:
            self._failures.clear()
            for offer in offers:
                instance = self._try(offer, rounds)
                if instance is not None:
                    return self._only_one(instance)
            if time.monotonic() + _ROUND_SECONDS > end:
                self._record.remove()
                raise self._no_capacity(offers)
            wait(self._cluster, _ROUND_SECONDS)
            rounds += 1

    def _try(self, offer: Offer, rounds: int, token: str = "") -> Instance | None:
        """Launch by an offer; None without capacity."""
        try:
            return self._launch(offer, rounds, token)
        except AwsError as error:
            if error.reason not in _CAPACITY:
                raise
            zone = f" in {offer.zone}" if offer.zone else ""
            failure = f"{offer.type}{zone}, {offer.availability}: {error.reason}"
            self._failures.append((offer.type, error.reason, failure))
            if not rounds:
                self._cluster.notify(f"{self._cluster.name}/{self._name}: no capacity: {failure}")
            return None

    def _launch(self, offer: Offer, rounds: int, token: str) -> Instance:
        """Return a live instance. A token may name an instance that has ended; the next one launches another."""
        for ended in range(_MAX_ENDED):
            token = token or self._token(offer, rounds, ended)
            self._record.write(offer, token)
            instance = self._await_visible(self._run_instance(offer, token))
            if state_of(instance) in LIVE:
                return instance
            reason = str((instance.get("StateReason") or {}).get("Code", ""))
            if reason.endswith("InsufficientInstanceCapacity"):
                raise AwsError(f"{instance['InstanceId']} ended: {reason}", "", reason[7:])
            token = ""
        raise NodeError(f"{_MAX_ENDED} machines for {self._name} have ended already")

    def _token(self, offer: Offer, rounds: int, ended: int) -> str:
        parts = (self._key, offer.type, offer.zone, offer.availability, str(rounds), str(ended))
        return hashlib.sha256("|".join(parts).encode()).hexdigest()

    def _run_instance(self, offer: Offer, token: str) -> str:
        """Send the request; return the instance ID, that of an earlier request with this token included."""
        parameters = self._request.parameters(offer, token)
        try:
            answer = self._account.ec2("run_instances", ClientToken=token, **parameters)
        except AwsError as error:
            if error.reason != "IdempotentParameterMismatch":
                raise
            # an earlier attempt launched it with other settings
            end = time.monotonic() + LAG_SECONDS
            while (instance := find_by_token(self._account, token)) is None:
                if time.monotonic() > end:
                    raise
                time.sleep(1.0)
            return str(instance["InstanceId"])
        return str(answer["Instances"][0]["InstanceId"])

    def _await_visible(self, instance_id: str) -> Instance:
        """Return the description of a new instance, which EC2 shows with a delay."""
        end = time.monotonic() + LAG_SECONDS
        while True:
            with ignore_refusal("InvalidInstanceID.NotFound"):
                found = self._account.ec2("describe_instances", InstanceIds=[instance_id])
                for page in found["Reservations"]:
                    return dict(page["Instances"][0])
            if time.monotonic() > end:
                raise NodeUnreachable(f"{instance_id} is not visible yet", "Apply again.")
            time.sleep(0.5)

    def _only_one(self, instance: Instance) -> Instance:
        """Keep the oldest instance of the key: a killed attempt may have used another offer."""
        first, *others = find_instances(self._account, tag_filters(key=self._key)) or [instance]
        if others:
            surplus = [other["InstanceId"] for other in others]
            self._account.ec2("terminate_instances", InstanceIds=surplus)
        self._record.remove()
        return first

    def _no_capacity(self, offers: Sequence[Offer]) -> NodeError:
        node = f"{self._cluster.name}/{self._name}"
        if not offers:
            return NodeError(
                f"no offers for {node}",
                "No zone has these instance types below max_price_per_hour. Change instance_types, zones or the limit.",
                code="machine-capacity",
            )
        tried = "\n".join(f"  {failure}" for *_, failure in self._failures)
        quotas = [name for name, reason, _ in self._failures if reason in _QUOTA]
        if not quotas:
            return NodeError(
                f"no capacity for {node} in {self._account.region}",
                f"Tried:\n{tried}\nAdd instance_types or zones, or set capacity_timeout to wait.",
                code="machine-capacity",
            )
        quota = quota_of(quotas[0], spot=self._settings.spot)
        page = quota_page(self._account.region, quota)
        return NodeError(
            f"quota reached in {self._account.region}: {quota.name} ({quota.code})",
            f"Tried:\n{tried}\nRequest an increase: {page}",
            code="machine-quota",
        )


class LaunchRecord:
    """File of a launch that EC2 has not confirmed: the token and offer, written before the request.

    A later attempt starts with that offer, and ``find`` waits until its instance is visible.
    """

    def __init__(self, environ: Mapping[str, str], key: str) -> None:
        name = hashlib.sha256(key.encode()).hexdigest()[:32]
        self._path = data_directory(environ, "aws") / "launches" / f"{name}.json"

    def write(self, offer: Offer, token: str) -> None:
        """Record the request that follows."""
        self._path.parent.mkdir(0o700, parents=True, exist_ok=True)
        write_json(self._path, {"offer": offer.to_json(), "token": token}, durable=False)

    def read(self) -> tuple[Offer, str] | None:
        """Return the recorded offer and token."""
        try:
            value = json.loads(self._path.read_text())
            return Offer.from_json(value["offer"]), str(value["token"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    @property
    def age(self) -> float:
        """Seconds since the request."""
        with suppress(FileNotFoundError):
            return time.time() - self._path.stat().st_mtime
        return float("inf")

    def remove(self) -> None:
        """Forget the request: its outcome is known."""
        self._path.unlink(missing_ok=True)


def find_by_key(account: AwsAccount, key: str, record: LaunchRecord) -> Instance | None:
    """Return the live instance of a key; wait for one that was launched less than a minute ago."""
    while True:
        found = find_instances(account, tag_filters(key=key))
        if found:
            return found[0]
        launched = record.read()
        if launched is None or record.age > LAG_SECONDS:
            return None
        if find_by_token(account, launched[1]) is not None:
            return None  # it has ended already
        time.sleep(1.0)


def find_by_token(account: AwsAccount, token: str) -> Instance | None:
    """Return the instance that a request launched, in any state."""
    filters = [{"Name": "client-token", "Values": [token]}]
    found = find_instances(account, filters, (*LIVE, "shutting-down", "terminated"))
    return found[0] if found else None
