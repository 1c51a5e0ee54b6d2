"""GPUs of a host, as the vendors' tools report them: which exist, which are in use, which a run claims, and how a job is shown its own."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

from trainctl.base.failure import Failure
from trainctl.base.protocol.spec import RunSpec
from trainctl.node.turns.claims import Claims, holder, is_held

_SECONDS = 30.0
"""How long a tool may take: the first call after a boot loads the driver."""

NVIDIA = "nvidia"
AMD = "amd"

VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""The variables that show a job its own GPUs."""

NO_GPUS = {"BT_NUM_GPUS": "0", **dict.fromkeys(VISIBLE, "")}
"""What hides every GPU from a program that has claimed none."""

_NO_DEVICES = 6
"""What ``nvidia-smi`` exits with where it finds nothing: NVML_ERROR_NOT_FOUND, with "No devices were found"."""

_NO_NAME = ("", "N/A", "0x0")
"""What ``rocm-smi`` says in place of something that a card hasn't got."""


class Gpu(NamedTuple):
    """One GPU. ``number`` counts in the order of the bus, ``id`` is its uuid; of one that is only declared, its number.

    ``memory_mib`` is in MiB, None if unknown.
    """

    number: int
    id: str
    name: str = ""
    memory_mib: Optional[int] = None
    driver: str = ""
    vendor: str = ""

    @property
    def claim(self) -> str:
        """The name of its claim."""
        return f"gpu/{self.id}"

    def is_a(self, kind: str) -> bool:
        """Whether an accelerator's name means it: all words of ``A100_40GB`` are in ``NVIDIA A100-PCIE-40GB``; all may be nameless."""
        words = {word for word in re.split(r"[^A-Z0-9]+", kind.upper()) if word}
        return not self.name or words <= set(re.split(r"[^A-Z0-9]+", self.name.upper()))


Reports = Callable[[], List[Gpu]]
"""Says which GPUs there are. Asking the host's tools may take seconds."""


def reported() -> List[Gpu]:
    """The GPUs that the host's tools report; none where there is no tool. Failure where one doesn't work."""
    found = _nvidia() if shutil.which("nvidia-smi") else []
    return found or (_amd() if shutil.which("rocm-smi") else [])


def users(gpus: Iterable[Gpu]) -> Dict[str, str]:
    """PID of the first process that computes on a GPU, by id; GPUs without one are left out."""
    present = list(gpus)
    vendors = {gpu.vendor for gpu in present}
    found: List[Tuple[str, str]] = []
    if NVIDIA in vendors:
        found += _nvidia_users()
    if AMD in vendors:
        found += _amd_users({gpu.number: gpu.id for gpu in present})
    return dict(reversed(found))


def usable(declared: Optional[int], reports: Reports = reported) -> List[Gpu]:
    """The GPUs that jobs may claim: the first ``declared`` of those reported, by index, or so many that nothing reports.

    None leaves it to the host. Failure where more are declared than there are.
    """
    if declared == 0:
        return []
    found = sorted(reports())
    if not found:
        return [Gpu(number, f"index-{number}") for number in range(declared or 0)]
    if declared is not None and declared > len(found):
        raise Failure(
            "missing", f"{declared} GPUs are declared for this node and it has {len(found)}"
        )
    return found[:declared]


def variables(claimed: Sequence[Gpu]) -> Dict[str, str]:
    """Variables that show a job its own GPUs and no others, by their numbers in the order of the bus."""
    numbers = ",".join(str(gpu.number) for gpu in claimed)
    found = {"BT_NUM_GPUS": str(len(claimed))}
    if claimed and claimed[0].vendor == AMD:
        return {**found, "HIP_VISIBLE_DEVICES": numbers}
    return {**found, "CUDA_VISIBLE_DEVICES": numbers, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def json_of(text: str) -> Any:
    """What ``rocm-smi --json`` answers, without warnings before and after it. ValueError if that is nothing."""
    return json.JSONDecoder().raw_decode(text[max(text.find("{"), 0) :])[0]


def _nvidia() -> List[Gpu]:
    """``nvidia-smi --help-query-gpu`` names the fields; units are MiB."""
    fields = "index,name,memory.total,driver_version,uuid"
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    found = []
    for line in _output(query, _NO_DEVICES).splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) != len(fields.split(",")) or not parts[0].isdigit():
            raise Failure("failed", f"nvidia-smi says {line[:200]!r}, which is not understood")
        memory = int(parts[2]) if parts[2].isdigit() else None
        found.append(Gpu(int(parts[0]), parts[4], parts[1], memory, parts[3], NVIDIA))
    return found


def _nvidia_users() -> Iterator[Tuple[str, str]]:
    query = ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader"]
    for line in _output(query, _NO_DEVICES).splitlines():
        gpu, _, pid = line.partition(",")
        if gpu.strip():
            yield gpu.strip(), pid.strip()


def _amd() -> List[Gpu]:
    """``rocm-smi``: an object of ``cardN`` objects, whose keys differ in case from version to version."""
    asked = ["--showuniqueid", "--showbus", "--showproductname", "--showmeminfo", "vram", "--json"]
    text = _output(["rocm-smi", *asked])
    try:
        cards = json_of(text)
    except ValueError:
        raise Failure("failed", "rocm-smi does not answer with JSON") from None
    said = {
        int(card[4:]): {name.lower(): str(value) for name, value in values.items()}
        for card, values in cards.items()
        if card.startswith("card") and card[4:].isdigit()
    }
    return [_card(number, said) for number in said]


def _card(number: int, cards: Mapping[int, Mapping[str, str]]) -> Gpu:
    said = cards[number]
    memory = said.get("vram total memory (b)", "")
    name = said.get("card series") or said.get("card model") or "AMD"
    size = int(memory) >> 20 if memory.isdigit() else None
    return Gpu(number, _card_id(number, cards), name, size, "", AMD)


def _card_id(number: int, cards: Mapping[int, Mapping[str, str]]) -> str:
    """Consumers' cards have no unique id, and partitions of one GPU all have the same: then it is known by where it is on the bus."""
    for key in ("unique id", "pci bus"):
        own = cards[number].get(key, "")
        if own not in _NO_NAME and sum(one.get(key) == own for one in cards.values()) == 1:
            return own
    return f"amd-{number}"


def _amd_users(ids: Mapping[int, str]) -> Iterator[Tuple[str, str]]:
    """By ``--showpidgpus``, which is the same text from ROCm 4.5 to 7, and nothing with ``--json``: a process, then the numbers of the cards on which it has queues.

    ``--showpids`` tells how many cards a process has, not which; ``amd-smi`` 5.6 told all cards for each.
    """
    pid = ""
    for line in _output(["rocm-smi", "--showpidgpus"]).splitlines():
        named = re.match(r"PID (\d+) is using \d+ DRM device", line)
        words = line.split()
        if named:
            pid = named.group(1)
        elif pid and words and all(word.isdigit() for word in words):
            yield from ((ids[int(word)], pid) for word in words if int(word) in ids)
        else:
            pid = ""


def _output(argv: List[str], nothing: int = 0) -> str:
    """What a tool writes; nothing if it exits with the code that says so. Failure for any other code."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise Failure("failed", f"{argv[0]} did not answer within {_SECONDS:.0f} s") from None
    except OSError as error:
        raise Failure("failed", f"{argv[0]} can't be started: {error.strerror}") from None
    if done.returncode not in (0, nothing):
        said = (done.stdout + done.stderr).decode(errors="replace").strip()
        raise Failure("failed", f"{argv[0]} exits with {done.returncode}: {said[:300]}")
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""


_FOREIGN_SECONDS = 5.0
"""How often it is asked who else computes on GPUs: each question starts a program."""

_NAMED = 2
"""How many processes are named: a line of ``status`` is short."""


class GpuRequest:
    """What a specification wants. Failure if the host has not as many, used or not.

    Who takes all that there are gets none where the host's tools can't say which that is: its job is ``hidden`` those that there may be.
    """

    def __init__(self, spec: RunSpec) -> None:
        self.hidden: Mapping[str, str] = {}
        kind, count = spec["gpus"]["kind"], spec["gpus"]["count"]
        try:
            found = usable(spec["gpus"]["declared"])
        except Failure:
            if count is not None:
                raise
            found, self.hidden = [], NO_GPUS
        self._present = [one for one in found if one.is_a(kind)]
        self.count = len(self._present) if count is None else count
        if self.count > len(self._present):
            what = f"{self.count} {kind} GPUs" if kind else f"{self.count} GPUs"
            raise Failure("missing", f"{what} are wanted and this node has {len(self._present)}")
        nodes = spec["nodes"]
        where = f" on {nodes[spec['rank']]}" if len(nodes) > 1 else ""
        self.words = f"waits for {self.count} of {len(self._present)} GPUs{where}"
        self.claims = [one.claim for one in self._present]
        self._refused: List[Gpu] = []
        self._looked = 0.0
        self._used: Dict[str, str] = {}

    @property
    def unclaimed(self) -> bool:
        """Whether enough of them are unclaimed."""
        return len(self._unclaimed()) >= self.count

    def free(self) -> Dict[str, Gpu]:
        """The unclaimed and unused ones by claim, if they are enough; else none."""
        found = self._unclaimed()
        in_vain = found == self._refused and time.monotonic() - self._looked < _FOREIGN_SECONDS
        if len(found) < self.count or in_vain:
            return {}
        self._used = users(self._present)
        self._looked = time.monotonic()
        free = {one.claim: one for one in found if one.id not in self._used}
        if len(free) < self.count:
            self._refused = found
            return {}
        return free

    @property
    def why(self) -> str:
        """The words, with the processes that have what is wanted: ``waits for 2 of 4 GPUs, taken by PID 4711``."""
        free = self._unclaimed()
        pids = [holder(gpu.claim) for gpu in self._present if gpu not in free]
        if len(free) >= self.count:  # otherwise it is unknown which processes compute on them
            pids += [
                int(self._used[gpu.id]) for gpu in free if self._used.get(gpu.id, "").isdigit()
            ]
        names = list(dict.fromkeys(f"PID {pid}" for pid in pids if pid))
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return f"{self.words}, taken by {', '.join(names[:_NAMED])}{more}" if names else self.words

    def take(self, claims: Claims) -> List[Gpu]:
        """Claim as many as are wanted; none if they can't be had."""
        free = self.free()
        return [free[name] for name in claims.take_some(free, self.count)]

    def _unclaimed(self) -> List[Gpu]:
        return [one for one in self._present if not is_held(one.claim)]
