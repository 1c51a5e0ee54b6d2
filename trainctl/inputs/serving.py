"""Files of a directory that serves a checkpoint by vLLM 0.33 or transformers 5.24, with their options."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from shlex import quote
from typing import Any

from trainctl.base.lazy_dataclass import dataclass
from trainctl.manifest.writer import to_yaml
from trainctl.model.source_uri import parse_source

WEIGHTS, JOB, PORT = "model", "serve", 8000

_VLLM = "0.33.0"
_TRANSFORMERS = "5.24.0"
_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # values of vLLM's --max-lora-rank


class ServingEngine(StrEnum):
    """Programs with an OpenAI-compatible endpoint."""

    VLLM = "vllm"
    TRANSFORMERS = "transformers"


@dataclass(frozen=True, slots=True)
class ServedCheckpoint:
    """A checkpoint, by its row with the files to copy, to serve as the model ``name``.

    ``base``: source of the base model if it is needed: for adapters, and if the checkpoint lacks its tokenizer or
    preprocessor (``has_processor``). ``image``: whether vLLM runs in a container. ``cluster``: name and settings.
    """

    row: Mapping[str, Any]
    name: str
    engine: ServingEngine
    cluster: tuple[str, Mapping[str, Any]]
    accelerator: str | None
    image: bool
    base: str | None = None
    has_processor: bool = True
    warnings: tuple[str, ...] = ()

    def files(self) -> dict[str, str]:
        """Return the text of each file by its path, the manifest last."""
        uri = parse_source(self.base) if self.base else None
        base = uri.location if uri and (uri.has_commits or uri.is_local) else ""
        is_adapter = self.row["type"] not in ("full", "whisper")
        is_whisper = "whisper" in f"{self.row['type']} {base}".lower()
        packages = f"vllm{'[audio]' if is_whisper else ''}=={_VLLM}\n"
        if self.engine is ServingEngine.TRANSFORMERS:
            packages = f"transformers[serving]=={_TRANSFORMERS}\ntorch\n"
        loader = _LOADER.format(
            model="AutoModelForSpeechSeq2Seq" if is_whisper else "AutoModelForCausalLM",
            processor="AutoProcessor" if is_whisper else "AutoTokenizer",
            base=base,
            weights="base" if is_adapter else "checkpoint",
            adapter=_ADAPTER if is_adapter else "",
            processor_from="checkpoint" if self.has_processor else "base",
        )
        weights = {WEIGHTS: {"source": f"file:./{WEIGHTS}"}}
        if self.base:
            weights["base"] = {"source": self.base}
        paths = " ".join(f"${{{{ weights.{name}.path }}}}" for name in weights)
        requirements = None if self.image else "requirements.txt"
        image = {"image": {"base_image": f"vllm/vllm-openai:v{_VLLM}"}} if self.image else {}
        compute = {"compute": {"accelerator": self.accelerator}} if self.accelerator else {}
        cluster, settings = self.cluster
        job = {
            "cluster": cluster,
            "code": f"./{JOB}",
            **image,
            **compute,
            "weights": [*weights],
            "runtime": {"start_commands": [f"sh serve.sh {paths}"], "requirements": requirements},
        }
        project = {"name": f"serve-{self.name}"}
        tree = {"project": project, "clusters": {cluster: settings}, "weights": weights}
        return {
            f"{JOB}/serve.sh": self._script(base, is_adapter=is_adapter),
            f"{JOB}/load.py": loader,
            f"{JOB}/requirements.txt": packages + ("peft\n" if is_adapter else ""),
            "trainctl.yaml": to_yaml(_without_none({**tree, "jobs": {JOB: job}}), {}),
        }

    def _script(self, base: str, *, is_adapter: bool) -> str:
        vllm = self.engine is ServingEngine.VLLM
        # vLLM serves plain LoRA only, transformers no adapters; no engine takes a tokenizer or preprocessor from elsewhere.
        serves_adapter = vllm and self.row["type"] == "lora"
        complete = not serves_adapter if is_adapter else not self.has_processor
        if serves_adapter:
            wanted = min(self.row.get("lora_rank") or 16, _LORA_RANKS[-1])
            rank = next(size for size in _LORA_RANKS if size >= wanted)
            command = f'vllm serve "$base" --enable-lora --max-lora-rank {rank} --lora-modules {self.name}="$model"'
        else:
            name = f" --served-model-name {self.name}" if vllm else ""
            command = f'{self.engine} serve "$model"{name}'
        return _SCRIPT.format(
            base=f"base=${{2:-{quote(base)}}}\n" if self.base else "",
            complete=_COMPLETE if complete else "",
            command=f"{command} --host 127.0.0.1 --port {PORT}{_PARALLEL if vllm else ''}",
        )


def _without_none(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {key: _without_none(item) for key, item in value.items() if item is not None}


_SCRIPT = """\
# Serve the model: sh serve.sh [MODEL [BASE]]
set -e
here=$(dirname "$0")
model=${{1:-$here/../model}}
{base}{complete}exec {command}
"""
_COMPLETE = 'python3 "$here/load.py" "$model" "$base" complete\nmodel=complete\n'
_PARALLEL = ' --tensor-parallel-size "${BT_NUM_GPUS:-1}"'

_LOADER = '''\
"""Load the checkpoint: python3 load.py [CHECKPOINT [BASE [COPY]]]; COPY gets all that a server needs."""
import pathlib
import sys
from transformers import {model}, {processor}

checkpoint, base, copy = [*sys.argv[1:], "", "", ""][:3]
checkpoint = checkpoint or pathlib.Path(__file__).resolve().parent.parent / "model"
base = base or {base!r}
model = {model}.from_pretrained({weights}, dtype="auto")
{adapter}processor = {processor}.from_pretrained({processor_from})
print(f"{{type(model).__name__}}: {{model.num_parameters()}} parameters")
if copy:
    model.save_pretrained(copy)
    processor.save_pretrained(copy)
'''
_ADAPTER = """\
from peft import PeftModel
model = PeftModel.from_pretrained(model, checkpoint).merge_and_unload()
"""
