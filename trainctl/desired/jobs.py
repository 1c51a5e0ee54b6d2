"""Conversion of jobs to resources, with their inline weights and caches."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainctl.base.lazy_dataclass import dataclass, replace
from trainctl.desired.matrix import MatrixJob
from trainctl.desired.names import (
    DeclaredNames,
    ReferringJob,
    find_followed,
    loaded_jobs,
    resolve_dependencies,
    resolve_load_config,
)
from trainctl.desired.resources import build_resource, persisted_secrets, weights
from trainctl.desired.values import SecretSpec
from trainctl.manifest.check import path_text
from trainctl.manifest.tree import Path as ManifestPath
from trainctl.manifest.tree import scalar_text
from trainctl.model.address import NAME, Address, Kind, slug
from trainctl.model.delivery import MirrorSite
from trainctl.model.diagnostics import Diagnostic, Position, error, nearest, warning
from trainctl.model.json_codec import to_json
from trainctl.model.specs.checks import Lifecycle, SecretReference, converted
from trainctl.model.specs.job_spec import (
    KNOWN_ACCELERATORS,
    CodeSpec,
    Job,
    JobSpec,
    JobWeights,
    MatrixValue,
    SecretVersion,
)
from trainctl.model.specs.location import CheckpointsLocation
from trainctl.model.specs.resource import Cache, CacheSpec, DesiredResource
from trainctl.model.specs.runtime import (
    CACHE_DIRECTORIES,
    CheckpointSelector,
    LoadCheckpointSpec,
    RuntimeSpec,
)
from trainctl.model.specs.weights import InlineWeights, default_mount, is_source


@dataclass
class JobBuilder:
    """Creates the resources of jobs and caches, adding them to ``resources``."""

    directory: Path
    names: DeclaredNames
    secrets: dict[str, SecretSpec]
    store: CheckpointsLocation
    resources: dict[Address, DesiredResource]
    instances: Mapping[str, MatrixJob]
    declared: Mapping[str, Job]

    def __post_init__(self) -> None:
        self._of_matrix: dict[str, list[Address]] = {}
        for instance in self.instances.values():
            self._of_matrix.setdefault(instance.job, []).append(instance.address)
        only = next(iter(self.names.projects), "")
        self._projects = {
            self._address(job): slug(section.project) if section.project else only
            for job, section in self.declared.items()
        }
        self._saving = {
            self._address(job)
            for job, section in self.declared.items()
            if section.runtime.checkpointing_config.enabled
        }
        self._caches: dict[tuple[str | None, str], Address] = {}
        self.warnings: list[Diagnostic] = []

    def cache(self, name: str, section: Cache) -> None:
        """Add a declared cache: one per cluster for each project and for the team."""
        path: ManifestPath = ("caches", name)
        of_team = section.scope == "team"
        project = (
            None if of_team else self.names.chosen("project", section.project, (*path, "project"))
        )
        cluster = self.names.chosen("cluster", section.cluster, (*path, "cluster"))
        if section.dir is not None and not section.dir.startswith("/"):
            self.names.report_problem(
                "dir: expected an absolute directory",
                "Use for example /mnt/shared/cache.",
                (*path, "dir"),
                code="invalid-path",
            )
        if project == "" or not cluster:
            return
        first = self._caches.get((project, cluster))
        if first is not None:
            owner = "the team" if project is None else project
            self.names.report_problem(
                f"{first} is already the cache of {owner} on {cluster}",
                "Remove one of them.",
                path,
                code="duplicate-cache",
            )
            return
        self._add_cache(name, project, cluster, section, path)

    def job(self, name: str, section: Job) -> None:
        """Add a job, its inline weights, and its cache if none is declared."""
        path: ManifestPath = ("jobs", name)
        instance = self.instances.get(name)
        address = self._address(name)
        project = self.names.chosen("project", section.project, (*path, "project"))
        cluster = self.names.chosen("cluster", section.cluster, (*path, "cluster"))
        used = tuple(self._weights(name, section, path))
        self._check_mounts(section, used, path)
        referring = ReferringJob(address, project, self._projects, self._of_matrix)
        loading = resolve_load_config(
            section.runtime.load_checkpoint_config,
            referring,
            self.names,
            (*path, "runtime", "load_checkpoint_config"),
        )
        if followed := section.for_each_checkpoint:
            here = (*path, "for_each_checkpoint", "job")
            saving = find_followed(followed.job, referring, self._saving, self.names, here)
            if saving is not None:
                followed = replace(followed, job=str(saving))
                load = CheckpointSelector(self._projects[saving], str(saving), optional=True)
                loading = LoadCheckpointSpec(enabled=True, checkpoints=(load,))
        project_resource = self.resources.get(Address(Kind.PROJECT, project))
        project_name = project_resource.attributes["name"] if project_resource else project
        store = None  # of checkpoints; None if they are on the nodes, or if there are none
        if section.runtime.checkpointing_config.enabled or (loading and loading.enabled):
            url = self.store.url
            store = MirrorSite(url, self.store.endpoint_url or "") if url else None
        values = instance.values if instance else {}
        matrix = tuple(MatrixValue(name, scalar_text(value)) for name, value in values.items())
        job = converted(
            section,
            JobSpec,
            name=section.name if section.name != address.name else None,
            project=project,
            project_name=project_name if project_name != project else None,
            cluster=cluster,
            runtime=converted(section.runtime, RuntimeSpec, load_checkpoint_config=loading),
            weights=used,
            secrets=tuple(self._secrets_of(section, path)),
            persisted_secrets=tuple(persisted_secrets(section, self.secrets, self.store)),
            matrix=matrix or None,
            depends_on=section.depends_on or None,
            code=self._code(section, path),
            checkpoint_store=str(store) if store else None,
            for_each_checkpoint=followed,
        )
        self._check_accelerator(section, path)
        if section.max_parallel is not None and instance is None:
            self.names.report_problem(
                "max_parallel can only be used with 'matrix'",
                "Remove it: a job has at most one run at a time.",
                (*path, "max_parallel"),
                code="redundant-key",
            )
        depends_on = [weights.address for weights in used]
        depends_on += [Address(Kind.CLUSTER, cluster), Address(Kind.PROJECT, project)]
        depends_on += loaded_jobs(job.runtime, address, self._of_matrix)
        if section.runtime.cache_config.enabled and project and cluster:
            depends_on.append(self._cache_for(project, cluster, path))
            if (None, cluster) in self._caches:
                depends_on.append(self._caches[None, cluster])
        depends_on += resolve_dependencies(section.depends_on, path, self.names, self._of_matrix)
        self._add(address, cluster, job.to_attributes(), section.lifecycle, path, set(depends_on))

    def _address(self, name: str) -> Address:
        """Return the address of a job by its key in the tree."""
        instance = self.instances.get(name)
        return instance.address if instance else Address(Kind.JOB, name)

    def _weights(self, job: str, section: Job, path: ManifestPath) -> Iterator[JobWeights]:
        inline_count = 0
        instance = self.instances.get(job)
        listed: set[str] = set()
        for index, entry in enumerate(section.weights):
            here = (*path, "weights", index)
            if isinstance(entry, str) and not is_source(entry):
                if self.names.known("weights", entry, here) and entry in listed:
                    self.names.report_problem(
                        f"weights.{entry} is listed twice",
                        "Remove the duplicate.",
                        here,
                        code="duplicate-weights",
                    )
                listed.add(entry)
                address = Address(Kind.WEIGHTS, entry)
            else:
                numbered = instance.weights[index] if instance else (inline_count, None)
                number, key = numbered or (index, None)
                name = f"{instance.job if instance else job}-{number}"
                address = Address(Kind.WEIGHTS, name, key)
                if name in self.names.weights:
                    self.names.report_problem(
                        f"the address {address} of this source is already declared",
                        f"Rename the weights {name!r}, or declare this source under 'weights'.",
                        here,
                        code="duplicate-address",
                    )
                elif address not in self.resources and self._is_name(name, here):
                    source = InlineWeights(source=entry) if isinstance(entry, str) else entry
                    built = weights(address, source, Lifecycle(), here, self.names)
                    self.resources[address] = built
                inline_count += 1
            resource = self.resources.get(address)
            if resource is not None:
                spec = resource.weights_spec
                mount = spec.mount_location or default_mount(spec.source)
                yield converted(spec, JobWeights, address=address, mount_location=mount)

    def _check_mounts(self, section: Job, used: Sequence[JobWeights], path: ManifestPath) -> None:
        """Report mount locations that are equal or nested."""
        mounts: list[tuple[str, str, Position]] = []

        def add(location: str | None, label: str, *steps: str | int, enabled: bool = True) -> None:
            if location and enabled:
                mounts.append((location, label, self.names.place((*path, *steps))))

        for item in used:
            add(item.mount_location, str(item.address), "weights")
        for index, mount in enumerate(section.mounts):
            add(mount.mount_location, mount.host_path, "mounts", index)
        cache, checkpoints = section.runtime.cache_config, section.runtime.checkpointing_config
        steps = ("runtime", "cache_config", "mount_base_path")
        for name in CACHE_DIRECTORIES if cache.mount_base_path else ():
            place = f"{cache.mount_base_path}/{name}"
            add(place, "the training cache", *steps, enabled=cache.enabled)
        steps = ("runtime", "checkpointing_config", "checkpoint_path")
        location = checkpoints.checkpoint_path
        add(location, "the checkpoint directory", *steps, enabled=checkpoints.enabled)
        loading = section.runtime.load_checkpoint_config
        if loading:
            steps = ("runtime", "load_checkpoint_config", "download_folder")
            add(loading.download_folder, "loaded checkpoints", *steps, enabled=loading.enabled)
        outer, outer_label = "", ""
        for location, label, where in sorted(mounts, key=lambda mount: mount[0].split("/")):
            if not outer or not f"{location}/".startswith(f"{outer}/"):
                outer, outer_label = location, label
                continue
            same = f"{outer_label} and {label} have the same mount location {outer}"
            inside = f"{label} at {location} is inside {outer_label} at {outer}"
            self.names.problems.append(
                error(
                    same if outer == location else inside,
                    "Change one mount_location.",
                    address=f"job.{path[1]}",
                    where=where,
                    code="overlapping-mounts",
                )
            )

    def _secrets_of(self, section: Job, path: ManifestPath) -> list[SecretVersion]:
        environment = ("runtime", "environment_variables")
        used = {
            value.secret: (*path, *environment, variable, "secret")
            for variable, value in section.runtime.environment_variables.items()
            if isinstance(value, SecretReference)
        }
        if section.image is not None:
            references = _find_secrets(to_json(section.image), (*path, "image"))
            used.update((secret, here) for secret, here in references if secret not in used)
        versions: list[SecretVersion] = []
        for secret, here in sorted(used.items()):
            if self.names.known("secret", secret, here):
                spec = self.secrets.get(secret)
                versions.append(SecretVersion(secret, spec.version if spec else None))
        return versions

    def _code(self, section: Job, path: ManifestPath) -> CodeSpec:
        workspace = section.workspace
        if workspace.workspace_root is None:
            root = self._code_path(section.code, (*path, "code"))
        else:
            root = self._code_path(workspace.workspace_root, (*path, "workspace", "workspace_root"))
        external, excluded = (
            tuple(
                self._code_path(entry, (*path, "workspace", key, index))
                for index, entry in enumerate(getattr(workspace, key))
            )
            for key in ("external_dirs", "exclude_dirs")
        )
        return CodeSpec(root, external, excluded)

    def _code_path(self, code: str, here: ManifestPath) -> str:
        normal = posixpath.normpath(code)
        if normal.startswith(("/", "~")):
            self.names.report_problem(
                f"{path_text(here)}: expected a path relative to the manifest",
                "Use for example ./src.",
                here,
                code="invalid-path",
            )
        elif "exclude_dirs" not in here and not (self.directory / normal).is_dir():
            self.names.report_problem(
                f"{path_text(here)}: {normal} is not a directory",
                "Use the directory of the source code.",
                here,
                code="missing-code",
            )
        return normal

    def _check_accelerator(self, section: Job, path: ManifestPath) -> None:
        kind = (section.compute.accelerator or "").partition(":")[0]
        is_unknown = kind[:1].isalpha() and kind not in KNOWN_ACCELERATORS
        meant = nearest(kind, KNOWN_ACCELERATORS) if is_unknown else None
        if meant is not None:
            self.warnings.append(
                warning(
                    f"compute.accelerator: unknown type {kind!r}, did you mean {meant!r}?",
                    "The type must match what the hosts report.",
                    address=f"job.{path[1]}",
                    where=self.names.place((*path, "compute", "accelerator")),
                    code="unknown-accelerator",
                )
            )

    def _cache_for(self, project: str, cluster: str, path: ManifestPath) -> Address:
        declared = self._caches.get((project, cluster))
        if declared is not None:
            return declared
        name = f"{project}-{cluster}"
        address = Address(Kind.CACHE, name)
        if address in self.resources:
            self.names.report_problem(
                f"the address {address} of the cache of {project} on {cluster} is already used",
                f"Declare the cache: caches: {{NAME: {{project: {project}, cluster: {cluster}}}}}.",
                (*path, "runtime", "cache_config"),
                code="duplicate-address",
            )
            return address
        if self._is_name(name, path):
            self._add_cache(name, project, cluster, Cache(), path)
        return address

    def _add_cache(
        self, name: str, project: str | None, cluster: str, section: Cache, path: ManifestPath
    ) -> None:
        address = Address(Kind.CACHE, name)
        self._caches[project, cluster] = address
        depends_on = [Address(Kind.CLUSTER, cluster)]
        if project is not None:
            depends_on.append(Address(Kind.PROJECT, project))
        cache = converted(section, CacheSpec, project=project, cluster=cluster)
        self._add(address, cluster, cache.to_attributes(), section.lifecycle, path, depends_on)

    def _is_name(self, name: str, path: ManifestPath) -> bool:
        if NAME.fullmatch(name):
            return True
        self.names.report_problem(
            f"the name {name!r} is too long",
            "Shorten the names that it consists of.",
            path,
            code="name-too-long",
        )
        return False

    def _add(
        self,
        address: Address,
        cluster: str,
        attributes: Mapping[str, Any],
        section: Lifecycle,
        path: ManifestPath,
        depends_on: Iterable[Address],
    ) -> None:
        resource = self.resources.get(Address(Kind.CLUSTER, cluster))
        provider = resource.provider if resource else ""
        self.resources[address] = build_resource(
            address, provider, attributes, section, path, self.names, depends_on
        )


def _find_secrets(value: Any, path: ManifestPath) -> Iterator[tuple[str, ManifestPath]]:
    if isinstance(value, dict):
        if set(value) == {"secret"}:
            yield value["secret"], (*path, "secret")
        for key, entry in value.items():
            yield from _find_secrets(entry, (*path, key))
