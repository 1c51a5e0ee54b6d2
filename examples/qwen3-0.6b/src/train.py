"""Fine-tunes a causal language model on JSON lines with a field "text". Runs unchanged on the hosted service."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from datasets import Dataset, load_dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
)
from transformers.trainer_utils import get_last_checkpoint

MAX_TOKENS = 1024


def parse_flags() -> argparse.Namespace:
    """The flags that the manifest passes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True, help="mounted weights, read-only")
    parser.add_argument("--data", type=Path, required=True, help="mounted *.jsonl files, read-only")
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--epochs", type=float, default=1)
    return parser.parse_args()


def tokenised(data: Path, tokenizer: PreTrainedTokenizerBase) -> Dataset:
    """The data set as tokens; datasets keeps the result in the training cache, so a second run finds it there."""
    cache = os.environ.get("BT_PROJECT_CACHE_DIR")
    files = sorted(str(path) for path in data.rglob("*.jsonl"))
    rows = load_dataset("json", data_files=files, split="train", cache_dir=cache)
    return rows.map(
        lambda batch: tokenizer(batch["text"], truncation=True, max_length=MAX_TOKENS),
        batched=True,
        remove_columns=rows.column_names,
    )


def main() -> None:
    """Train, and leave checkpoints where they are kept."""
    flags = parse_flags()
    tokenizer = AutoTokenizer.from_pretrained(flags.model)
    model = AutoModelForCausalLM.from_pretrained(flags.model, torch_dtype="bfloat16")
    checkpoints = os.environ["BT_CHECKPOINT_DIR"]
    arguments = TrainingArguments(
        output_dir=checkpoints,
        learning_rate=flags.lr,
        num_train_epochs=flags.epochs,
        per_device_train_batch_size=8,
        gradient_checkpointing=True,
        bf16=True,
        logging_steps=10,
        save_steps=200,
        save_total_limit=3,
        report_to="none",
        run_name=os.environ.get("BT_TRAINING_JOB_NAME"),
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=tokenised(flags.data, tokenizer),
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )
    # A restarted attempt resumes from the checkpoint of the attempt before.
    trainer.train(resume_from_checkpoint=get_last_checkpoint(checkpoints))
    trainer.save_model(str(Path(checkpoints) / "final"))


if __name__ == "__main__":
    main()
