"""Trains a small GPT on the source of Python's standard library, on any number of ranks, and resumes after a crash.

    python examples/train_gpt.py --out /tmp/gpt                                          # one process
    torchrun --nproc-per-node=2 examples/train_gpt.py --out /tmp/gpt                     # two ranks
    torchrun --nproc-per-node=3 examples/train_gpt.py --out /tmp/gpt --resume            # resume on three

The first run trains a BPE tokenizer on the text and writes the tokens as Parquet files, a few files of a few row groups
each; nothing is downloaded. A checkpoint is the model, the optimizer and ``loader.state_dict()``, which is the same on all
ranks. A run that resumes from it trains on every window of tokens of the epoch that was left, each once.

``--record FOLDER`` writes the loss and a hash of every window, one line per step and rank.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from demo_text import standard_library, train_tokenizer
from stoker import tokenize
from stoker.loaders.parquet_loader import StreamingParquetLoader
from stoker.tokens import LMBatch

VOCABULARY = 1024
PIECES = 8


class GPT(nn.Module):
    """A decoder of a few layers, with attention that does not cross the borders of documents."""

    def __init__(self, width: int, layers: int, seq_len: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(seq_len, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False))

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
        """Logits, shape ``(b, s, vocabulary)``."""
        size = ids.shape[1]
        # A token attends to those before it in its own document; padding attends to itself.
        apart = documents[:, :, None] != documents[:, None, :]
        later = torch.ones(size, size, dtype=torch.bool).triu(1)
        mask = (apart | later).repeat_interleave(4, dim=0)
        x = self.tokens(ids) + self.positions(positions)
        for block in self.blocks:
            x = block(x, src_mask=mask)
        logits: torch.Tensor = self.head(x)
        return logits


def prepare(folder: Path, characters: int) -> None:
    """Make the token files, unless they exist."""
    if (folder / "tokens").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    files = standard_library(characters)
    train_tokenizer(files, VOCABULARY, lambda _: None).save(str(folder / "tokenizer.json"))
    (folder / "text").mkdir(exist_ok=True)
    for number in range(PIECES):
        with open(folder / "text" / f"{number}.jsonl", "w", encoding="utf-8") as out:
            out.writelines(json.dumps({"text": file.text}) + "\n" for file in files[number::PIECES])
    tokenize(
        folder / "text",
        folder / "tokens",
        folder / "tokenizer.json",
        processes=1,
        row_group_tokens=characters // 100,
        file_tokens=1,  # a file for each piece of text
    )


def loss_of(model: nn.Module, batch: LMBatch) -> torch.Tensor:
    """Mean loss over the labels that are not masked."""
    tensors = batch.torch("input_ids", "labels", "position_ids", "document_ids")
    logits = model(tensors["input_ids"], tensors["position_ids"], tensors["document_ids"])
    return functional.cross_entropy(logits.flatten(0, 1), tensors["labels"].flatten(), ignore_index=-100)


def save(path: Path, state: dict[str, Any]) -> None:
    """Write the file under another name and rename it, so that it is whole or not there."""
    torch.save(state, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


def steps_of(loader: StreamingParquetLoader, epochs: int) -> Iterator[LMBatch]:
    """Batches from the current position of the loader until so many epochs are done."""
    while loader.current_epoch < epochs and not (loader.is_epoch_exhausted and loader.current_epoch == epochs - 1):
        yield from loader


def train(options: argparse.Namespace) -> None:
    distributed = "RANK" in os.environ
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0
    if rank == 0:
        prepare(options.out, options.characters)
    if distributed:
        dist.barrier()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: nn.Module = GPT(options.width, options.layers, options.seq_len)
    loader = StreamingParquetLoader(
        options.out / "tokens",
        batch_size=options.batch_size,
        seq_len=options.seq_len,
        eos_id=0,  # the tokenizer's first token ends a file
        pad_id=0,
        vocab_size=VOCABULARY,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, weight_decay=0.01)
    checkpoint = options.out / "checkpoint.pt"
    step = 0
    if options.resume:
        found = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        loader.load_state_dict(found["loader"])
        step = found["step"]
    trained = nn.parallel.DistributedDataParallel(model) if distributed else model
    record = None
    if options.record is not None:
        options.record.mkdir(parents=True, exist_ok=True)
        record = open(options.record / f"{os.getpid()}.jsonl", "w", encoding="utf-8")  # noqa: SIM115
    for batch in steps_of(loader, options.epochs):
        loss = loss_of(trained, batch)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        mean = loss.detach()
        if distributed:
            dist.all_reduce(mean)
            mean /= dist.get_world_size()
        if record is not None:
            windows = [hashlib.sha256(row.tobytes()).hexdigest()[:16] for row in batch.input_ids]
            record.write(json.dumps({"step": step, "rank": rank, "loss": float(mean), "windows": windows}) + "\n")
            record.flush()
        if rank == 0 and step % options.report == 0:
            print(f"epoch {loader.current_epoch} step {step} loss {float(mean):.3f}", flush=True)
        if rank == 0 and step % options.save_every == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
            save(checkpoint, {**state, "step": step})
    if rank == 0:
        stats = loader.stats()
        print(
            f"done: {stats.tokens} tokens on this rank, {stats.padding_waste:.2%} of all positions padding", flush=True
        )
    loader.close()
    if record is not None:
        record.close()
    if distributed:
        dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for tokens and the checkpoint")
    parser.add_argument("--resume", action="store_true", help="resume from the checkpoint in that folder")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=8, help="rows of a batch on one rank")
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--characters", type=int, default=4_000_000, help="characters of the standard library to use")
    parser.add_argument("--save-every", type=int, default=50, help="steps")
    parser.add_argument("--report", type=int, default=10, help="steps")
    parser.add_argument("--record", type=Path, help="folder for records of the windows trained on")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
