"""Watcher of a machine that costs money: ends it when idle, and stops runs when the platform takes it back.

One detached process, which needs no client. It writes nothing that it needs, so that it works with a full disk. After
a boot, the provider's ``at_boot`` starts it, or the next call.
"""

from __future__ import annotations

import calendar
import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from functools import lru_cache
from http.client import HTTPException
from typing import Callable, Dict, List, Optional, Sequence, Set
from urllib.parse import urlsplit

from trainctl.base.filesystem.files import write_json
from trainctl.base.protocol import INTERRUPTED
from trainctl.base.protocol.host import IdleShutdownSettings, MachineNotices, NoticeSource
from trainctl.base.system.processes import find_by_environment
from trainctl.node.checkpoints.upload_journal import COMPLETED
from trainctl.node.runs.record import (
    RUNNING,
    NodeRun,
    keeps_checkpoints,
    list_specs,
    max_duration_seconds,
    upload_seconds,
    upload_status,
)
from trainctl.node.supervision.idle_shutdown import MachineUse
from trainctl.node.system.host import send_signal

_TICK_SECONDS = 2.0
_MIN_TICK_SECONDS = 0.1
_OVERDUE_SECONDS = 900.0
"""How long after its time limit, grace and upload a run keeps the machine."""
_ROOT_MISSING_SECONDS = 60.0  # a destroy removes the directory, then ends the machine itself
_RETRY_SECONDS = 60.0  # after a shutdown command that failed
_COMMAND_SECONDS = 60.0
_NOTICE_SHARE = 0.5
"""Share of the time until the machine is taken back that jobs get to exit; the rest is for uploads."""
_IMDS = "http://169.254.169.254"
_IMDS_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
_IMDS_VALID_SECONDS = "21600"  # the longest that EC2 allows
_IMDS_SECONDS = 1.0  # the service is on the machine's own host


def execute(argv: Sequence[str]) -> None:
    """Run a command to its end; log a failure."""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False
        )
        problem = done.stderr if done.returncode else ""
    except (OSError, subprocess.SubprocessError) as error:
        problem = str(error)
    if problem:
        log(f"{argv[0]}: {problem.strip()}")


@lru_cache(maxsize=16)
def log(text: str) -> None:
    """Write a problem to standard error, unless it is one of the last."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


class IdleWatcher:
    """Runs ``shutdown`` after ``idle_timeout`` without use; twice as long while checkpoints are not uploaded, then ``stop``.

    Time is monotonic and in memory: a boot and a change of the clock start a new ``idle_timeout``.
    """

    def __init__(
        self,
        use: MachineUse,
        settings: IdleShutdownSettings,
        clock: Callable[[], float] = time.monotonic,
        execute: Callable[[Sequence[str]], None] = execute,
    ) -> None:
        self._use = use
        self._settings = settings
        self._clock = clock
        self._execute = execute
        self._token = use.last_used
        self._used_at = clock()
        self._root_seen_at = clock()
        self._running_since: Dict[str, float] = {}
        self._interrupter = RunInterrupter(use)

    def run(self) -> None:
        """Watch until the machine's directory has been deleted; survive any failure of a check."""
        watching = True
        while watching:
            try:
                watching = self.step()
            except Exception as error:  # noqa: BLE001 - nothing else would end the machine
                log(f"{type(error).__name__}: {error}")
            time.sleep(self._pause)

    def step(self) -> bool:
        """Check once; False if there is nothing more to watch."""
        now, use = self._clock(), self._use
        self._settings = {**self._settings, **(use.settings or {})}  # type: ignore[typeddict-item]
        runs = use.live_runs()
        self._interrupter.step(self._settings, runs)
        live = [run for run in runs if not self._is_overdue(run, now)]
        if live or use.is_called():
            use.renew()
            self._used_at = now
        elif use.last_used not in (self._token, 0):
            self._used_at = now
        self._token = use.last_used or self._token
        if use.layout.root.is_dir():
            self._root_seen_at = now
            if not use.last_used:
                use.store(self._settings)
                self._token = use.last_used
        elif now - self._root_seen_at >= _ROOT_MISSING_SECONDS:
            self._execute(self._settings["shutdown"])
            return False
        command = self._command(now - self._used_at)
        if command:
            self._execute(command)
            self._used_at = now - self._settings["idle_timeout"] + _RETRY_SECONDS
            return use.layout.root.is_dir()
        return True

    @property
    def _pause(self) -> float:
        return max(_MIN_TICK_SECONDS, min(_TICK_SECONDS, self._settings["idle_timeout"] / 10))

    def _command(self, idle: float) -> Optional[List[str]]:
        """Return the command that ends the machine now, if any."""
        settings = self._settings
        if idle < settings["idle_timeout"]:
            return None
        has_unsaved = any(  # checkpoints that are on this machine only
            keeps_checkpoints(spec)
            and run.started
            and (
                spec["store"].get("url") is None
                or upload_status(run.directory).get("state") != COMPLETED
            )
            for run, spec in list_specs(self._use.layout)
        )
        if not has_unsaved:
            return settings["shutdown"]
        return (
            (settings["stop"] or settings["shutdown"])
            if idle >= 2 * settings["idle_timeout"]
            else None
        )

    def _is_overdue(self, run: NodeRun, now: float) -> bool:
        """Check whether a run's supervisor failed to end it long after its time limit."""
        spec = run.spec
        limit = max_duration_seconds(spec) if spec else None
        if spec is None or limit is None or run.record.get("status") != RUNNING:
            return False
        upload = upload_seconds(spec)
        since = self._running_since.setdefault(run.key, now)
        return now - since > limit + run.grace_seconds(spec) + upload + _OVERDUE_SECONDS


class RunInterrupter:
    """Reads the platform's notices, and stops runs before the machine is taken back."""

    def __init__(self, use: MachineUse) -> None:
        self._use = use
        self._reader: Optional[NoticeReader] = None
        self._notices = use.notices()
        self._interrupted: Set[str] = set()

    def step(self, settings: IdleShutdownSettings, live: Sequence[NodeRun]) -> None:
        """Read the notices once; stop each live run once if the machine is taken back."""
        if not settings["notice"]:
            return
        self._reader = self._reader or NoticeReader(settings["notice"])
        # the next step tries again
        with contextlib.suppress(OSError, HTTPException, ValueError, KeyError):
            notices = self._reader.read()
            if notices != self._notices:
                self._notices = notices
                write_json(self._use.notices_path, notices)
        at = self._notices["taken_back"]
        for run in live if at is not None else ():
            if run.key in self._interrupted:
                continue
            # Without processes it uploads its checkpoints, which a signal would end.
            if run.record.get("status") == RUNNING and not find_by_environment(run.mark):
                continue
            self._interrupted.add(run.key)
            spec, holder = run.spec, run.supervisor
            if spec is None or holder is None:
                continue
            seconds = max(1.0, ((at or 0.0) - time.time()) * _NOTICE_SHARE)
            with contextlib.suppress(OSError):
                reason = time.strftime("the machine is taken back at %H:%M UTC", time.gmtime(at))
                grace = min(seconds, run.grace_seconds(spec))
                run.request_stop(grace_seconds=grace, interrupted=f"{INTERRUPTED}{reason}")
            send_signal([int(holder["pid"])], signal.SIGTERM)


class NoticeReader:
    """Notices of the EC2 instance metadata service, version 2 (kind ``imds``); other kinds have none."""

    def __init__(self, source: NoticeSource) -> None:
        self._kind = source["kind"]
        url = source.get("url") or os.environ.get(_IMDS_VARIABLE) or _IMDS
        self._address = urlsplit(url)
        self._token = ""

    def read(self) -> MachineNotices:
        """Return the notices; OSError, HTTPException or ValueError without a proper response.

        Then a new token is used the next time.
        """
        if self._kind != "imds":
            return {"taken_back": None, "at_risk": None}
        ttl = {"X-aws-ec2-metadata-token-ttl-seconds": _IMDS_VALID_SECONDS}
        self._token = self._token or self._request("PUT", "/latest/api/token", ttl) or ""
        return {
            "taken_back": self._time("spot/instance-action", "time"),
            "at_risk": self._time("events/recommendations/rebalance", "noticeTime"),
        }

    def _time(self, path: str, key: str) -> Optional[float]:
        """Unix seconds of a member like ``2026-09-18T08:22:00Z``; None without a notice."""
        header = {"X-aws-ec2-metadata-token": self._token}
        text = self._request("GET", f"/latest/meta-data/{path}", header)
        if text is None:
            return None
        moment = time.strptime(str(json.loads(text)[key]), "%Y-%m-%dT%H:%M:%SZ")
        return float(calendar.timegm(moment))

    def _request(self, method: str, path: str, headers: Dict[str, str]) -> Optional[str]:
        """Return the body; None if there is no such path."""
        connection = http.client.HTTPConnection(
            self._address.hostname or "", self._address.port, timeout=_IMDS_SECONDS
        )
        with contextlib.closing(connection):
            connection.request(method, self._address.path.rstrip("/") + path, headers=headers)
            response = connection.getresponse()
            if response.status == http.client.OK:
                return response.read(65536).decode("latin-1")
            if response.status == http.client.NOT_FOUND:
                return None
            self._token = ""
            raise OSError(f"the metadata service responded with {response.status}")
