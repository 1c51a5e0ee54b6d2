"""How checkpoints are served: the command, the base model and the manifest by what their files say."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.projects.manifests import desired
from trainctl.errors import UsageError
from trainctl.inputs.serving import ServedCheckpoint, ServingEngine
from trainctl.ledger.state import RecordedResource
from trainctl.model.address import Address, Kind
from trainctl.model.redaction import Redactor
from trainctl.model.run import RunRecord
from trainctl.node.checkpoints.metadata import describe_checkpoint
from trainctl.operations.runs.deploy import prepare_serving
from trainctl.operations.runs.lookup import JobRun
from trainctl.operations.workspace import Workspace, WorkspaceSettings

MANIFEST = """\
project: {name: demo}
clusters: {local: {provider: local, cache: {node: {dir: /scratch}}}, big: {provider: local, nodes: 2}}
weights:
  hub: {source: "hf://acme/chat@main", mount_location: /models/chat}
  own: {source: "file:./own", mount_location: models/own}
jobs:
  tune:
    cluster: local
    IMAGE
    compute: {accelerator: "H100:8"}
    weights: [hub, own]
    runtime: {start_commands: ["true"]}
"""
COMMIT = "c" * 40
BIND = "--host 127.0.0.1 --port 8000"
GPUS = '--tensor-parallel-size "${BT_NUM_GPUS:-1}"'
FULL = {"config.json": {"model_type": "llama"}, "tokenizer.json": {}, "model.safetensors": {}}
WHISPER = {
    "config.json": {"model_type": "whisper"}, "preprocessor_config.json": {}, "model.safetensors": {}
}  # fmt: skip


MERGED = (
    'python3 "$here/load.py" "$model" "$base" complete\nmodel=complete\nexec vllm serve "$model"'
)


def lora(base: str, **more: Any) -> dict[str, Any]:
    config = {"base_model_name_or_path": base, "r": 12, **more}
    return {"adapter_config.json": config, "adapter_model.safetensors": {}}


def served(top: Path, files: dict[str, Any], image: str = "", **options: Any) -> ServedCheckpoint:
    """How a checkpoint with these files is served, those of an optimizer among them."""
    place = top / "checkpoint-5"
    place.mkdir()
    files = {**files, "optimizer.pt": {}, "trainer_state.json": {}, "README.md": {}}
    for name, value in files.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(json.dumps(value))
    rows = [
        {
            **describe_checkpoint(place, "checkpoint-5", files),
            "files": [{"path": name, "size": 2, "modified": at} for at, name in enumerate(files)],
            "name": "checkpoint-5",
            "rank": 0,
            "state": "complete",
            "created_at": 1.0,
            "bytes": 2,
            "url": "s3://b/x",
        }
    ]
    wanted = desired(top, MANIFEST.replace("IMAGE", image))
    address = Address(Kind.JOB, "tune")
    attributes = {**wanted.resources[address].attributes, "weight_pins": {"weights.hub": COMMIT}}
    run = JobRun(RecordedResource(address, "local", attributes, {}), RunRecord("abc", 1, "k"))
    workspace = Workspace(WorkspaceSettings(top, os.environ, Redactor(), lambda _: {}), wanted)
    chosen = {"checkpoint": None, "base_model": None, "cluster": None, "engine": "vllm", **options}
    chosen["engine"] = ServingEngine(chosen["engine"])
    return prepare_serving(workspace, run, rows, **chosen)


@pytest.mark.parametrize(
    ("files", "engine", "text"),
    [
        (FULL, "vllm", f'exec vllm serve "$model" --served-model-name tune {BIND} {GPUS}'),
        (FULL, "transformers", f'exec transformers serve "$model" {BIND}'),
        (WHISPER, "vllm", f'exec vllm serve "$model" --served-model-name tune {BIND} {GPUS}'),
        (lora("acme/base"), "vllm",
         f'exec vllm serve "$base" --enable-lora --max-lora-rank 16 --lora-modules tune="$model" {BIND} {GPUS}'),
        (lora("acme/base"), "transformers",
         f'python3 "$here/load.py" "$model" "$base" complete\nmodel=complete\nexec transformers serve "$model" {BIND}'),
        (lora("acme/base", use_dora=True), "vllm", MERGED),
        (lora("acme/base", modules_to_save=["lm_head"]), "vllm", MERGED),
        (lora("acme/base", peft_type="IA3"), "vllm", MERGED),
        (lora("acme/base", peft_type="ADALORA"), "vllm", MERGED),
        ({**FULL, "config.json": {"_name_or_path": "acme/base"}, "tokenizer.json": None}, "vllm",
         MERGED),
    ],
    ids=["full", "full-transformers", "whisper", "lora", "lora-transformers", "dora", "modules", "ia3", "adalora", "no-tokenizer"],
)  # fmt: skip
def test_the_command(tmp_path: Path, files: dict[str, Any], engine: str, text: str) -> None:
    """Of each type and engine, in a script that the shell understands and with a program that Python does."""
    files = {name: value for name, value in files.items() if value is not None}
    texts = served(tmp_path, files, engine=engine).files()
    assert text in texts["serve/serve.sh"]
    assert ("base=${2:-acme/base}\n" in texts["serve/serve.sh"]) == ('"$base"' in text)
    subprocess.run(["sh", "-n"], input=texts["serve/serve.sh"], text=True, check=True)
    compile(texts["serve/load.py"], "load.py", "exec")


@pytest.mark.parametrize(
    ("named", "source"),
    [
        ("acme/base", "hf://acme/base"),
        ("acme/chat", f"hf://acme/chat@{COMMIT}"),
        ("acme/chat@main", f"hf://acme/chat@{COMMIT}"),
        ("file:./own", "file://TOP/own"),
        ("/models/chat", f"hf://acme/chat@{COMMIT}"),
        ("/home/me/runs/1/models/own/", "file://TOP/own"),
        ("s3://bucket/base", "s3://bucket/base"),
    ],
)
def test_the_base_model(tmp_path: Path, named: str, source: str) -> None:
    """By its name or by the path of the job's weights, as the revision that the run had."""
    assert served(tmp_path, lora(named)).base == source.replace("TOP", str(tmp_path.resolve()))


@pytest.mark.parametrize("named", ["/data/unknown", "./out", 'hf://a/b"$(true)"', ""])
def test_an_unknown_base_model(tmp_path: Path, named: str) -> None:
    """Is asked for; nothing of it gets into a script."""
    with pytest.raises(UsageError) as caught:
        served(tmp_path, lora(named))
    assert caught.value.code == "unknown-base-model"


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"model.safetensors": {}}, "it lacks config.json, or weights"),
        ({"config.json": {}, "pytorch_model_fsdp_0/__0_0.distcp": {}}, "it lacks config.json"),
        ({"state.pt": {}}, "it lacks config.json, or weights"),
        (lora("acme/base", peft_type="PREFIX_TUNING"), "adapters of type prefix_tuning can't be"),
    ],
    ids=["no-config", "fsdp", "other", "prefix"],
)
def test_what_cannot_be_served(tmp_path: Path, files: dict[str, Any], reason: str) -> None:
    """Has no configuration or no weights of transformers, or can't be merged."""
    with pytest.raises(UsageError, match=reason) as caught:
        served(tmp_path, files)
    assert caught.value.code == "checkpoint-not-servable"


def test_a_model_that_older_weights_hide(tmp_path: Path) -> None:
    """Shards that ``save_pretrained`` wrote over a single file, or the other way round."""
    shard = "model-00001-of-00001.safetensors"
    (tmp_path / "x").mkdir()
    assert served(tmp_path, {**FULL, shard: {}}).warnings
    assert served(tmp_path / "x", {shard: {}, **FULL}).warnings == ()


def test_the_manifest(tmp_path: Path) -> None:
    """Is valid, runs where the job ran with one of its GPUs, and copies nothing that only resuming needs."""
    serving = served(tmp_path, lora("acme/chat"), "image: {base_image: 'x:1'}")
    (tmp_path / "made/serve").mkdir(parents=True)
    created = desired(tmp_path / "made", serving.files()["trainctl.yaml"])
    job = created.resources[Address(Kind.JOB, "serve")].job_spec
    assert [file["path"] for file in serving.row["files"]] == [*lora(""), "README.md"]
    assert job.image is not None
    assert job.image.base_image.startswith("vllm/vllm-openai:v")
    assert (job.cluster, job.compute.accelerator, job.code.path) == ("local", "H100", "serve")
    assert {item.source for item in job.weights} == {"file:./model", f"hf://acme/chat@{COMMIT}"}
