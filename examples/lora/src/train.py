"""Train a LoRA adapter on the lines of data.jsonl; checkpoints hold the adapter only."""

import argparse
import json
import os
from pathlib import Path

from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

LONGEST = 512


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--epochs", type=float, default=3)
    options = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    lines = Path(__file__).with_name("data.jsonl").read_text().splitlines()
    texts = [json.loads(line)["text"] + tokenizer.eos_token for line in lines]
    data = [tokenizer(text, truncation=True, max_length=LONGEST) for text in texts]

    model = AutoModelForCausalLM.from_pretrained(options.model)
    lora = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(model, lora)
    model.print_trainable_parameters()

    arguments = TrainingArguments(
        output_dir=os.environ["BT_CHECKPOINT_DIR"],
        learning_rate=options.lr,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=2,
        logging_steps=1,
        save_strategy="epoch",
        report_to="none",
        disable_tqdm=True,
    )
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    Trainer(model, arguments, train_dataset=data, data_collator=collator).train()


if __name__ == "__main__":
    main()
