"""States: open, list, encrypt and query them, in a directory, in a bucket, or of another plugin."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from trainctl.base.lazy_dataclass import replace
from trainctl.base.parallel import each
from trainctl.desired.values import DesiredState
from trainctl.errors import StateMoved, TrainctlError, UsageError
from trainctl.manifest.files import manifest_files
from trainctl.model.specs.location import StoreLocation
from trainctl.operations.directories import ENVIRONMENTS, data_home, directory_of, used_states
from trainctl.operations.mirrors import BucketAccess, is_in_bucket
from trainctl.operations.workspace import Workspace
from trainctl.plugin_api import discovery
from trainctl.plugin_api.state import FIRST_BATCH, StateLog

if TYPE_CHECKING:  # slow to import
    from trainctl.base.objects import ObjectStore
    from trainctl.buckets.bucket import BucketObjects
    from trainctl.encryption.keys import EncryptionKeys
    from trainctl.encryption.sealed_log import SealedLog
    from trainctl.ledger.ledger import Ledger
    from trainctl.secrets.resolver import SecretResolver


LISTED_LEVELS = 4
"""Levels of directories below a prefix in which states are found."""

Directories = Callable[[str], tuple[str, ...]]


def open_state(
    url: str, declared: StoreLocation, secrets: SecretResolver, environ: Mapping[str, str]
) -> StateLog:
    """Open the state of a URL; ``declared`` is the manifest's, with credentials for its scheme."""
    objects = _objects(url, declared, secrets, environ) if is_in_bucket(url) else None
    return discovery.open_state(url, objects)


def open_objects(
    url: str, declared: StoreLocation, secrets: SecretResolver, environ: Mapping[str, str]
) -> ObjectStore:
    """Return the objects at the URL of a state; UsageError if it is neither a directory nor a bucket."""
    if is_in_bucket(url):
        return _objects(url, declared, secrets, environ)
    from trainctl.base.objects import is_key
    from trainctl.store.objects import DirectoryObjects

    return DirectoryObjects(directory_of(url, "state"), is_key)


def location_at(url: str, declared: StoreLocation) -> StoreLocation:
    """Return the location of a state, with the credentials of the declared one if they are for its scheme."""
    same_scheme = (declared.url or "").partition("://")[0] == url.partition("://")[0]
    return replace(
        declared if same_scheme else StoreLocation(encryption=declared.encryption), url=url
    )


def encrypted(
    log: StateLog, keys: EncryptionKeys, endpoint: str | None, environ: Mapping[str, str]
) -> SealedLog:
    """Encrypt a log, whose bucket is at an endpoint; remember its position on this machine."""
    from trainctl.encryption.sealed_log import PositionMemory, SealedLog

    # By machine, since homes are shared, and file systems show changes of other machines late.
    place = f"{os.uname().nodename} {endpoint or ''} {log.url}"
    name = hashlib.sha256(place.encode()).hexdigest()[:32]
    return SealedLog(log, keys, PositionMemory(data_home(environ) / "states" / f"{name}.json"))


def rekey(ledger: Ledger, *, accept_older: bool = False) -> str:
    """Encrypt the current state with the first declared key, and all that is appended later; return its id.

    Entries of before stay as they are. ``accept_older``: also if the state is older than it was seen.
    """
    from trainctl.encryption.sealed_log import SealedLog
    from trainctl.ledger.codec import state_to_json

    log = ledger.log
    if not isinstance(log, SealedLog):
        raise UsageError(
            "the manifest declares no encryption of the state",
            "Add state.encryption.keys to it; see the guide about encryption.",
        )
    log.admits_plain = True
    if accept_older:
        log.memory.forget()
    if ledger.state().lineage:
        ledger.note(f"encrypted with key {log.keys.newest}")
        state = ledger.state()
        log.snapshot(state.position, state_to_json(state, compact=True))
    return log.keys.newest


def list_states(
    prefix: str, declared: StoreLocation, secrets: SecretResolver, environ: Mapping[str, str]
) -> list[str]:
    """Return the URLs of the states in and below a directory or a prefix of a bucket, sorted."""
    base = prefix.rstrip("/")
    if is_in_bucket(base):
        objects = _objects(base, declared, secrets, environ)
        found = _states("", lambda path: tuple(objects.directories(path)), LISTED_LEVELS)
        return [f"{base}/{path}".rstrip("/") for path in found]
    root = directory_of(base, "state")
    found = _states("", lambda path: _directories(root / path), LISTED_LEVELS)
    return [(root / path).as_uri() for path in found]


def _states(path: str, directories: Directories, levels: int) -> Iterator[str]:
    names = directories(path)
    if FIRST_BATCH.partition("/")[0] in names:
        yield path
        if ENVIRONMENTS in names:
            yield from _states(f"{path}/{ENVIRONMENTS}".lstrip("/"), directories, 1)
    elif levels:
        for name in names:
            yield from _states(f"{path}/{name}".lstrip("/"), directories, levels - 1)


def _directories(path: Path) -> tuple[str, ...]:
    try:
        entries = sorted(os.scandir(path), key=lambda entry: entry.name)
    except OSError:
        return ()
    return tuple(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))


def _objects(
    url: str, declared: StoreLocation, secrets: SecretResolver, environ: Mapping[str, str]
) -> BucketObjects:
    from trainctl.buckets.bucket import STATE_RETRY, BucketObjects

    location = location_at(url, declared)
    access = BucketAccess(location, secrets, "state")
    return BucketObjects(
        access.url,
        location.endpoint_url,
        access.credential,
        STATE_RETRY,
        purpose="state",
        environ=environ,
        encryption=(location.server_side_encryption, location.kms_key_id),
        refusal=access.refusal,
    )


_AT_ONCE = 8
T = TypeVar("T")


def query_states(
    workspace: Workspace, query: Callable[[Workspace], T]
) -> dict[str, T | TrainctlError]:
    """Query every state below ``--state``; without it, those that this user has changed.

    Returns results and errors by URL, without states that moved. A state is opened with the
    manifest that this user changed it with, else with the credentials of this one.
    """
    settings = workspace.settings
    known = used_states(settings.environ)
    if settings.state_url:
        urls = workspace.list_states(settings.state_url)
    else:
        if manifest_files(settings.directory):
            known = {workspace.ledger.url: str(settings.directory), **known}
        urls = list(known)

    declared, secrets = workspace.state_access

    def of_state(url: str) -> T | TrainctlError:
        directory, desired = Path(known.get(url, "")), None
        if url not in known or not directory.is_dir():
            directory = settings.directory
            desired = DesiredState(directory, {}, secrets.specs, state=declared)
        at = replace(
            settings,
            directory=directory,
            state_url=url,
            environment=None,
            variables={},
            var_files=(),
        )
        try:
            with Workspace(at, desired, workspace.notify) as opened:
                return query(opened)
        except TrainctlError as problem:
            return problem

    replies = zip(urls, each(of_state, urls, _AT_ONCE), strict=True)
    return {url: reply for url, reply in replies if not isinstance(reply, StateMoved)}
