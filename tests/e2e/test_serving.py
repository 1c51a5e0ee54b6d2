"""A tiny full model and a tiny LoRA, trained, written to directories that serve them, loaded and served on the CPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.machines.sshd import SshUser, require_sshd, sshds
from tests.support.node_program.nodes import wait_for
from tests.support.projects.project import ProjectHarness, project
from tests.support.pytorch import pytorch
from tests.support.servers.buckets import free_port

pytestmark = pytest.mark.long

BASE = """\
import sys
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
words = Tokenizer(models.WordLevel({word: n for n, word in enumerate("? a b c d e f g".split())}, unk_token="?"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?", eos_token="?", pad_token="?")
tokenizer.chat_template = "{% for message in messages %}{{ message.content }} {% endfor %}"
tokenizer.save_pretrained(sys.argv[1])
LlamaForCausalLM(LlamaConfig(
    vocab_size=8, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, bos_token_id=0,
    eos_token_id=0, max_position_embeddings=64,
)).save_pretrained(sys.argv[1])
"""
TRAIN = """\
import os, sys, torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments
base = os.environ["BASE"]
model = AutoModelForCausalLM.from_pretrained(base)
if sys.argv[1] == "lora":
    model = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
data = [{"input_ids": torch.arange(1, 8), "labels": torch.arange(1, 8)}] * 4
options = TrainingArguments(os.environ["BT_CHECKPOINT_DIR"], max_steps=2, save_steps=2, report_to=[], use_cpu=True)
tokenizer = AutoTokenizer.from_pretrained(base)
Trainer(model, options, train_dataset=data, processing_class=tokenizer).train()
print("sum", sum(float(p.double().sum()) for p in getattr(model, "merge_and_unload", lambda: model)().parameters()))
"""
MANIFEST = """\
project: {name: demo}
clusters: {local: {provider: local}, lab: {provider: ssh, hosts: [HOST]}}
checkpoints: {url: "file://STORE"}
weights: {base: {source: "file:./base", mount_location: models/base}}
"""
JOB = """\
  NAME:
    cluster: local
    code: ./src
    weights: [base]
    compute: {accelerator: none}
    runtime:
      venv: VENV
      start_commands: [python train.py NAME]
      environment_variables: {BASE: models/base, HF_HUB_OFFLINE: "1"}
      checkpointing_config: {enabled: true}
"""
TYPES = ("full", "lora")
PACKAGES = ("transformers[serving]==5.24.0", "peft==0.21.2")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProjectHarness]:
    """Both models, trained from a base model made on the spot, by jobs of their types' names; a host that the user knows."""
    require_sshd()
    venv, top = pytorch(*PACKAGES), tmp_path_factory.mktemp("host")
    user = SshUser(top / "user")
    with project(tmp_path_factory.mktemp("serving")) as created, sshds(top, user, 1) as (host,):
        created.variables.update(user.environment)
        user.known_hosts.write_text(host.known)
        jobs = "".join(JOB.replace("NAME", name) for name in TYPES).replace("VENV", str(venv))
        text = MANIFEST.replace("STORE", str(created.directory.parent / "store")).replace(
            "HOST", json.dumps(host.settings)
        )
        created.write({"trainctl.yaml": f"{text}jobs:\n{jobs}", "src/train.py": TRAIN})
        python(venv, "-c", BASE, str(created.directory / "base"))
        created.run("apply", "--auto-approve", "--wait", seconds=600)
        yield created


def python(venv: Path, *arguments: str) -> str:
    """What a program of the environment prints, without the network."""
    done = subprocess.run(
        [str(venv / "bin/python"), *arguments],
        env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", TYPES)
def test_the_written_directory_is_loaded(trained: ProjectHarness, kind: str) -> None:
    """By transformers, with the very weights that were trained; a second time nothing is overwritten."""
    trained.run("checkpoints", "deploy", kind, "--out", f"out-{kind}")
    again = trained.run("checkpoints", "deploy", kind, "--out", f"out-{kind}", code=64)
    place, copy = trained.directory / f"out-{kind}", trained.directory / f"copy-{kind}"
    output = python(pytorch(*PACKAGES), str(place / "serve/load.py"), "", "", str(copy))
    total = python(
        pytorch(*PACKAGES),
        "-c",
        "import sys; from transformers import AutoModelForCausalLM as M\n"
        "print(sum(float(p.double().sum()) for p in M.from_pretrained(sys.argv[1]).parameters()))",
        str(copy),
    )
    (line,) = (
        item for item in trained.run("logs", kind).stdout.splitlines() if item.startswith("sum")
    )

    assert output.startswith("LlamaForCausalLM: ")
    assert float(total) == pytest.approx(float(line.split()[1]), abs=1e-5)
    assert (copy / "tokenizer.json").is_file()
    assert "already exists" in again.stderr
    assert not list((place / "model").glob("optimizer*"))
    assert all(path.stat().st_nlink == 2 for path in (place / "model").glob("*.safetensors"))


@pytest.mark.parametrize("kind", TYPES)
def test_it_is_served_on_a_cluster(trained: ProjectHarness, kind: str) -> None:
    """By the manifest in the directory: the OpenAI-compatible endpoint, reached by proxy, completes a prompt."""
    out = f"served-{kind}"
    trained.run(
        "checkpoints", "deploy", kind, "--engine", "transformers", "--cluster", "lab", "--out", out
    )
    place = trained.directory / out
    here, port = free_port(), free_port()
    edit(place / "serve/serve.sh", "--port 8000", f"--port {port}")
    edit(place / "trainctl.yaml", "requirements: requirements.txt",
         f'venv: {pytorch(*PACKAGES)}\n      environment_variables: {{HF_HUB_OFFLINE: "1"}}')  # fmt: skip
    trained.run("-C", out, "apply", "--auto-approve")
    try:
        wait_for(lambda: "Uvicorn running" in trained.run("-C", out, "logs", "serve").stdout, 240)
        with trained.start("-C", out, "proxy", "serve", f"{here}:{port}") as proxy:
            wait_for(lambda: asked(here, "models") is not None, 30)
            (model,) = (asked(here, "models") or {})["data"]
            question = {
                "model": model["id"],
                "max_tokens": 3,
                "messages": [{"role": "user", "content": "a b"}],
            }
            answer = asked(here, "chat/completions", question)
            proxy.send_signal(signal.SIGINT)
            assert proxy.wait(20) == 0
    finally:
        trained.run("-C", out, "stop", "serve", "--auto-approve")
    assert answer is not None
    assert answer["usage"]["prompt_tokens"] == 2
    assert answer["choices"][0]["message"]["role"] == "assistant"


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def asked(port: int, path: str, body: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """The answer of the endpoint; None while there is none."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/{path}",
        json.dumps(body).encode() if body else None,
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            result: dict[str, Any] = json.load(response)
    except urllib.error.URLError:
        return None
    return result
