"""Checkpoint stores and checkpoints to load in the specification of a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

from trainctl.base.lazy_dataclass import asdict
from trainctl.base.protocol.runs import CheckpointLoad
from trainctl.errors import PermissionDenied, TrainctlError
from trainctl.inputs.environment import file_name
from trainctl.ledger.state import Lookup, State, origin_of
from trainctl.model.address import Address, Kind
from trainctl.model.json_codec import to_json
from trainctl.model.run import RunRecord
from trainctl.model.specs.location import CheckpointsLocation
from trainctl.model.specs.runtime import CheckpointSelector
from trainctl.model.trust import SecretDestination
from trainctl.secrets.resolver import SecretResolver

ENVIRONMENT = "environment variables"
"""Name of the credential from the client's environment; invalid for declared secrets."""

_KEYS = {
    "AWS_ACCESS_KEY_ID": "aws_access_key_id",
    "AWS_SECRET_ACCESS_KEY": "aws_secret_access_key",
    "AWS_SESSION_TOKEN": "aws_session_token",
    "AWS_REGION": "aws_region",
}


class CheckpointAccess:
    """The manifest's checkpoint store, the credentials of any store of a run, and the recorded runs."""

    def __init__(
        self,
        settings: CheckpointsLocation,
        secrets: SecretResolver,
        environ: Mapping[str, str],
        state: Callable[[], State],
    ) -> None:
        self.state = state
        self._settings = settings
        self._secrets = secrets
        self._environ = environ

    def place(
        self, lookup: Lookup, address: Address, project: str, run: RunRecord
    ) -> dict[str, Any]:
        """Return the location of a new run's checkpoints, for its record."""
        folder = f"{_folder(lookup, project)}/{_job_folder(lookup, address)}"
        return {**self.location, "prefix": f"{folder}/{run.number}-{run.id}"}

    @property
    def location(self) -> dict[str, str | None]:
        """The store of new runs: ``{url, endpoint_url, secret}``."""
        settings = self._settings
        bucket = settings.url is not None and not settings.url.startswith("file:")
        return {
            "url": settings.url,
            "endpoint_url": self._endpoint if bucket else None,
            "secret": (settings.secret or ENVIRONMENT) if bucket else None,
        }

    @property
    def settings(self) -> dict[str, Any]:
        """The section ``checkpoints`` of the manifest."""
        return dict(to_json(self._settings))

    def values(self, place: Mapping[str, Any]) -> dict[str, str]:
        """Return the secrets of a store by name; raise TrainctlError if unavailable."""
        from trainctl.plugin_api.sources import SourceCredential

        secret = place.get("secret")
        if secret is None:
            return {}
        to = self._destination(place)
        if secret != ENVIRONMENT:
            return {secret: self._secrets.sent(secret, to)}
        self._require_trusted(place, to)
        values = {key: self._environ.get(name, "").strip() for name, key in _KEYS.items()}
        values["aws_region"] = values["aws_region"] or self._environ.get("AWS_DEFAULT_REGION", "")
        if not (values["aws_access_key_id"] and values["aws_secret_access_key"]):
            raise TrainctlError(
                f"no credential for {place['url']}",
                "Name a declared secret in checkpoints.auth, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
                code="missing-secret",
            )
        for key in ("aws_secret_access_key", "aws_session_token"):
            if values[key]:
                self._secrets.registered(SourceCredential(values[key], f"the environment's {key}"))
        return {ENVIRONMENT: json.dumps({key: value for key, value in values.items() if value})}

    def require_trust(self) -> None:
        """Raise PermissionDenied if the client's credential would go to an untrusted host."""
        if self.location["secret"] == ENVIRONMENT:
            self._require_trusted(self.location, self._destination(self.location))

    def _destination(self, place: Mapping[str, Any]) -> SecretDestination:
        from trainctl.secrets.destinations import bucket_destination

        return bucket_destination(str(place["url"]), place.get("endpoint_url"), self._environ)

    def _require_trusted(self, place: Mapping[str, Any], to: SecretDestination) -> None:
        if not to.given:
            raise PermissionDenied(
                f"the credential of the environment is not sent to {place['endpoint_url']}: only the manifest names this host",
                "Declare a credential under `secrets` and name it in checkpoints.auth, or set AWS_ENDPOINT_URL_S3.",
                code="untrusted-host",
            )

    @property
    def _endpoint(self) -> str | None:
        environ = self._environ
        default = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or None
        return self._settings.endpoint_url or default


def reference_of(
    load: CheckpointSelector, runs: Iterable[RunRecord], lookup: Lookup
) -> CheckpointLoad:
    """Return a checkpoint to start from, as in a run's specification.

    Checkpoints of a recorded job are those of its ``runs``: not of a job of that name in another state.
    """
    prefixes = [run.checkpoint_prefix for run in runs]
    reference = {
        **asdict(load),
        "project": _folder(lookup, load.project),
        "job": _job_folder(lookup, Address.parse(load.job)) if load.job else None,
        "runs": prefixes if load.job and not load.run else [],
    }
    return cast("CheckpointLoad", reference)


def loadable_runs(load: CheckpointSelector, state: State) -> Iterator[RunRecord]:
    """Yield the recorded runs whose checkpoints a selector may mean."""
    for address, job in {**state.forgotten, **state.resources}.items():
        same_project = address.kind is Kind.JOB and job.job_spec.project == load.project
        if str(address) == load.job or (load.job is None and (load.run or same_project)):
            runs = map(RunRecord.from_json, job.outputs.get("runs") or ())
            yield from (run for run in runs if run.store and load.run in (None, run.id))


def _folder(lookup: Lookup, project: str) -> str:
    return origin_of(lookup, Address(Kind.PROJECT, project)).name


def _job_folder(lookup: Lookup, job: Address) -> str:
    return file_name(origin_of(lookup, job))
