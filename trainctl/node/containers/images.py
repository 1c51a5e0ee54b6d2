"""Images on a node: asked of the registry when a run starts, kept by the engine, named by digest from then on."""

from __future__ import annotations

import json
import re
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

from trainctl.base.failure import Failure
from trainctl.base.protocol.code import PullImageRequest, PullImageResponse
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
    """Have an image here and say which one its name means now. Failure says what the registry or the engine objects to.

    A name by digest that is here needs no registry. A tag is looked up every time, and only what is missing is fetched; where
    no registry answers, the image that is here under that name is taken, and ``note`` says so.
    """
    layout = Layout(request["root"])
    lineage = names.check_name(request["lineage"], "lineage")
    reference = validate_reference(request["image"])
    engine = choose_engine(request["engine"])
    before = find_image(layout, engine, reference)
    note = ""
    if before is None or not _is_final(engine, reference, before):
        login = RegistryCredentials(**request["login"]) if request["login"] else None
        answer = _pull(layout, engine, reference, login, emit)
        if answer.code != 0:
            if before is None or not is_registry_unreachable(answer):
                raise pull_error(reference, answer)
            note = f"the registry can't be reached, and {reference} is taken as it is here"
    found = find_image(layout, engine, reference)
    if found is None:
        raise Failure("failed", f"{engine.name} pulled {reference}, and has no such image")
    pulled = before is None or before.id != found.id
    stored = found.digest if engine.name == APPTAINER else found.id
    ImageStore(layout).mark(lineage, engine.name, stored, brought=pulled)
    return {
        "engine": engine.to_json(),
        "id": found.id,
        "digest": found.digest,
        "workdir": found.workdir,
        "pulled": pulled,
        "note": note,
    }


def validate_reference(reference: Any) -> str:
    """The name of an image, if an engine can't take it for an option."""
    if not isinstance(reference, str) or not reference or reference.startswith("-"):
        raise Failure("request", f"{reference!r} is no name of an image")
    return reference


def find_image(layout: Layout, engine: LocalEngine, reference: str) -> Optional[LocalImage]:
    """The image that the name means on this node; None if there is none."""
    if engine.name == APPTAINER:
        return sif.find_sif(layout, reference)
    answer = run_program((engine.name, "image", "inspect", reference))
    if answer.code != 0:
        return None
    try:
        document = json.loads(answer.out)[0]
        identity = "sha256:" + str(document["Id"]).rpartition(":")[2]
        digests = [str(repodigest) for repodigest in document.get("RepoDigests") or ()]
        workdir = str((document.get("Config") or {}).get("WorkingDir") or "")
    except (ValueError, LookupError, TypeError, AttributeError):
        raise Failure("failed", f"{engine.name} describes {reference} in an unknown form") from None
    digest = _digest(reference, digests, str(document.get("Digest")))
    return LocalImage(identity, digest or identity, workdir)


def _digest(reference: str, digests: Sequence[str], own: str) -> str:
    """Of the digests under which an image is known, that of the repository by which it was asked for; else empty.

    It may have several there: the one asked for, else one that isn't the image's ``own``. That is for what was built here a manifest
    that no registry has, and for what came by a list of platforms the list's, beside which is that of this platform.
    """
    repository, _, wanted = reference.partition("@")
    if ":" in repository.rpartition("/")[2]:
        repository = repository.rpartition(":")[0]
    known = [one.partition("@") for one in digests]
    fits = [
        digest for name, _, digest in known if name == repository or name.endswith(f"/{repository}")
    ]
    if wanted in fits:
        return wanted
    return min((fit for fit in fits if fit != own), default=own if own in fits else "")


def _is_final(engine: LocalEngine, reference: str, image: LocalImage) -> bool:
    """Whether no registry could say anything else: it is named by digest, or was made on this machine."""
    if "@sha256:" in reference:
        return True
    made_here = reference.startswith("localhost/") or image.digest == image.id
    return made_here and engine.name != APPTAINER


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
    with login_options(layout, engine, login) as how:
        argv = (engine.name, *how.before, "pull", *how.after, reference)
        return run_streaming(argv, dict(how.variables), emit)


_REASONS: Tuple[Tuple[str, str, str], ...] = (
    (
        r"unauthorized|authentication required|access.{0,12} denied|denied:|incorrect username|403 forbidden|401 ",
        "the registry refuses it",
        "Check the name; if it is private, image.docker_auth says who asks.",
    ),
    (
        r"manifest unknown|manifest.{0,80} not found|name unknown|name invalid|repository.{0,80} not found|not found: ",
        "the registry has no such image",
        "Check its name and tag.",
    ),
    (
        r"invalid reference format|invalid repository name",
        "that is no name of an image",
        "Write REGISTRY/NAME:TAG.",
    ),
    (
        r"no space left",
        "there is no space left for it on the node's disk",
        "Free some, then try again.",
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


def is_registry_unreachable(answer: ProgramResult) -> bool:
    """Whether no registry answered."""
    return _reason(answer.complaint) is None and bool(_UNREACHABLE.search(answer.complaint))


def pull_error(reference: str, answer: ProgramResult) -> Failure:
    """The error for an image that can't be pulled: what is wrong, what to do, and the engine's own words in short."""
    complaint = answer.complaint
    words = _NOISE.sub("", complaint)[:_MAX_COMPLAINT]
    found = _reason(complaint)
    if found is not None:
        return Failure("failed", f"image {reference}: {found[0]}", f"{found[1]} ({words})")
    if is_registry_unreachable(answer):
        summary = f"image {reference}: its registry can't be reached from the node"
        return Failure("failed", summary, words)
    return Failure("failed", f"image {reference} can't be pulled", words)


def _reason(complaint: str) -> Optional[Tuple[str, str]]:
    for pattern, summary, hint in _REASONS:
        if re.search(pattern, complaint, re.IGNORECASE):
            return summary, hint
    return None
