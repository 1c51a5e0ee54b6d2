"""Replace the host key of the user data by one that is made on the machine and never leaves it.

Order: the machine makes the key; the tag ``next-host-key`` names it; sshd uses it; the tag ``host-key`` names it. After a
kill in between, the machine has one of the two keys of its tags.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from trainctl.errors import NodeError, NodeUnreachable
from trainctl.plugin_api.provider import Node, Transport
from trainctl.remote.responses import printable_tail
from trainctl_aws.account import AwsAccount
from trainctl_aws.tags import HOST_KEY, NEXT_HOST_KEY, Instance, tag_list, tags_of

_MAKE = """\
set -e; umask 077; key=/etc/ssh/trainctl_host_key
exec 9>$key.lock; flock 9
if [ ! -e $key.pub ]; then
    rm -f $key.new $key.new.pub
    ssh-keygen -q -t ed25519 -N '' -C '' -f $key.new
    mv $key.new $key; mv $key.new.pub $key.pub
fi
cut -d' ' -f1,2 $key.pub
"""
_USE = """\
set -e; umask 077; key=/etc/ssh/trainctl_host_key; used=/etc/ssh/ssh_host_ed25519_key
exec 9>$key.lock; flock 9
cp $key.pub $used.new.pub; cp $key $used.new
mv $used.new.pub $used.pub; mv $used.new $used; chmod 644 $used.pub
kill -HUP "$(cat /run/sshd.pid 2>/dev/null)" 2>/dev/null || systemctl reload ssh sshd 2>/dev/null || :
"""

Locate = Callable[[Node], Node]
"""Add the paths of a machine, which logs in; NodeUnreachable if its host key is another one."""


def locate_with_own_key(
    account: AwsAccount,
    instance: Instance,
    node: Node,
    locate: Locate,
    connect: Callable[[Node], Transport],
) -> Node:
    """Return the located node with the host key that its machine made."""
    tags = tags_of(instance)
    following = tags.get(NEXT_HOST_KEY, "")
    if following and following != tags.get(HOST_KEY):
        try:
            located = locate(_with_key(node, following))
        except NodeUnreachable as error:
            if error.code != "ssh-key-changed":
                raise
        else:
            _tag(account, instance, HOST_KEY, following)
            return located
    located = locate(node)
    if following and following == tags.get(HOST_KEY):
        return located
    transport = connect(node)
    try:
        following = _run(transport, node, _MAKE)
        _tag(account, instance, NEXT_HOST_KEY, following)
        _run(transport, node, _USE)
    finally:
        transport.close()
    _tag(account, instance, HOST_KEY, following)
    return _with_key(located, following)


def _with_key(node: Node, key: str) -> Node:
    return replace(node, details={**node.details, "host_key": key})


def _run(transport: Transport, node: Node, script: str) -> str:
    sudo = () if node.details.get("user") == "root" else ("sudo", "-n")
    output = transport.run([*sudo, "sh", "-c", script], timeout=60)
    if output.exit_code != 0:
        raise NodeError(
            f"cannot replace the host key of {node.id}",
            printable_tail(output.stderr) or "The login user must be allowed to use sudo.",
        )
    return output.stdout.decode().strip()


def _tag(account: AwsAccount, instance: Instance, name: str, value: str) -> None:
    account.ec2("create_tags", Resources=[instance["InstanceId"]], Tags=tag_list({name: value}))
