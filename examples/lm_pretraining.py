"""Trains a small language model on tokens in Parquet files, packed into rows of one length, with a checkpoint in mid-epoch.

    python examples/lm_pretraining.py --out /tmp/lm
    python examples/lm_pretraining.py --out /tmp/lm --resume    # goes on where the checkpoint is

train_gpt.py is the longer example: a tokenizer, documents that are kept apart, and a resume on other ranks.
"""

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

from stoker import StreamingParquetLoader

VOCABULARY, LENGTH, BATCH = 64, 32, 8


def write(out: Path) -> None:
    """Four files of documents in which each token follows from the one before."""
    out.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(4):
        starts = rng.integers(2, VOCABULARY, 150).tolist()
        documents = [(start + 3 * np.arange(5 + start)) % (VOCABULARY - 2) + 2 for start in starts]
        table = pa.table({"input_ids": pa.array([one.tolist() for one in documents], pa.list_(pa.uint16()))})
        pq.write_table(table, out / f"{number}.parquet", row_group_size=75)


class Model(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.memory = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.memory(self.embedding(ids))[0])
        return logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    data, checkpoint = options.out / "tokens", options.out / "checkpoint.pt"
    if not data.exists():
        write(data)
    loader = StreamingParquetLoader(str(data), batch_size=BATCH, seq_len=LENGTH, layout="pack", eos_id=1, pad_id=0)
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    if options.resume:
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
    rows, losses = 0, list[float]()
    for step, batch in enumerate(loader):
        tensors = batch.torch("input_ids", "labels")  # labels of padding and across documents are -100
        logits = model(tensors["input_ids"])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tensors["labels"].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        rows, losses = rows + len(batch), [*losses, loss.item()]
        if step == 19 and not options.resume:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
            torch.save(state, checkpoint)
    print(f"{rows} rows, loss {losses[0]:.2f} to {losses[-1]:.2f}")


if __name__ == "__main__":
    main()
