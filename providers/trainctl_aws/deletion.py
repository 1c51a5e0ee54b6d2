"""Delete an instance, and with the last one of its cluster everything that the cluster has in the account."""

from __future__ import annotations

import time

from trainctl.errors import NodeError
from trainctl_aws.account import AwsAccount, ignore_refusal
from trainctl_aws.network import ClusterNetwork
from trainctl_aws.tags import LIVE, find_instances, state_of, tag_filters

_END_SECONDS = 900.0
_DETACH_SECONDS = 60.0
_PAUSE_SECONDS = 2.0


def delete_instance(account: AwsAccount, instance_id: str, cluster: str, lineage: str) -> None:
    """Terminate an instance and wait until it has ended; NodeError names what is left."""
    with ignore_refusal("InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"):
        account.ec2("terminate_instances", InstanceIds=[instance_id])
    _await_end(account, instance_id)
    delete_unused(account, cluster, lineage)


def delete_unused(account: AwsAccount, cluster: str, lineage: str) -> None:
    """Delete volumes and groups of a cluster without machines; NodeError names what is left."""
    in_cluster = tag_filters(cluster=cluster, lineage=lineage)
    if find_instances(account, in_cluster, (*LIVE, "shutting-down")):
        return
    left = [*_delete_volumes(account, cluster, lineage)]
    left += ClusterNetwork(account, cluster, lineage).delete()
    if left:
        raise NodeError(
            f"cannot delete everything of cluster {cluster} in {account.region}",
            "\n".join([*left, "Apply or destroy again, or delete them in the console."]),
        )


def _await_end(account: AwsAccount, instance_id: str) -> None:
    by_id, end = [{"Name": "instance-id", "Values": [instance_id]}], time.monotonic() + _END_SECONDS
    pause = 0.25
    while found := find_instances(account, by_id, (*LIVE, "shutting-down")):
        if time.monotonic() > end:
            raise NodeError(
                f"{instance_id} is still {state_of(found[0])} after {_END_SECONDS / 60:.0f} min",
                "Check its termination protection.",
            )
        time.sleep(pause)
        pause = min(2 * pause, 5.0)


def _delete_volumes(account: AwsAccount, cluster: str, lineage: str) -> list[str]:
    """Delete volumes that outlived their machines; return those that could not be deleted."""
    filters, end = tag_filters(cluster=cluster, lineage=lineage), time.monotonic() + _DETACH_SECONDS
    while True:
        found = account.ec2_items("describe_volumes", "Volumes", Filters=filters)
        volumes = [item for item in found if item["State"] not in ("deleting", "deleted")]
        if not volumes or time.monotonic() > end:
            return [f"{volume['VolumeId']} is {volume['State']}" for volume in volumes]
        for volume in volumes:
            if volume["State"] == "available":
                with ignore_refusal("InvalidVolume.NotFound", "VolumeInUse"):
                    account.ec2("delete_volume", VolumeId=volume["VolumeId"])
        time.sleep(_PAUSE_SECONDS)
