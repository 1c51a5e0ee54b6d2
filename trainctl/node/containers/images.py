"""Pull images: resolved when a run starts, then used by digest."""

from __future__ import annotations

import json
import re
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

from trainctl.base.failure import Failure
from trainctl.base.protocol.host import PullImageRequest, PullImageResponse
from trainctl.node.containers import image_store as sif
from trainctl.node.containers.engines import (
    APPTAINER,
    LocalEngine,
    ProgramResult,
    choose_engine,
    run_program,
    run_streaming,
)
from trainctl.node.containers.image_store import (
    ImageStore,
    LocalImage,
    RegistryCredentials,
    login_options,
)
from trainctl.node.system import layout as names
from trainctl.node.system.layout import Layout

Emit = Callable[[Dict[str, Any]], None]


def pull_image(request: PullImageRequest, emit: Emit) -> PullImageResponse:
    """Pull an image unless it is present by digest.

    Tags are resolved at every call, and only missing layers are fetched. If the registry is unreachable, a present
    image with that name is used and ``note`` reports this.
    """
    layout = Layout(request["root"])
    lineage = names.check_name(request["lineage"], "lineage")
    reference = validate_reference(request["image"])
    engine = choose_engine(request["engine"])
    before = find_image(layout, engine, reference)
    note = ""
    if before is None or not _is_final(engine, reference, before):
        login = RegistryCredentials(**request["login"]) if request["login"] else None
        result = _pull(layout, engine, reference, login, emit)
        if result.code != 0:
            if before is None or not is_registry_unreachable(result):
                raise pull_error(reference, result)
            note = f"registry is unreachable, using {reference} as present on the node"
    image = find_image(layout, engine, reference)
    if image is None:
        raise Failure("failed", f"image {reference} not found after {engine.name} pulled it")
    pulled = before is None or before.id != image.id
    stored = image.digest if engine.name == APPTAINER else image.id
    ImageStore(layout).mark(lineage, engine.name, stored, pulled=pulled)
    return {
        "engine": engine.to_json(),
        "id": image.id,
        "digest": image.digest,
        "workdir": image.workdir,
        "pulled": pulled,
        "note": note,
    }


def validate_reference(reference: Any) -> str:
    """Check that an engine can't mistake the name of an image for an option."""
    if not isinstance(reference, str) or not reference or reference.startswith("-"):
        raise Failure("request", f"invalid image name {reference!r}")
    return reference


def find_image(layout: Layout, engine: LocalEngine, reference: str) -> Optional[LocalImage]:
    """Find the image with this name on the node; None if there is none."""
    if engine.name == APPTAINER:
        return sif.find_sif(layout, reference)
    result = run_program((engine.name, "image", "inspect", reference))
    if result.code != 0:
        return None
    try:
        document = json.loads(result.out)[0]
        identity = "sha256:" + str(document["Id"]).rpartition(":")[2]
        digests = [str(repodigest) for repodigest in document.get("RepoDigests") or ()]
        workdir = str((document.get("Config") or {}).get("WorkingDir") or "")
    except (ValueError, LookupError, TypeError, AttributeError):
        raise Failure(
            "failed", f"unexpected output of {engine.name} for image {reference}"
        ) from None
    digest = _digest(reference, digests, str(document.get("Digest")))
    return LocalImage(identity, digest or identity, workdir)


def _digest(reference: str, digests: Sequence[str], own: str) -> str:
    """Digest of an image in its referenced repository; empty if there is none.

    An image may have several: prefer the referenced digest, else one that isn't the image's ``own``. ``own`` is the
    manifest of a local build, or of this platform next to the manifest list's digest.
    """
    repository, _, requested = reference.partition("@")
    if ":" in repository.rpartition("/")[2]:
        repository = repository.rpartition(":")[0]
    matching = [
        digest
        for name, _, digest in (repodigest.partition("@") for repodigest in digests)
        if name == repository or name.endswith(f"/{repository}")
    ]
    if requested in matching:
        return requested
    return min(
        (digest for digest in matching if digest != own), default=own if own in matching else ""
    )


def _is_final(engine: LocalEngine, reference: str, image: LocalImage) -> bool:
    """Check for a reference by digest or a local build, which no registry resolves."""
    if "@sha256:" in reference:
        return True
    is_local = reference.startswith("localhost/") or image.digest == image.id
    return is_local and engine.name != APPTAINER


def _pull(
    layout: Layout,
    engine: LocalEngine,
    reference: str,
    login: Optional[RegistryCredentials],
    emit: Emit,
) -> ProgramResult:
    emit({"line": ""})
    if engine.name == APPTAINER:
        return sif.pull_sif(
            layout, reference, login, lambda argv, more: run_streaming(argv, more, emit)
        )
    with login_options(layout, engine, login) as options:
        argv = (engine.name, *options.before, "pull", *options.after, reference)
        return run_streaming(argv, dict(options.variables), emit)


_REASONS: Tuple[Tuple[str, str, str], ...] = (
    (
        r"unauthorized|authentication required|access.{0,12} denied|denied:|incorrect username|403 forbidden|401 ",
        "the registry denied access",
        "Check the name; for a private image, set image.docker_auth.",
    ),
    (
        r"manifest unknown|manifest.{0,80} not found|name unknown|name invalid|repository.{0,80} not found|not found: ",
        "not found in the registry",
        "Check its name and tag.",
    ),
    (
        r"invalid reference format|invalid repository name",
        "invalid image name",
        "Write REGISTRY/NAME:TAG.",
    ),
    (
        r"no space left",
        "no space left on the node's disk",
        "Free some disk space, then try again.",
    ),
)
_UNREACHABLE = re.compile(
    r"no such host|name resolution|connection refused|connection reset|i/o timeout|timed? ?out|deadline exceeded|"
    r"network is unreachable|no route to host|unexpected eof|server misbehaving|50[0234] |too ?many ?requests",
    re.IGNORECASE,
)
_NOISE = re.compile(
    r"^(?:Error(?: response from daemon)?: |FATAL: +|time=\S+ level=\S+ msg=)|"
    r"(?:initializing source|unable to copy from source|reading manifest|pinging container registry) \S+(?: in \S+)?: ",
    re.IGNORECASE,
)
_MAX_COMPLAINT = 300


def is_registry_unreachable(result: ProgramResult) -> bool:
    """Check whether the registry could not be reached."""
    return _reason(result.complaint) is None and bool(_UNREACHABLE.search(result.complaint))


def pull_error(reference: str, result: ProgramResult) -> Failure:
    """Error for an image that can't be pulled: cause, hint and the engine's message."""
    message = _NOISE.sub("", result.complaint)[:_MAX_COMPLAINT]
    reason = _reason(result.complaint)
    if reason is not None:
        return Failure("failed", f"image {reference}: {reason[0]}", f"{reason[1]} ({message})")
    if is_registry_unreachable(result):
        summary = f"image {reference}: the node cannot reach the registry"
        return Failure("failed", summary, message)
    return Failure("failed", f"cannot pull image {reference}", message)


def _reason(complaint: str) -> Optional[Tuple[str, str]]:
    for pattern, summary, hint in _REASONS:
        if re.search(pattern, complaint, re.IGNORECASE):
            return summary, hint
    return None
