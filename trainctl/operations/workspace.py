"""Workspace: manifest, state, mirror, secrets, nodes, opened on first use.

Their modules are imported on first use, too: many commands need only the manifest or the state.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from trainctl.base.lazy_dataclass import dataclass, field
from trainctl.desired.cache import open_cache
from trainctl.desired.values import (
    VARIABLE_PREFIX,
    DesiredState,
    JobOverrides,
    SecretSpec,
)
from trainctl.errors import ManifestError, PermissionDenied, StorageError, TrainctlError, UsageError
from trainctl.manifest.files import manifest_files, read_all_files
from trainctl.model.address import Address, Kind, of_kind
from trainctl.model.redaction import Redactor
from trainctl.model.specs.location import CheckpointsLocation, StoreLocation
from trainctl.model.trust import Trust
from trainctl.operations.directories import (
    cache_home,
    default_state_url,
    directory_of,
    environment_url,
    output_files,
    own_directories,
    record_used_state,
)
from trainctl.plugin_api import discovery
from trainctl.plugin_api.provider import Confirm, Provider, never_confirm

if TYPE_CHECKING:
    from trainctl.base.retry import RetryPolicy
    from trainctl.encryption.keys import EncryptionKeys
    from trainctl.inputs.checkpoints import CheckpointAccess
    from trainctl.ledger.ledger import Ledger
    from trainctl.manifest.files import PinnedFile
    from trainctl.model.delivery import MirrorSite
    from trainctl.plan.values import Plan
    from trainctl.plugin_api.machines import ProjectAccess
    from trainctl.resources.agents import Agents, Services
    from trainctl.secrets.resolver import SecretResolver
    from trainctl.weights.mirrors import Mirror
    from trainctl.weights.resolution import SourceRequest


@dataclass(frozen=True, slots=True)
class WorkspaceSettings:
    """The project directory, environment, and options of the command line."""

    directory: Path
    environ: Mapping[str, str]
    redactor: Redactor
    plan_json: Callable[[Plan], Mapping[str, Any]]
    """The JSON of a plan, over which policies are checked."""
    state_url: str | None = None
    environment: str | None = None
    """Name of the state next to the main one."""
    variables: Mapping[str, str] = field(default_factory=dict)
    overrides: JobOverrides = JobOverrides()
    var_files: tuple[Path, ...] = ()
    trust_file: Path | None = None
    policy_file: Path | None = None
    offline: bool = False
    """Whether the manifest is read without the network."""
    untrusted: bool = False
    """Whether the author of the manifest is not trusted; see ``untrusted``."""
    read_only: bool = False
    """Whether nothing observed is recorded in the state."""


class Workspace:
    """Opens everything on first use, and closes it at the end; a context manager."""

    def __init__(
        self,
        settings: WorkspaceSettings,
        desired: DesiredState | None = None,
        notify: Callable[[str], None] = lambda _: None,
        confirm: Confirm = never_confirm,
    ) -> None:
        self.settings = settings
        self._desired = desired
        self.notify: Callable[[str], None] = notify
        """Prints a notice, such as a retry; views replace it while they draw."""
        self._confirm = confirm
        self._lock = threading.Lock()
        self._providers: dict[str, Provider] = {}
        self._ledgers: dict[str, Ledger] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        for url, ledger in self._ledgers.items():
            if ledger.has_appended:
                record_used_state(self.settings.environ, url, self.settings.directory)

    @cached_property
    def desired(self) -> DesiredState:
        """The desired state; ManifestError with all problems of the manifest."""
        if self._desired is not None:
            return self._desired
        settings = self.settings
        if settings.var_files or settings.untrusted or settings.overrides.values:
            return self._build(None)
        files = read_all_files(settings.directory)
        if not files:
            return self._build(None)
        cache = open_cache(
            cache_home(settings.environ),
            settings.directory,
            files,
            {
                **{n: v for n, v in settings.environ.items() if n.startswith(VARIABLE_PREFIX)},
                **settings.variables,
            },
            discovery.plugin_packages(discovery.PROVIDERS),
        )
        desired = cache.load(files)
        if desired is None:
            unchanged = cache.load(files, partly=True)
            # All problems are reported with the complete manifest; the name of one project is a default.
            if unchanged is not None and len(unchanged.resources) > 1:
                with contextlib.suppress(ManifestError):
                    desired = self._build(files, unchanged)
            if desired is None or desired.warnings:
                desired = self._build(files)
            cache.store(desired)
        return desired

    def _build(
        self, files: Mapping[str, bytes] | None, unchanged: DesiredState | None = None
    ) -> DesiredState:
        # Slow to import, and needed only after changes of the manifest.
        from trainctl.desired.build import build
        from trainctl.manifest.read import read

        providers = discovery.plugin_names(discovery.PROVIDERS)
        skipped = unchanged.manifest_files if unchanged else ()
        return build(
            read(self.settings.directory, files, self._fetch, skipped),
            variables=self.settings.variables,
            overrides=self.settings.overrides,
            var_files=self.settings.var_files,
            environ=self.settings.environ,
            provider_schema=lambda name: (
                self.provider(name).schema() if name in providers else None
            ),
            provider_check=lambda name, cluster: self.provider(name).check(cluster),
            providers=providers,
            unchanged=unchanged,
        )

    def _fetch(self, file: PinnedFile) -> Path:
        from trainctl.operations.manifests.extended_files import fetch

        settings = self.settings
        if settings.untrusted:
            raise PermissionDenied(
                f"{file.name} is not fetched for an untrusted plan: git would run",
                "Extend a file in the directory.",
                code="untrusted-path",
            )
        return fetch(file, settings.environ, self.trust, offline=settings.offline)

    @cached_property
    def ledger(self) -> Ledger:
        """The state of --state, of the manifest, or next to the manifest.

        Registers all readable secrets for redaction first.
        """
        with contextlib.suppress(TrainctlError):  # an invalid manifest declares no secrets
            self.secrets.register_known()
        return self.ledger_at(self.state_url)

    def ledger_at(self, url: str) -> Ledger:
        """Open the state of a URL, once."""
        from trainctl.ledger.ledger import Ledger
        from trainctl.operations import states

        if url not in self._ledgers:
            log = states.open_state(url, *self.state_access, self.settings.environ)
            if self.state_keys is not None:
                endpoint = self.desired.state.endpoint_url
                log = states.encrypted(log, self.state_keys, endpoint, self.settings.environ)
            with self._lock:
                self._ledgers.setdefault(url, Ledger(log, self.settings.redactor.redact))
        return self._ledgers[url]

    @cached_property
    def state_keys(self) -> EncryptionKeys | None:
        """The declared keys of states and plan files; None if the manifest declares none, or is invalid."""
        from trainctl.encryption.keys import EncryptionKeys

        with contextlib.suppress(TrainctlError):
            if self.desired.state.keys:
                return EncryptionKeys(self.desired.state.keys, self.secrets.value)
        return None

    def list_states(self, prefix: str) -> list[str]:
        """Return the URLs of the states in and below a directory or a prefix of a bucket."""
        from trainctl.operations import states

        return states.list_states(prefix, *self.state_access, self.settings.environ)

    @property
    def state_access(self) -> tuple[StoreLocation, SecretResolver]:
        """The manifest's state and secrets; none if the manifest is invalid."""
        try:
            return self.desired.state, self.secrets
        except TrainctlError:
            return StoreLocation(), self._secrets({})

    @property
    def state_url(self) -> str:
        """URL of the state of --state, of the manifest, or next to the manifest; with --env, of that environment."""
        url = self._state_url or default_state_url(self.settings.directory)
        name = self.settings.environment
        return environment_url(url, name) if name else url

    @cached_property
    def mirror(self) -> Mirror:
        """The mirror, located by ``mirrors``; the default one if the manifest is invalid."""
        from trainctl.model.delivery import MirrorSite
        from trainctl.operations import mirrors

        try:
            desired = self.desired
        except ManifestError:
            desired = None
        url = mirrors.mirror_url(desired, self.provider, self.settings.environ)
        endpoint = desired.mirror.endpoint_url if desired is not None else None
        return self._mirror_at(MirrorSite(url, mirrors.normalize_endpoint(endpoint)), desired)

    def mirror_site(self) -> MirrorSite:
        """Return the mirror's site, as far as known without a request."""
        from trainctl.model.delivery import MirrorSite
        from trainctl.operations import mirrors
        from trainctl.weights.mirrors import site_of

        if not self.mirror.on_a_host:
            return site_of(self.mirror)
        url = mirrors.mirror_url(self.desired, self.provider, self.settings.environ)
        recorded = self.ledger.state().resources.get
        with contextlib.suppress(TrainctlError):
            place = mirrors.locate_host(url, self.desired, self.provider, recorded, asks=False)
            return MirrorSite(place.url)
        return MirrorSite(unquote(url).rstrip("/"))

    def mirror_at(self, site: MirrorSite) -> Mirror:
        """Open another mirror; StorageError if it does not exist."""
        from trainctl.operations import mirrors

        if not mirrors.is_present(site.url):
            raise StorageError(f"no mirror on this machine: {site.url}")
        return self._mirror_at(site, self.desired)

    def _mirror_at(self, site: MirrorSite, desired: DesiredState | None) -> Mirror:
        from trainctl.operations import mirrors

        url = site.url
        if desired is not None and mirrors.is_in_bucket(url):
            declared = desired.mirror
            same_scheme = (declared.url or "").partition("://")[0] == site.scheme
            auth = declared.auth if same_scheme else None
            location = StoreLocation(url, site.endpoint or None, auth)
            return mirrors.bucket_mirror(location, self.secrets, self.settings.environ, self.retry)
        if not mirrors.is_on_host(url):
            from trainctl.store.objects import DirectoryObjects
            from trainctl.store.store import MirrorStore
            from trainctl.weights.mirrors import DirectMirror

            objects = DirectoryObjects(directory_of(url, "mirror"))
            return DirectMirror(MirrorStore(objects, self.retry))
        from trainctl.resources.host_mirror import HostMirror

        return HostMirror(
            self.agents,
            lambda: mirrors.locate_host(
                url, desired, self.provider, self.ledger.state().resources.get
            ),
            self.retry,
            self.settings.redactor.register,
        )

    @property
    def declared_mirror(self) -> Mirror:
        """The mirror; ManifestError if the manifest is invalid."""
        if manifest_files(self.settings.directory):
            _ = self.desired
        return self.mirror

    @cached_property
    def source_requests(self) -> dict[Address, SourceRequest]:
        """The sources of all weights in the manifest."""
        from trainctl.weights.resolution import SourceRequest

        return {
            weights.address: SourceRequest(weights.weights_spec, self.settings.directory)
            for weights in of_kind(self.desired.external, Kind.WEIGHTS)
        }

    @property
    def retry(self) -> RetryPolicy:
        """The retry policy for upstream, which prints each retry."""
        from trainctl.base.retry import RetryPolicy

        return RetryPolicy(notify=lambda text: self.notify(text))

    @cached_property
    def secrets(self) -> SecretResolver:
        """The manifest's secrets."""
        return self._secrets(self.desired.secrets)

    @cached_property
    def trust(self) -> Trust:
        """The user's trust and all policies; TrustError for an unsafe or invalid trust file."""
        from trainctl.operations.trust import load_trust

        settings = self.settings
        return load_trust(
            settings.environ, settings.directory, settings.trust_file, settings.policy_file
        )

    def _secrets(self, specs: Mapping[str, SecretSpec]) -> SecretResolver:
        from trainctl.secrets.resolver import SecretResolver

        settings = self.settings
        return SecretResolver(
            specs, settings.directory, settings.environ, settings.redactor, lambda: self.trust
        )

    @cached_property
    def checkpoints(self) -> CheckpointAccess:
        """The checkpoint store; the default one if the manifest is invalid."""
        from trainctl.inputs.checkpoints import CheckpointAccess

        try:
            settings, secrets = self.desired.checkpoints, self.secrets
        except ManifestError:
            settings, secrets = CheckpointsLocation(), self._secrets({})
        environ = self.settings.environ
        return CheckpointAccess(settings, secrets, environ, lambda: self.ledger.known())

    @cached_property
    def agents(self) -> Agents:
        """The nodes' agents."""
        from trainctl.resources.agents import Agents

        return self._stack.enter_context(
            Agents(self.provider, cache_home(self.settings.environ) / "bytecode")
        )

    def services(self, *, delete_checkpoints: bool = False) -> Services:
        """Return the services for handlers."""
        from trainctl.resources.agents import ProjectContext, Services

        projects = sorted(
            resource.name for resource in self.desired.resources if resource.kind is Kind.PROJECT
        )
        lineage = self.ledger.state().lineage
        directory = self.settings.directory
        context = ProjectContext(
            directory, lineage, self.owner, ", ".join(projects), self.excluded_paths
        )
        return Services(
            agents=self.agents,
            mirror=self.mirror,
            secrets=self.secrets,
            context=context,
            checkpoints=self.checkpoints,
            delete_checkpoints=delete_checkpoints,
        )

    @cached_property
    def excluded_paths(self) -> tuple[Path, ...]:
        """Paths that are never code: secrets, variables, trainctl's directories, its output."""
        settings = self.settings
        directories = own_directories(self.desired, self._state_url, settings.environ)
        var_files = ((settings.directory / path).resolve() for path in settings.var_files)
        extended = self.desired.extended
        # By name: a saved plan may be applied in another checkout.
        shared = [(settings.directory / extended.name).resolve()] if extended else []
        return (*self.secrets.files(), *var_files, *directories, *output_files(), *shared)

    @property
    def owner(self) -> str:
        """``user@host``, for display."""
        return f"{getpass.getuser()}@{os.uname().nodename}"

    def provider(self, name: str) -> Provider:
        """Load the provider of a name, once."""
        with self._lock:
            if name not in self._providers:
                provider = self._providers[name] = discovery.load_provider(name)
                provider.set_confirm(self._confirm)
                if hasattr(provider, "set_project"):
                    provider.set_project(self._project())
                self._stack.callback(provider.close)
            return self._providers[name]

    def _project(self) -> ProjectAccess:
        from trainctl.operations.records import SealedRecords
        from trainctl.plugin_api.machines import ProjectAccess

        directory = self.settings.directory.resolve()
        return ProjectAccess(
            directory=directory,
            records=lambda: SealedRecords(self),
            secret=lambda name: self.secrets.value(name),
            require_module=lambda source: self.trust.require_module(source, directory),
        )

    @cached_property
    def _state_url(self) -> str | None:
        """The declared URL; None if the manifest is invalid.

        Errors of fetching an extended file, which may declare it, are raised.
        """
        if self.settings.state_url:
            return self.settings.state_url
        try:
            return self.desired.state_url
        except (ManifestError, UsageError, StorageError):
            return None
