"""Train a language model with ``transformers.Trainer``: one script for one process, several GPUs and several nodes.

    python examples/train_transformers.py out
    torchrun --nproc-per-node 2 examples/train_transformers.py out
    torchrun --nproc-per-node 2 examples/train_transformers.py out --resume

Rows of tokens are written first, so that it runs as it is; put your own dataset in place of ``out/data``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, default_data_collator

from stoker import HashSplit, MDSWriter, StreamingDataset

ROW = 32


def write(out: Path) -> None:
    """Rows of tokens that count upwards, which a model can learn."""
    rows = (np.arange(512)[:, None] + np.arange(ROW)) % 64
    with MDSWriter({"tokens": f"ndarray:uint16:{ROW}"}, str(out), size_limit="8kb") as writer:
        writer.write_batch({"tokens": rows.astype(np.uint16)})


def to_inputs(sample: dict[str, Any]) -> dict[str, Any]:
    """The names that the model expects."""
    tokens = torch.from_numpy(sample["tokens"].astype(np.int64))
    return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--max-steps", type=int, default=-1, help="steps; default: two epochs")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    options = parser.parse_args()

    args = TrainingArguments(
        output_dir=str(options.out / "checkpoints"),
        per_device_train_batch_size=8,
        num_train_epochs=2,
        max_steps=options.max_steps,
        learning_rate=1e-2,
        dataloader_num_workers=2,
        save_steps=10,
        eval_strategy="epoch",
        logging_steps=10,
        report_to=[],
        # Each rank reads its own samples; by default rank 0 would read for all and send them theirs.
        accelerator_config={"dispatch_batches": False},
    )
    with args.main_process_first():
        if not (options.out / "data").exists():
            write(options.out / "data")
    data: dict[str, Any] = {"remote": str(options.out / "data"), "batch_size": 8, "transform": to_inputs}
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
    )
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=StreamingDataset(**data, shuffle=True, remainder="drop", subset=HashSplit(0, 0.9)),
        eval_dataset=StreamingDataset(**data, subset=HashSplit(0.9, 1)),
        data_collator=default_data_collator,
    )
    trainer.train(resume_from_checkpoint=options.resume or None)
    print(f"rank {args.process_index}: {trainer.state.global_step} steps, {trainer.evaluate()['eval_loss']:.3f} loss")


if __name__ == "__main__":
    main()
