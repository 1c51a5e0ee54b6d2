"""Checkpoints as a user has them: kept, listed, had again, begun with; in a bucket and in a directory."""

from __future__ import annotations

import csv
import io
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_program.nodes import all_text_below
from tests.support.projects.project import ProjectHarness, processes
from tests.support.servers.buckets import SECRET, BucketServer, rclone

MANIFEST = """\
project: {name: demo}
secrets: {bucket: {from: env, name: BUCKET}}
CHECKPOINTS
jobs:
  sft:
    code: ./src
    runtime:
      start_commands: ["python3 train.py"]
      checkpointing_config: {enabled: true}
      load_checkpoint_config: {enabled: true}
"""

TRAIN = """\
import json, os, pathlib, struct

loaded = pathlib.Path(os.environ["BT_LOAD_CHECKPOINT_DIR"])
print("loaded", sorted(str(path.relative_to(loaded)) for path in loaded.rglob("*") if path.is_file()), flush=True)
number = int(pathlib.Path("number.txt").read_text())
for step in (number, number + 1):
    target = pathlib.Path(os.environ["BT_CHECKPOINT_DIR"]) / f"checkpoint-{step}"
    target.mkdir(parents=True)
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    (target / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes([step]) * 16)
    (target / "adapter_config.json").write_text('{"base_model_name_or_path": "Qwen/Qwen3-0.6B", "r": 8}')
"""


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BucketServer]:
    """A bucket of rclone, which looks at signatures."""
    with rclone(tmp_path_factory.mktemp("s3") / "root") as server:
        yield server


def write(fresh: ProjectHarness, checkpoints: str, number: int = 1) -> None:
    """The manifest and its code; the job saves checkpoints of two steps from ``number`` on."""
    fresh.write(
        {
            "trainctl.yaml": MANIFEST.replace("CHECKPOINTS", checkpoints),
            "src/train.py": TRAIN,
            "src/number.txt": str(number),
        }
    )
    fresh.trust('secret = "bucket"\nhosts = ["127.0.0.1"]')


def in_bucket(bucket: BucketServer, prefix: str, more: str = "") -> str:
    return f"checkpoints: {{url: s3://models/{prefix}, endpoint_url: '{bucket.endpoint}', auth: {{auth_secret_name: bucket}}{more}}}"


def listed(project: ProjectHarness, *more: str) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = project.json("checkpoints", "list", "sft", *more)["checkpoints"]
    return result


def test_a_bucket_from_training_to_download(fresh: ProjectHarness, bucket: BucketServer) -> None:
    """Kept, listed with what their headers say, downloaded, had by anybody with the URL; the credential is nowhere."""
    fresh.variables["BUCKET"] = json.dumps(bucket.credential)
    write(fresh, in_bucket(bucket, "all"))
    fresh.run("apply", "--auto-approve", "--wait")
    rows = listed(fresh)
    assert listed(fresh, "--sort", "created", "--order", "desc") == rows[::-1]
    assert listed(fresh, "--checkpoint-name", "checkpoint-2") == rows[1:]
    place = fresh.run("checkpoints", "download", "sft").stdout.strip()
    urls = fresh.json("checkpoints", "url", "sft", "--expires", "1h")
    table = list(
        csv.DictReader(
            io.StringIO(fresh.run("checkpoints", "list", "sft", "--format", "csv").stdout)
        )
    )
    status = fresh.json("status", "sft")

    assert [(item["name"], item["step"], item["type"], item["base_model"], item["lora_rank"], item["parameters"], item["state"])
            for item in rows] == [
        (f"checkpoint-{step}", step, "lora", "Qwen/Qwen3-0.6B", 8, 4, "complete") for step in (1, 2)
    ]  # fmt: skip
    assert rows[0]["url"] == f"s3://models/all/demo/sft/1-{status['run']}/rank-0/checkpoint-1"
    assert (fresh.directory / place / "adapter_model.safetensors").read_bytes()[
        -16:
    ] == b"\x02" * 16
    assert {item["relative_file_name"] for item in urls["checkpoint_artifacts"]} == {
        f"checkpoint-{step}/adapter_{name}" for step in (1, 2) for name in ("config.json", "model.safetensors")
    }  # fmt: skip
    for row in urls["checkpoint_artifacts"]:
        with urllib.request.urlopen(row["url"]) as answer:
            assert len(answer.read()) == row["size_bytes"]
    assert [item["base_model"] for item in table] == ["Qwen/Qwen3-0.6B"] * 2
    assert status["checkpoint_sync_status"] == "COMPLETED"
    assert SECRET.encode() not in all_text_below(fresh.directory.parent)
    assert bucket.directory is not None
    run_json = next((bucket.directory / "all").rglob("run.json"))
    assert json.loads(run_json.read_text())["status"] == "TRAINING_JOB_COMPLETED"


def test_a_run_begins_with_the_newest_checkpoint_of_those_before(
    fresh: ProjectHarness, bucket: BucketServer
) -> None:
    """The first finds nothing; the second what the first saved, from the disk or the bucket."""
    fresh.variables["BUCKET"] = json.dumps(bucket.credential)
    write(fresh, in_bucket(bucket, "loop"))
    fresh.run("apply", "--auto-approve", "--wait")
    first = fresh.run("logs", "sft").stdout
    write(fresh, in_bucket(bucket, "loop"), 3)
    fresh.run("run", "sft", "--auto-approve", "--follow")
    second = fresh.run("logs", "sft").stdout
    for path in sorted((fresh.directory.parent / "data").rglob("*.safetensors")):
        path.unlink()
    fresh.run("run", "sft", "--auto-approve", "--follow")
    third = fresh.run("logs", "sft").stdout
    status = fresh.json("status", "sft")
    write(fresh, in_bucket(bucket, "elsewhere"), 5)
    changed = fresh.actions()
    fresh.run("run", "sft", "--resume", "--auto-approve", "--follow")
    fourth = fresh.run("logs", "sft").stdout

    assert first == "loaded []\n"
    assert changed["job.sft"] == ["update"]
    for output, step in ((second, 2), (third, 4), (fourth, 4)):
        folder = f"sft/rank-0/checkpoint-{step}"
        assert (
            output
            == f"loaded ['{folder}/adapter_config.json', '{folder}/adapter_model.safetensors']\n"
        )
    assert [
        (checkpoint["name"], checkpoint["step"]) for checkpoint in status["loaded_checkpoints"]
    ] == [("checkpoint-4", 4)]


def test_a_wrong_credential_stops_a_run_before_it_trains(
    fresh: ProjectHarness, bucket: BucketServer
) -> None:
    """Nobody trains for two days to find that nothing was kept; with the right one the next apply runs it."""
    wrong = {**bucket.credential, "aws_secret_access_key": "another-secret"}
    fresh.variables["BUCKET"] = json.dumps(wrong)
    write(fresh, in_bucket(bucket, "wrong"))
    failed = fresh.run("apply", "--auto-approve", "--wait", code=12)
    events = fresh.events("apply", "--auto-approve", code=1)
    fresh.variables["BUCKET"] = json.dumps(bucket.credential)
    fresh.run("apply", "--auto-approve", "--wait")

    assert "checkpoint store s3://models/wrong: " in failed.stderr
    assert "SignatureDoesNotMatch" in failed.stderr
    assert "[checkpoint-store]" in failed.stderr
    codes = [event["data"]["code"] for event in events if event["type"] == "step_failed"]
    assert codes == ["checkpoint-store"]
    assert "another-secret" not in failed.stdout + failed.stderr
    assert [entry["name"] for entry in listed(fresh)] == ["checkpoint-1", "checkpoint-2"]


def test_a_directory_keeps_what_the_manifest_says(fresh: ProjectHarness, tmp_path: Path) -> None:
    """keep_last; what a destroy leaves is named, and --delete-checkpoints leaves nothing."""
    write(fresh, f"checkpoints: {{url: 'file://{tmp_path}/store', keep_last: 1}}")
    fresh.run("apply", "--auto-approve", "--wait")
    names = [entry["name"] for entry in listed(fresh)]
    url = fresh.run("checkpoints", "url", "sft").stdout.split()[0]
    kept = fresh.run("destroy", "--auto-approve").stdout
    stored = list((tmp_path / "store").rglob("*.safetensors"))
    fresh.run("apply", "--auto-approve", "--wait")
    gone = fresh.run("destroy", "--auto-approve", "--delete-checkpoints").stdout
    left = [path for path in (tmp_path / "store").rglob("*.safetensors") if path not in stored]

    assert names == ["checkpoint-2"]
    assert "1 run; checkpoints are kept" in kept
    assert "1 run; checkpoints are deleted" in gone
    with urllib.request.urlopen(url) as answer:
        assert answer.read()
    assert f"file://{tmp_path}/store/demo/sft/1-" in kept
    assert len(stored) == 1
    assert left == []
    assert processes(str(tmp_path)) == []


def test_the_jobs_of_a_sweep_have_checkpoints_of_their_own(
    fresh: ProjectHarness, tmp_path: Path
) -> None:
    """Each goes on from its own latest, whoever saved last; another job begins with the one that it names."""
    loaded = "find $BT_LOAD_CHECKPOINT_DIR/ -type f -exec cat {} +"
    save = "mkdir $BT_CHECKPOINT_DIR/checkpoint-1 && echo from ${{ matrix.lr }} > $BT_CHECKPOINT_DIR/checkpoint-1/model.bin"
    text = f"""\
project: {{name: demo}}
checkpoints: {{url: 'file://{tmp_path}/store'}}
jobs:
  s:
    matrix: {{lr: [1, 2]}}
    max_parallel: 1
    runtime:
      start_commands: ["{loaded}", "{save}"]
      checkpointing_config: {{enabled: true}}
      load_checkpoint_config: {{enabled: true, checkpoints: [{{typ: latest, job_id: s}}]}}
  ld:
    depends_on: [job.s]
    runtime:
      start_commands: ["{loaded}"]
      load_checkpoint_config: {{enabled: true, checkpoints: [{{typ: latest, job_id: 's["lr=1"]'}}]}}
"""
    fresh.write({"trainctl.yaml": text})
    fresh.run("apply", "--auto-approve", "--wait")
    first = [fresh.run("logs", name).stdout for name in ("s[lr=1]", "s[lr=2]", "ld")]
    fresh.run("run", "s", "--auto-approve", "--follow")
    second = [fresh.run("logs", name).stdout for name in ("s[lr=1]", "s[lr=2]")]

    assert first == ["", "", "from 1\n"]
    assert second == ["from 1\n", "from 2\n"]


def test_an_interrupted_download_is_taken_up(fresh: ProjectHarness, tmp_path: Path) -> None:
    """Intact files are not fetched again; a file that was changed in the store is refused; downloads are never code."""
    write(fresh, f"checkpoints: {{url: 'file://{tmp_path}/store'}}")
    save = 'import os, pathlib\npathlib.Path(os.environ["BT_CHECKPOINT_DIR"], "step=7.ckpt").write_text("7")\n'
    fresh.write({"src/train.py": save + TRAIN, "src/lib/code.py": ""})
    fresh.run("apply", "--auto-approve", "--wait")
    (stored,) = (tmp_path / "store").rglob("checkpoint-2/adapter_model.safetensors")
    good = stored.read_bytes()
    stored.write_bytes(good[:-1] + b"x")
    wrong = fresh.run("checkpoints", "download", "sft", code=1)
    after_wrong = [path.name for path in fresh.directory.glob("checkpoint-*")]
    stored.write_bytes(good)
    (unfinished,) = fresh.directory.glob(".download-*")
    (unfinished / stored.name).write_bytes(good[:50])
    place = fresh.run("checkpoints", "download", "sft").stdout.strip()
    again = fresh.run("checkpoints", "download", "sft", code=64)
    options = ("--name", "step=7.ckpt", "--output-dir", "src/out")
    file = fresh.run("checkpoints", "download", "sft", *options)
    deployed = fresh.run("checkpoints", "deploy", "sft", "--out", "src/lib")

    assert "is corrupt" in wrong.stderr
    assert after_wrong == []
    assert (fresh.directory / place / stored.name).read_bytes() == good
    assert not list(fresh.directory.glob(".download-*"))
    assert "already exists" in again.stderr
    assert "[target-exists]" in again.stderr
    assert "no job named" in fresh.run("checkpoints", "list", code=64).stderr
    assert (fresh.directory / "src/out/step=7.ckpt/step=7.ckpt").read_text() == "7"
    for output, place in ((file, "src/out/step=7.ckpt"), (deployed, "src/lib/model")):
        assert f"{place} is in the code directory of job.sft, and is left out" in output.stderr
