"""Which of a job's secrets its run's node keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainctl.desired.build import build
from trainctl.desired.values import DesiredState
from trainctl.manifest.read import read
from trainctl.model.address import Address

SECRETS = (
    "secrets: {a: {from: env, persist: true}, b: {from: env, persist: true}, c: {from: env}}\n"
)
BUCKET = "checkpoints: {url: s3://bucket/runs, auth: {auth_secret_name: b}}\n"


def desired(directory: Path, text: str) -> DesiredState:
    """What a manifest asks for."""
    (directory / "trainctl.yaml").write_text(text)
    return build(read(directory), provider_schema=lambda name: {})


def job(variables: str, more: str = "") -> str:
    """A job with these secrets."""
    runtime = f"{{start_commands: [x], environment_variables: {{{variables}}}{more}}}"
    return f"jobs: {{fit: {{runtime: {runtime}}}}}\n"


A, C = "A: {secret: a}", "C: {secret: c}"
KEEPS = ", checkpointing_config: {enabled: true}"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (job(A), ["a"]),
        (job(C), None),
        (job(f"{A}, {C}"), None),
        (job("A: plain"), None),
        (BUCKET + job(A, KEEPS), ["a", "b"]),
        (BUCKET + job("A: plain", KEEPS), ["b"]),
        (BUCKET + job(A), ["a"]),
        (BUCKET.replace("b}", "c}") + job(A, KEEPS), None),
        ("checkpoints: {url: s3://bucket/runs}\n" + job(A, KEEPS), None),
        ("checkpoints: {url: file:///ckpt}\n" + job(A, KEEPS), ["a"]),
        (
            "clusters: {local: {provider: local, nodes: 2}}\n"
            + job(A).replace("runtime:", "compute: {node_count: 2}, runtime:"),
            None,
        ),
    ],
)
def test_all_that_the_run_is_given_or_nothing(
    tmp_path: Path, text: str, kept: list[str] | None
) -> None:
    """Variables, and what opens its store: where one may not be kept the run would wait all the same, and so would a gang."""
    found = desired(tmp_path, SECRETS + text).resources[Address.parse("job.fit")]
    assert found.attributes.get("persisted_secrets") == kept


def test_it_is_part_of_what_is_wished(tmp_path: Path) -> None:
    """A manifest that says it has another digest; one that doesn't has that which it had."""
    says = desired(tmp_path, SECRETS + job(A)).manifest_digest
    silent = desired(tmp_path, SECRETS.replace(", persist: true", "") + job(A)).manifest_digest
    denies = desired(tmp_path, SECRETS.replace("true", "false") + job(A)).manifest_digest
    assert silent == denies
    assert says != silent
