"""Recognise checkpoints by the paths that trainers write: names, steps, series and pointer files.

The functions read names only. The path of a file decides which checkpoint it belongs to: the outermost directory that
states a step most clearly, or the file if it does so more clearly. It may get the name of a shorter file of its step.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import (
    Any,
    Collection,
    Dict,
    Iterable,
    List,
    Mapping,
    Optional,
    Sequence,
    Set,
    Tuple,
    TypeVar,
)

from trainctl.base.lazy_named_tuple import NamedTuple
from trainctl.base.lazy_pattern import compile_lazily

LOOSE = "."
"""Name of the checkpoint made of the files outside all directories."""

TRAINER_STATE = "trainer_state.json"

_LOG_PATTERN = (
    r"(?:^|/)events\.out\.tfevents[^/]*$|(?:^|/)[^/]*cache[^/]*/|\.(?:log|wandb|jsonl|csv|tsv|out|err|parquet|arrow"
    r"|html?|pdf|svg|png|jpe?g|gif|webp|mp[34]|webm|wav|flac)(?:\.gz)?$"
)
_LOG = compile_lazily(_LOG_PATTERN, re.IGNORECASE)
_LOG_OR_TEXT = compile_lazily(
    rf"{_LOG_PATTERN}|unfinished$|\.(?:txt|json|ya?ml|toml|md)(?:\.gz)?$|(?:^|/)(?:latest|last_checkpoint)$",
    re.IGNORECASE,
)
_TEMPORARY = compile_lazily(r"(?:^|[-_.])(?:tmp|incomplete|unfinished)(?:[-_.]|$)")
_SAFETENSORS_TEMPORARY = compile_lazily(r"\.tmp[A-Za-z0-9]{6}")

_STEP_WORDS = compile_lazily(
    "steps?|iters?|iteration|it|batch|ba|checkpoint|ckpt|updates?|snapshot"
)
_EPOCH_WORDS = compile_lazily("epoch|ep|round|model|weights")
_PARTS = "rank|version|v|run|seed|fold|trial|part|shard|process|worker|gpu|node"
_PART_WORDS = compile_lazily(_PARTS)
"""Numbers after these words count runs or parts, not steps."""

_SERIES_NUMBER = compile_lazily(rf"(?i)((?<![a-z])(?:{_PARTS})[-_.=]*\d+|(?<![^/])\d+(?=/))|\d+")
"""A number of a path; the group is a number of a run or part, as in ``fold_3/model``, or Hydra's ``0/model``."""

_RANK_FOLDER = compile_lazily(r"(?:[a-z]+_)?rank_?\d.*")
"""Directories of model parallelism, as in NeMo's ``checkpoints/tp_rank_00_pp_rank_000/…-step=10.ckpt``."""

_SUFFIX = compile_lazily(r"\.[A-Za-z]\w{0,11}$")
_DATE = compile_lazily(r"(?<!\d)(?:19|20)\d\d[-_.]?[01]\d[-_.]?[0-3]\d(?!\d)")
_VERSION = compile_lazily(r"(?<![=\d.])\d+\.\d")
_NUMBER = compile_lazily(r"(?<!\d)(?<!\d\.)(?<!-of-)\d{1,18}(?!\d)(?!\.\d)(?![A-Za-z]|-of-\d)")
_WORD = compile_lazily(r"([A-Za-z]+)[-_=.]*(?:\d+[-_]+)*$")

_NO_STEP, _NUMBERED, _LIKELY, _WORDED, _CERTAIN = range(5)


def is_safetensors_temporary(name: str) -> bool:
    """Return whether safetensors writes, or a killed save left, a file under this hidden name."""
    return _SAFETENSORS_TEMPORARY.fullmatch(name) is not None


def is_temporary_checkpoint(name: str) -> bool:
    """Return whether a trainer renames this checkpoint when it is finished."""
    return _TEMPORARY.search(name.rpartition("/")[2]) is not None


def is_loadable(files: Iterable[str]) -> bool:
    """Return whether a trainer could resume from these files: not only logs, text and caches."""
    return any(path.endswith(TRAINER_STATE) or not _LOG_OR_TEXT.search(path) for path in files)


def parse_step(name: str) -> Optional[int]:
    """Parse the step in a checkpoint's name; None if its numbers are not clearly a step.

    ``v0/checkpoint-120``, ``checkpoint-120-1``, ``ep3-ba1200``, ``model-000400-state``, ``epoch=0-step=120.ckpt``.
    """
    return _parse(name.rpartition("/")[2])[1]


@lru_cache(4096)  # files are grouped every second
def _parse(name: str) -> Tuple[int, Optional[int]]:
    """Return how clearly a file or directory name states a step, and the step."""
    stem = _SUFFIX.sub("", name)
    if is_temporary_checkpoint(name):
        return _CERTAIN if _NUMBER.search(stem) else _NO_STEP, None
    is_plain = not _DATE.search(stem) and not _VERSION.search(stem)
    stem = _DATE.sub("", stem)
    if re.fullmatch(r"\d{1,18}", stem):
        return _LIKELY if len(stem) < 3 else _WORDED, int(stem)  # Hydra's 0/model_100.pt
    found = [
        (_clarity(match, is_plain=is_plain), int(match[0])) for match in _NUMBER.finditer(stem)
    ]
    clearest, step = max(found, default=(_NO_STEP, 0))
    return clearest, step if clearest >= _LIKELY else None


def _clarity(number: re.Match[str], *, is_plain: bool) -> int:
    """Return how clearly a number of a name is a step. ``is_plain``: the name has no date and no version."""
    before, after = number.string[: number.start()], number.string[number.end() :]
    match = _WORD.search(before)
    word = match[1].lower() if match else ""
    if _STEP_WORDS.fullmatch(word):
        return _CERTAIN
    if _EPOCH_WORDS.fullmatch(word):
        return _WORDED
    if _PART_WORDS.fullmatch(word) or not is_plain:
        return _NO_STEP
    is_one_of_several = re.match(r"[-_]\d", after) or re.search(r"\d[-_]$", before)
    return (
        _LIKELY
        if len(number[0]) >= 3 and not is_one_of_several
        else _NUMBERED
        if word
        else _NO_STEP
    )


def group_paths(paths: Collection[str]) -> Dict[str, Tuple[str, str]]:
    """Return name and folder of the checkpoint of each file of a rank; its files' paths are relative to the folder.

    Files that state the same step in the same directory, or in directories of ranks there, are one checkpoint, with the
    name of the first one; text such as ``meta_000100.json`` belongs to it, too.
    """
    steps: Dict[Tuple[str, int], List[str]] = {}
    members: Dict[str, Tuple[str, str]] = {}
    for path in paths:
        *folders, name = path.split("/")
        is_log = (
            _LOG.search(path) is not None
        )  # logs belong to the runs around numbered directories
        found = [_parse(part)[0] for part in folders]
        clearest = max(
            (value for value in found if value >= _LIKELY or not is_log), default=_NO_STEP
        )
        top = "/".join(folders[: found.index(clearest) + 1 if clearest else 1])
        members[path] = (top or LOOSE, top)
        clarity, step = _parse(name)
        if step is not None and clarity > clearest and not is_log:
            while folders and _RANK_FOLDER.fullmatch(folders[-1]):
                folders.pop()
            steps.setdefault(("/".join(folders), step), []).append(path)
    for (folder, _), mates in steps.items():
        loadable = [path for path in mates if is_loadable([path])]
        if loadable:
            first = min(loadable, key=lambda path: (len(path), path))
            members.update((path, (first, folder)) for path in mates)
    return members


def deciding_files(name: str, paths: Iterable[str]) -> List[str]:
    """Return the files that decide when a checkpoint is complete: not logs that grow next to it.

    Only logs, if there is nothing else; text counts only where the name states a step.
    """
    every = list(paths)
    ignored = _LOG if _parse(name.rpartition("/")[2])[0] >= _LIKELY else _LOG_OR_TEXT
    return [path for path in every if not ignored.search(path)] or every


def series(name: str) -> str:
    """Return a name that is equal for checkpoints whose names differ only in numbers that may be steps."""
    return _SERIES_NUMBER.sub(lambda number: number[1] or "#", name)


def folder_of(row: Mapping[str, Any]) -> str:
    """Return the folder of a checkpoint's files below its rank; empty for the rank itself."""
    return str(row.get("folder", "" if row["name"] == LOOSE else row["name"]))


def number_series(rows: Iterable[Dict[str, Any]]) -> None:
    """Set the steps of checkpoints that only their siblings show to be a series.

    The step is the number that differs most often, of these the largest. Names without letters are dates or times.
    """
    siblings: Dict[Tuple[int, str], List[Dict[str, Any]]] = {}
    for row in rows:
        name = row["name"].rpartition("/")[2]
        if re.search("[A-Za-z]", name) and not _DATE.search(name):
            siblings.setdefault((row["rank"], series(row["name"])), []).append(row)
    for alike in siblings.values():
        numbers = ([int(number) for number in re.findall(r"\d+", row["name"])] for row in alike)
        steps = max(zip(*numbers), key=lambda values: (len(set(values)), max(values)), default=())
        for row, step in zip(alike, steps) if len(set(steps)) > 1 else ():
            if row.get("step") is None and is_loadable(file["path"] for file in row["files"]):
                row["step"] = step


POINTER_NAME = compile_lazily(r"(?:latest|last)(?:[-_.](.*))?")


class PointerFile(NamedTuple):
    """A small file by which a trainer finds its newest checkpoint, with the value for a given checkpoint.

    ``kind``: ``text`` with a value; ``path``, text with the place of the checkpoint; ``link`` to the checkpoint; or
    ``copy`` of a file of the checkpoint, whose path is the value.
    """

    name: str
    kind: str
    value: str = ""


def find_pointer(
    filename: str, text: str, target: Optional[str], row: Mapping[str, Any], others: Collection[str]
) -> Optional[PointerFile]:
    """Return the pointer that a file in the directory of a checkpoint is, with the value for the checkpoint.

    ``text`` of a small file, ``target`` of a symlink, ``others``: names in the directory. ``latest`` names a checkpoint
    of the series, ``latest_checkpointed_iteration.txt`` a step, ``last_checkpoint`` a path, ``latest-rank0.pt`` leads to
    one, ``last.ckpt`` may be a copy, and ``latest_train_state.pt`` is a copy of the checkpoint's ``train_state.pt``.
    """
    name, paths = row["name"].rpartition("/")[2], [file["path"] for file in row["files"]]
    match = POINTER_NAME.fullmatch(filename)
    if (
        row.get("step") is None
        or not match
        or parse_step(filename) is not None
        or filename in paths
    ):
        return None
    last = (target or text).rpartition("/")[2]
    is_member = series(last) == series(name) or last in others
    if target is None and folder_of(row) == row["name"] and match[1] in paths:
        return PointerFile(filename, "copy", match[1])
    if is_member if target is not None else paths == [name] and name.endswith(f".{match[1]}"):
        return PointerFile(filename, "link")
    if target is None and re.fullmatch(r"\d{1,18}", text):
        is_step = int(text) in map(parse_step, (name, *others))  # and not the last epoch
        return PointerFile(filename, "text", str(row["step"])) if is_step else None
    is_path = "/" in text
    return PointerFile(filename, "path" if is_path else "text", name) if is_member else None


CheckpointRow = Mapping[str, Any]
_RowT = TypeVar("_RowT", bound=CheckpointRow)
_RunT = TypeVar("_RunT")


class Retention(NamedTuple):
    """Checkpoints to keep: the newest, every so many steps, and the best; all by default."""

    keep_last: Optional[int] = None
    keep_every: Optional[int] = None
    ranking: Optional[Mapping[str, Any]] = None
    """``metric``, ``mode`` and ``count``."""

    def keeps(self, step: int) -> bool:
        """Return whether a checkpoint is kept because of its step."""
        return self.keep_every is not None and step % self.keep_every == 0


def checkpoint_class(row: CheckpointRow) -> int:
    """Return 2 for directories with a step, 1 for others, 0 for loose files."""
    return 0 if row["name"] == LOOSE else 1 if row.get("step") is None else 2


def recency_key(row: CheckpointRow) -> Tuple[int, float, int, str]:
    """Return a sort key for checkpoints of one job, the newest last."""
    return (checkpoint_class(row), *age_key(row))


def age_key(row: CheckpointRow) -> Tuple[float, int, str]:
    """Return a sort key by time of the last write, step and name."""
    return float(row["created_at"]), int(row.get("step") or 0), str(row["name"])


def _newest_common(rows: Sequence[CheckpointRow]) -> Optional[str]:
    """Return the newest checkpoint of the highest class that all its ranks have.

    A rank that was killed while writing may lack the newest of the others.
    """
    ordered = sorted(rows, key=recency_key)
    best = [row for row in ordered if checkpoint_class(row) == checkpoint_class(ordered[-1])]
    ranks = {int(row["rank"]) for row in best}
    ranks_by_name: Dict[str, Set[int]] = {}
    for row in best:
        ranks_by_name.setdefault(row["name"], set()).add(int(row["rank"]))
    return next(
        (row["name"] for row in reversed(best) if ranks_by_name[row["name"]] == ranks), None
    )


def _finished(rows: Sequence[_RowT]) -> List[_RowT]:
    """Return the checkpoints that no rank has unfinished."""
    unfinished = {row["name"] for row in rows if row.get("unfinished")}
    return [row for row in rows if row["name"] not in unfinished]


def newest_checkpoint(
    runs: Mapping[_RunT, Sequence[_RowT]], *, force: bool = False
) -> Optional[Tuple[_RunT, List[_RowT]]]:
    """Return the run with the newest finished (``force``: any) checkpoint, and its rows; None without any."""
    usable = {run: rows if force else _finished(rows) for run, rows in runs.items()}
    if not any(usable.values()):
        return None
    newest, rows = max(usable.items(), key=lambda item: max(map(recency_key, item[1]), default=()))
    name = _newest_common(rows) or max(rows, key=recency_key)["name"]
    ranks = [row for row in rows if row["name"] == name]
    return newest, sorted(ranks, key=lambda row: int(row["rank"]))


def expired_checkpoints(
    rows: Sequence[_RowT], retention: Retention, leased: Collection[Tuple[int, str]] = ()
) -> List[_RowT]:
    """Return the complete checkpoints of a run that retention deletes, by rank and series.

    Only checkpoints with a step expire: others may be logs, exports or copies. The newest, the newest that all ranks
    have, and ``leased`` checkpoints are always kept. Unfinished ones don't count, and expire with those of their age.
    """
    if retention == Retention():
        return []
    alike: Dict[Tuple[int, str], List[_RowT]] = {}
    for row in sorted(rows, key=recency_key):
        if row.get("step") is not None and row["name"] != LOOSE:
            alike.setdefault((int(row["rank"]), series(row["name"])), []).append(row)
    finished = _finished(rows)
    kept = {_newest_common(finished)} if finished else set()
    expired = []
    for (rank, _), ordered in alike.items():
        counted = [row for row in ordered if not row.get("unfinished")]
        oldest = counted[-max(1, retention.keep_last or 1) :][:1]
        expired += [
            row
            for row in ordered
            if oldest
            and recency_key(row) < recency_key(oldest[0])
            and (row.get("unfinished") or not retention.keeps(int(row["step"])))
            and row["name"] not in kept
            and (rank, row["name"]) not in leased
        ]
    return expired
