"""Trains a tiny model for an epoch with ``transformers.Trainer``, or TRL's ``SFTTrainer``; see ``trainers.launch``.

``--variant`` has words: ``sft`` (TRL's), ``shard`` (each rank reads, else rank 0 dispatches), ``evaluate`` (records the
samples of an evaluation instead of training), ``two`` (epochs), ``parquet`` and ``stream`` (loaders of tokens, by the lines
that their error shows).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
)

from stoker import LMStream, StreamingDataset, StreamingParquetLoader
from stoker.loaders.iterable import TRAINER
from trainers.launch import arguments, record

GLOBAL_BATCH = 8


class StopAfter(TrainerCallback):  # type: ignore[misc]
    """Saves a checkpoint and ends training after so many steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.steps:
            control.should_save = control.should_training_stop = True


def tokens(sample: dict[str, Any]) -> dict[str, Any]:
    row = np.full(8, sample["id"], np.int64)
    return {"input_ids": row, "labels": row, "attention_mask": np.ones(8, np.int64)}


def main() -> None:
    options = arguments(__doc__)
    words = set(options.variant.split())
    ranks, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            num_key_value_heads=1,
            use_cache=False,
        )
    )
    steps: list[Any] = []
    model.register_forward_pre_hook(
        lambda _, __, given: steps.append(given["input_ids"][:, 0].clone()), with_kwargs=True
    )
    # The checkpoint counts steps: the global batch is the same in any world.
    size = GLOBAL_BATCH // ranks
    settings: dict[str, Any] = {
        "output_dir": options.checkpoint or options.out,
        "per_device_train_batch_size": size,
        "per_device_eval_batch_size": size,
        "num_train_epochs": 2 if "two" in words else 1,
        "dataloader_num_workers": options.workers,
        "use_cpu": True,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "accelerator_config": {"dispatch_batches": False if "shard" in words else None},
    }
    data = StreamingDataset(options.data, shuffle=True, batch_size=size, transform=tokens)
    how: dict[str, Any] = {
        "model": model,
        "train_dataset": data,
        "eval_dataset": StreamingDataset(options.data, batch_size=size, transform=tokens),
        "callbacks": [StopAfter(options.stop_after)] if options.stop_after else [],
    }
    if words & {"parquet", "stream"}:
        settings.pop("num_train_epochs" if "stream" in words else "accelerator_config")
        settings["max_steps"] = 30 if "stream" in words else -1
        how["train_dataset"] = _tokens(options.data, size, stream="stream" in words)
        made: dict[str, Any] = {}
        exec(TRAINER, made)
        trainer: Any = made["TokenTrainer"](args=TrainingArguments(**settings), **how)
    elif "sft" in words:
        import datasets
        from trl import SFTConfig, SFTTrainer

        # SFTTrainer takes the datasets package's classes alone.
        how["train_dataset"] = datasets.IterableDataset.from_generator(lambda: iter(data))
        how["eval_dataset"] = None
        settings["remove_unused_columns"] = False
        settings["max_steps"] = -(-data.epoch_size // GLOBAL_BATCH)
        args = SFTConfig(**settings, dataset_kwargs={"skip_prepare_dataset": True}, max_length=None)
        trainer = SFTTrainer(args=args, processing_class=_tokenizer(), data_collator=default_data_collator, **how)
    else:
        trainer = Trainer(args=TrainingArguments(**settings), data_collator=default_data_collator, **how)
    if "evaluate" in words:
        trainer.evaluate()
    else:
        trainer.train(
            resume_from_checkpoint=str(next(Path(options.checkpoint).glob("checkpoint-*"))) if options.resume else None
        )
    record(options.out, rank, steps)


def _tokens(data: str, size: int, *, stream: bool) -> Any:
    """A loader of 100 rows of tokens, each of which is its number."""
    path = Path(data).with_name("rows.parquet")
    if not stream:
        return StreamingParquetLoader(str(path), batch_size=size, seq_len=8)
    return LMStream(StreamingDataset(str(path), shuffle=True), "input_ids", size, 8, endless=True)


def _tokenizer() -> Any:
    """A tokenizer of 256 words, made here: nothing is downloaded."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    known = {f"w{number}": number for number in range(256)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(known, unk_token="w0")), pad_token="w0", eos_token="w0"
    )


if __name__ == "__main__":
    main()
