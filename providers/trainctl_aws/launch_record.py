"""Launches that EC2 has not confirmed, and queries that wait for their instances."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from contextlib import suppress

from trainctl.plugin_api.offers import Offer
from trainctl_aws.account import AwsAccount
from trainctl_aws.keys import data_directory
from trainctl_aws.tags import LIVE, Instance, find_instances, tag_filters

LAG_SECONDS = 60.0
"""How long a new instance may be missing from answers of EC2."""


class LaunchRecord:
    """File of a launch that EC2 has not confirmed: the token and offer, written before the request.

    A later attempt starts with that offer, and ``find`` waits until its instance is visible.
    """

    def __init__(self, environ: Mapping[str, str], key: str) -> None:
        name = hashlib.sha256(key.encode()).hexdigest()[:32]
        self._path = data_directory(environ) / "launches" / f"{name}.json"

    def write(self, offer: Offer, token: str) -> None:
        """Record the request that follows."""
        self._path.parent.mkdir(0o700, parents=True, exist_ok=True)
        temporary = self._path.with_suffix(f".{time.monotonic_ns()}")
        temporary.write_text(json.dumps({"offer": offer.to_json(), "token": token}))
        temporary.replace(self._path)

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
