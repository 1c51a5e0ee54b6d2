"""Applying and planning N resources with the state in a bucket, in a directory, and in Terraform's http backend.

    python -m tests.benchmarks.team_state [SIZE …] [--latency 0 50] [--terraform-up-to 1000] [--alone 100000]

The resources are those of ``tests.benchmarks.terraform``. The bucket is moto's behind a proxy that waits ``--latency`` ms before it passes a
request on, as does the server of Terraform's state. One change of a resource in ``--alone`` resources and a plan without changes have limits.
Prints every figure with the number of requests, and exits 1 where a limit is not kept.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.benchmarks.terraform import (
    TERRAFORM,
    TRAINCTL,
    Cost,
    declare_data,
    declare_projects,
    measured,
)
from tests.support.servers.buckets import KEY_ID, SECRET, moto
from tests.support.servers.fault_proxy import fault_proxy
from trainctl.buckets.bucket import STATE_RETRY, BucketObjects
from trainctl.ledger.ledger import IntentRequest, Ledger
from trainctl.ledger.state import RecordedResource
from trainctl.model.address import Address
from trainctl.plugin_api.discovery import open_state
from trainctl.plugin_api.sources import SourceCredential

PLAN_REQUESTS = 10
LEDGER_SHARE = {"no-op plan": 3.0, "change of one": 3.0}
"""Seconds, at most, without manifest and planning."""
_AT_ONCE = 128
"""Resources in an append, as many as an apply takes."""
ALONE = {"no-op plan": (6.0, 450.0), "change of one": (8.0, 1000.0)}
"""Seconds and MB, at most."""


def show(size: int, latency: int, step: str, side: str, cost: Cost, requests: Counter[str]) -> None:
    """Print a line of the table."""
    figures = f"{cost.wall:7.2f} s  user {cost.user:6.2f} s  {cost.peak_mb:4.0f} MB"
    counts = "  ".join(f"{count} {name}" for name, count in sorted(requests.items()))
    print(f"{size:7,}  {latency:3} ms  {step:<13}  {side:<9}  {figures}  {counts}", flush=True)


@contextmanager
def bucket(latency: int) -> Iterator[tuple[list[str], Counter[str]]]:
    """What precedes and follows the words of a command for a state in a bucket, and its requests."""
    with moto() as server, fault_proxy(server.endpoint) as proxy:
        proxy.latency = latency / 1000
        yield (
            [
                *("env", f"AWS_ENDPOINT_URL={proxy.url}"),
                *(f"AWS_ACCESS_KEY_ID={KEY_ID}", f"AWS_SECRET_ACCESS_KEY={SECRET}"),
            ],
            proxy.requests,
        )


def ours(size: int, latency: int, *, in_bucket: bool) -> Iterator[tuple[str, Cost, Counter[str]]]:
    """Apply from nothing, plan again, change one, plan again; the cost and the requests of each step."""
    side = "bucket" if in_bucket else "directory"
    with tempfile.TemporaryDirectory() as scratch, bucket(latency) as (prefix, requests):
        directory = Path(scratch)
        declare_projects(directory, size)
        state = ["--state", "s3://models/bench"] if in_bucket else []
        for step in ("apply", "no-op plan", "change of one", "no-op plan"):
            if step == "change of one":
                part = directory / "part-0.trainctl.yaml"
                part.write_text(
                    part.read_text().replace("description: number 7\n", "description: seven\n")
                )
            words = TRAINCTL.commands["no-op plan" if step == "no-op plan" else "apply"]
            requests.clear()
            cost = measured([*prefix, *words, *state], directory)
            show(size, latency, step, side, cost, requests)
            yield step, cost, Counter(requests)


def theirs(size: int, latency: int) -> None:
    """The same for Terraform with its http backend."""
    with tempfile.TemporaryDirectory() as scratch, http_backend(latency) as (url, requests):
        directory = Path(scratch)
        declare_data(directory, size)
        backend = f'terraform {{\n  backend "http" {{\n    address = "{url}"\n  }}\n}}\n'
        (directory / "backend.tf").write_text(backend)
        measured(TERRAFORM.prepare or [], directory)
        for step, words in TERRAFORM.commands.items():
            requests.clear()
            show(size, latency, step, "terraform", measured(words, directory), requests)


@contextmanager
def http_backend(latency: int) -> Iterator[tuple[str, Counter[str]]]:
    """A server that keeps one state, as Terraform's http backend wants it."""
    requests: Counter[str] = Counter()
    kept: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            self._handle()

        def do_POST(self) -> None:
            self._handle()

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            requests[self.command] += 1
            time.sleep(latency / 1000)
            if self.command == "POST":
                kept[:] = [body]
            answer = kept[0] if kept and self.command == "GET" else b""
            self.send_response(200 if kept else 404)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/state", requests
    finally:
        server.shutdown()
        server.server_close()


def compare(size: int, latency: int, *, terraform: bool) -> bool:
    """All sides in turn; whether a plan in the bucket kept to its requests."""
    kept = True
    for step, _, requests in ours(size, latency, in_bucket=True):
        if step == "no-op plan" and sum(requests.values()) > PLAN_REQUESTS:
            print(
                f"{size:,}  no-op plan: {sum(requests.values())} requests (limit {PLAN_REQUESTS})"
            )
            kept = False
    for _ in ours(size, latency, in_bucket=False):
        pass
    if terraform:
        theirs(size, latency)
    return kept


def alone(size: int) -> bool:
    """Many resources in a bucket; whether the limits were kept."""
    kept = True
    for step, cost, _ in ours(size, 0, in_bucket=True):
        if step not in ALONE:
            continue
        seconds, megabytes = ALONE[step]
        print(
            f"{size:,}  {step}: {cost.wall:.2f} s (limit {seconds:g} s), {cost.peak_mb:.0f} MB (limit {megabytes:.0f} MB)"
        )
        kept = kept and cost.wall <= seconds and cost.peak_mb <= megabytes
    return kept


def by_the_ledger(size: int) -> bool:
    """The state's share alone, without manifest and planning: reading it, and one change by another process."""
    with moto() as server:
        credential = SourceCredential(json.dumps(server.credential), "the benchmark")
        environ = {"AWS_ENDPOINT_URL": server.endpoint}

        def opened() -> Ledger:
            url = "s3://models/ledger"
            objects = BucketObjects(
                url, None, lambda: credential, STATE_RETRY, purpose="state", environ=environ
            )
            return Ledger(open_state(url, objects), str)

        ledger = opened()
        addresses = [Address.parse(f"project.p{number}") for number in range(size)]
        for first in range(0, size, _AT_ONCE):
            ledger.record([_change(address) for address in addresses[first : first + _AT_ONCE]])
        ledger.flush()
        kept = True
        reader = opened()
        for step in LEDGER_SHARE:
            began = time.perf_counter()
            if step == "no-op plan":
                reader.state()
            else:
                start, recorded = _change(addresses[0])
                reader.finish(reader.begin(start), recorded)
                reader.flush()
            wall = time.perf_counter() - began
            limit = LEDGER_SHARE[step]
            print(f"{size:,}  {step}, the ledger's share: {wall:.2f} s (limit {limit:g} s)")
            kept = kept and wall <= limit
        return kept


def _change(address: Address) -> tuple[IntentRequest, RecordedResource]:
    values = {f"label{each}": f"value {each} of {address.name}" for each in range(10)}
    start = IntentRequest(address, "create", "local", "k", {"attributes": values}, plan="p")
    return start, RecordedResource(address, "local", values, {})


def main() -> int:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sizes", type=int, nargs="*", default=[1_000, 10_000])
    parser.add_argument("--latency", type=int, nargs="*", default=[0, 50])
    parser.add_argument("--terraform-up-to", type=int, default=1_000)
    parser.add_argument("--alone", type=int, default=100_000)
    options = parser.parse_args()
    installed = shutil.which("terraform") is not None
    if not installed:
        print("terraform is not installed: its side is left out")
    kept = [
        compare(size, latency, terraform=installed and size <= options.terraform_up_to)
        for size in options.sizes
        for latency in options.latency
    ]
    if options.alone:
        kept += [by_the_ledger(options.alone), alone(options.alone)]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
