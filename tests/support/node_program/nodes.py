"""A node in a temporary directory, driven as the product drives one: the packed program, in a process of its own."""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml

from tests.support.node_program import node_forks
from trainctl.base.listing import CHUNK_BYTES, ListedFile, Listing
from trainctl.base.protocol.runs import LogStreamQuery, RunSpec
from trainctl.base.protocol.wire import encode_rows
from trainctl.model.specs.job_spec import JobSpec
from trainctl.model.specs.runtime import RuntimeSpec
from trainctl.remote.archive import RUN, node_archive

T = TypeVar("T")
_ASK_SECONDS = 0.5
LIVE = {f"TRAINING_JOB_{word}" for word in ("PENDING", "CREATED", "DEPLOYING", "RUNNING")}


@functools.cache
def python38() -> str | None:
    """A Python 3.8 of this machine that runs, the oldest that hosts may have."""
    patterns = (".pyenv/versions/3.8.*", ".local/share/uv/python/cpython-3.8*")
    places = [place for pattern in patterns for place in sorted(Path.home().glob(pattern))]
    for name in (shutil.which("python3.8"), *(str(place / "bin/python") for place in places)):
        if name and subprocess.run([name, "-c", ""], capture_output=True).returncode == 0:
            return name
    return None


@dataclass
class MirrorFixture:
    """A mirror in a directory with the content that a test puts there: chunks and small files, each an object."""

    path: Path
    files: dict[str, bytes] = field(default_factory=dict)
    rows: dict[str, ListedFile] = field(default_factory=dict)
    """What a listing says of each: hashed once, as tests ask for the listing over and over."""

    def add(self, path: str, data: bytes) -> None:
        """Put a file's content into the mirror and its name into the listing."""
        self.files[path] = data
        self.rows[path] = _listed(path, data)
        for chunk in self.rows[path].chunk_ranges:
            blob = self.blob(chunk.sha256)
            blob.parent.mkdir(parents=True, exist_ok=True)
            if not blob.exists():
                blob.write_bytes(data[chunk.offset : chunk.offset + chunk.length])

    def forget(self) -> None:
        """List nothing any more; contents stay."""
        self.files.clear()
        self.rows.clear()

    def blob(self, digest: str) -> Path:
        return self.path / "blobs" / "sha256" / digest[:2] / digest

    def chunk(self, path: str, number: int = 0) -> Path:
        """The object of a file's chunk; a small file is one."""
        return self.blob(self.rows[path].chunk_ranges[number].sha256)

    def corrupt(self, path: str, number: int = 0) -> None:
        data = self.chunk(path, number).read_bytes()
        self.chunk(path, number).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))

    @property
    def listing(self) -> Listing:
        return Listing(tuple(row for _, row in sorted(self.rows.items())))


def _listed(path: str, data: bytes) -> ListedFile:
    starts = range(0, len(data), CHUNK_BYTES) if len(data) > CHUNK_BYTES else ()
    chunks = tuple(hashlib.sha256(data[at : at + CHUNK_BYTES]).hexdigest() for at in starts)
    return ListedFile(path, len(data), hashlib.sha256(data).hexdigest(), chunks)


class NodeProgramError(Exception):
    """What the node program answered instead of a result."""

    def __init__(self, error: Mapping[str, str]) -> None:
        super().__init__(f"{error['summary']}: {error['detail']}")
        self.kind = error["kind"]


class NodeHarness:
    """One node under a directory; ``prefix`` goes before the interpreter, to run as somebody else.

    Where this machine has a Python 3.8 that is its interpreter, so that whatever is tested on a node is tested under the oldest one.
    Its home is an empty directory: login shells must not run what this machine's user has in their profile.
    """

    __test__ = False

    def __init__(self, base: Path, python: str | None = None, prefix: Iterable[str] = ()) -> None:
        self.base = base
        self.root = base / "node"
        self.data = base / "data"
        self.python = python or python38() or sys.executable
        self.home = base / "home"
        self.home.mkdir()
        self.prefix = list(prefix)
        self.variables: dict[str, str] = {}
        self.mirror = MirrorFixture(base / "mirror")
        self.events: list[dict[str, Any]] = []
        self.forks = self.prefix in ([], nobody_prefix())
        """Whether calls may be forks of a process that has loaded the program."""
        self._program = node_forks.installed_program(self.python)
        self._argv = [self.python, "-I", "-S", "-c", RUN, str(self._program), node_archive().sha256]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "HOME": str(self.home), **self.variables}

    def argv(self, method: str) -> list[str]:
        return [*self.prefix, *self._argv, method]

    def popen(self, method: str, request: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        """Start a verb with its request sent, and don't wait."""
        process = self.begin(method, stderr=subprocess.PIPE)
        assert process.stdin is not None
        asked = {"root": str(self.root), **DEFAULT_REQUESTS.get(method, {}), **request}
        process.stdin.write(sent_as(asked))
        process.stdin.close()
        process.stdin = None
        return process

    def begin(self, method: str, stderr: int | None = None) -> subprocess.Popen[bytes]:
        """Start a verb that leads a session, and gets its request by a pipe."""
        pipe, environ = subprocess.PIPE, self.environment
        if self.forks:
            words, argv = [*self.prefix, self.python], [*self._argv[4:], method]
            return node_forks.ForkedPopen(
                words, self._program, argv, stdin=pipe, stdout=pipe, stderr=stderr, env=environ
            )
        return subprocess.Popen(
            self.argv(method), stdin=pipe, stdout=pipe, stderr=stderr, env=environ, start_new_session=True
        )  # fmt: skip

    def raw(self, method: str, request: Mapping[str, Any] = {}, payload: bytes = b"") -> bytes:
        """Call a verb; everything it printed."""
        asked = {"root": str(self.root), **DEFAULT_REQUESTS.get(method, {}), **request}
        done = self._done(method, sent_as(asked) + payload)
        last = (done.stderr if method.startswith("read_") else done.stdout).splitlines()[-1:]
        if done.returncode == 1 and last and b'"error"' in last[0]:
            raise NodeProgramError(json.loads(last[0])["error"])
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    def _done(self, method: str, data: bytes) -> subprocess.CompletedProcess[bytes]:
        if self.forks:
            words = [*self.prefix, self.python]
            argv = [*self._argv[4:], method]
            return node_forks.forked(words, self._program, argv, data, self.environment)
        return subprocess.run(
            self.argv(method), input=data, capture_output=True, env=self.environment
        )

    def call(
        self, method: str, request: Mapping[str, Any] = {}, payload: bytes = b""
    ) -> dict[str, Any]:
        lines = [json.loads(line) for line in self.raw(method, request, payload).splitlines()]
        self.events = [line["event"] for line in lines[:-1]]
        result: dict[str, Any] = lines[-1]["result"]
        return result

    def cached(self, **query: Any) -> dict[str, Any]:
        usual = {"root": str(self.root), "listings": [], "blobs": [], "room": False}
        cached: dict[str, Any] = self.call("free_resources", {"cached": {**usual, **query}})[
            "cached"
        ]
        return cached

    def delivery(self, **changes: Any) -> dict[str, Any]:
        """The request that delivers what the mirror holds."""
        return {
            "lineage": "lineage-1",
            "owner": "somebody@somewhere",
            "lease": "run-1",
            "source": "file:./weights",
            "listing": json.loads(self.mirror.listing.to_bytes()),
            "mirror": {"path": str(self.mirror.path)},
            **changes,
        }

    def deliver(self, **changes: Any) -> dict[str, Any]:
        return self.call("deliver", self.delivery(**changes))

    @property
    def tree(self) -> Path:
        return self.root / "cache" / "trees" / self.mirror.listing.id

    def upload_code(self, files: Mapping[str, str], digest: str = "sha256:code") -> str:
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as archive:
            for name, text in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(text.encode())
                archive.addfile(info, io.BytesIO(text.encode()))
        self.call("upload_code", {"digest": digest}, stream.getvalue())
        return digest

    def spec(self, *commands: str, **changes: Any) -> dict[str, Any]:
        """See ``run_spec``."""
        return {**run_spec(*commands, **changes)}

    def start_request(
        self, spec: Mapping[str, Any], secrets: Mapping[str, str] = {}
    ) -> dict[str, Any]:
        return {"data": str(self.data), "run": spec, "secrets": secrets}

    def start(self, spec: Mapping[str, Any], secrets: Mapping[str, str] = {}) -> dict[str, Any]:
        """Start a run, with an empty code tree if none was shipped."""
        if not self.call("has_code", {"digest": spec["code"]})["present"]:
            self.upload_code({"nothing.txt": ""}, spec["code"])
        return self.call("start", self.start_request(spec, secrets))

    def status(self, key: str = "run-1") -> dict[str, Any]:
        run: dict[str, Any] = self.call("status", {"keys": [key]})["runs"][key]
        return run

    def ended(self, key: str = "run-1", seconds: float = 120) -> dict[str, Any]:
        """The status once the run has ended: asked for when its record says so, and now and then, as nobody records that it is lost."""
        asked = 0.0

        def look() -> dict[str, Any] | None:
            nonlocal asked
            if time.monotonic() < asked + _ASK_SECONDS and self._recorded(key) in LIVE:
                return None
            status = self.status(key)
            asked = time.monotonic()
            return None if status["status"] in LIVE else status

        return wait_for(look, seconds)

    def _recorded(self, key: str) -> str:
        try:
            return str(json.loads((self.directory(key) / "run.json").read_bytes())["status"])
        except OSError:  # not there yet, or another user's
            return ""

    def run(self, *commands: str, **changes: Any) -> dict[str, Any]:
        self.start(self.spec(*commands, **changes))
        return self.ended(changes.get("key", "run-1"))

    def log(self, key: str = "run-1", rank: int = 0) -> str:
        path = self.root / "runs" / key / "log" / f"rank-{rank}.log"
        return path.read_text() if path.exists() else ""

    def directory(self, key: str = "run-1") -> Path:
        return self.root / "runs" / key

    def close(self) -> None:
        for run in self.runs():
            self.call("stop", {"key": run["key"], "grace_seconds": 0})

    def runs(self) -> list[dict[str, Any]]:
        runs = self.root / "runs"
        keys = [path.parent.name for path in runs.glob("[!.]*/spec.json")]
        return [run for run in self.call("status", {"keys": keys})["runs"].values() if run]


def sent_as(request: Mapping[str, Any]) -> bytes:
    """A request as the program reads it: its listings, which tests write as documents, follow as rows."""
    documents = [request["listing"]] if "listing" in request else request.get("listings") or []
    listings = [Listing.parse(item) for item in documents if isinstance(item, dict)]
    ids = [listing.id for listing in listings]
    named = {"listing": ids[0]} if "listing" in request else {"listings": ids}
    asked = {**request, **named} if ids else request
    following = b"".join(encode_rows(listing.rows() for listing in listings)) if ids else b""
    return json.dumps(asked).encode() + b"\n" + following


def received_as(request: Mapping[str, Any]) -> tuple[Any, io.BytesIO]:
    """A request and what follows it, for a verb that is called in this process."""
    line, following = sent_as(request).split(b"\n", 1)
    return json.loads(line), io.BytesIO(following)


def wait_for(look: Callable[[], T | None], seconds: float = 60) -> T:
    """What ``look`` gives once it gives something. The longer a look takes, the longer the pauses between looks."""
    deadline = time.monotonic() + seconds
    while (begun := time.monotonic()) < deadline:
        result = look()
        if result:
            return result
        time.sleep(max(0.05, 3 * (time.monotonic() - begun)))
    raise AssertionError(f"nothing within {seconds} s")


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def all_text_below(path: Path) -> bytes:
    data = b""
    for file in path.rglob("*"):
        with contextlib.suppress(OSError):
            if file.is_file():
                data += file.read_bytes()
    return data


def nobody_prefix() -> list[str]:
    """The words that run a program as user nobody; empty if this process is not root."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        return []
    return ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


_RUNTIME = frozenset(each.name for each in fields(RuntimeSpec))
_MERGED = ("checkpoints", "compute", "retry", "cache_config", "checkpointing_config")
"""Sections of which tests give some keys."""


def run_spec(*commands: str, **changes: Any) -> RunSpec:
    """A specification; ``changes`` are its keys, those of the job, and those of the job's runtime.

    ``listing`` in an entry of ``weights`` is that of the node.
    """
    spec: dict[str, Any] = copy.deepcopy(_REQUESTS["run"])
    job = spec["job"] = JobSpec().to_attributes()
    job["runtime"]["start_commands"] = list(commands)
    for key, value in changes.items():
        place = spec if key in spec else job["runtime"] if key in _RUNTIME else job
        place[key] = {**place[key], **value} if key in _MERGED else value
    for entry in job["weights"]:
        spec["listings"][entry["address"]] = entry["listing"]
    return cast(RunSpec, spec)


def lines_wanted() -> LogStreamQuery:
    """A query for all lines of a log."""
    query: LogStreamQuery = copy.deepcopy(_REQUESTS["log"])
    return query


_REQUESTS: Any = yaml.safe_load(
    (Path(__file__).parents[2] / "cases/node/requests.yaml").read_text()
)
DEFAULT_REQUESTS: Mapping[str, Mapping[str, Any]] = _REQUESTS["defaults"]
"""What tests leave out of requests, by method."""
