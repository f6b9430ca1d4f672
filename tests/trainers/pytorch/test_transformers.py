"""transformers.Trainer: what ``table.py`` has not: evaluations, a resume in the second epoch, and samplers."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import DataCollatorWithFlattening, Trainer, TrainingArguments

from stoker import LMStream, LocalDataset, StreamingDataset, StreamingParquetLoader
from stoker.errors import ConfigError, StateError
from stoker.loaders.iterable import TRAINER
from trainers.launch import Outcome, launch

SCRIPT = Path(__file__).with_name("transformers_run.py")


def run(data: Path, variant: str, *more: object) -> Outcome:
    return launch(Path(sys.executable), SCRIPT, 2, "--data", data, "--variant", variant, "--workers", 2, *more)


def test_an_evaluation_sees_each_sample_once(data: Path) -> None:
    seen = run(data, "evaluate")
    assert not seen.error
    assert sorted(seen.ids) == list(range(100))


@pytest.mark.parametrize("variant", ["two shard"])
def test_a_resume_in_the_second_epoch_goes_on_with_that_epoch(data: Path, tmp_path: Path, variant: str) -> None:
    whole = run(data, variant)
    first = run(data, variant, "--stop-after", 18, "--checkpoint", tmp_path)
    second = run(data, variant, "--resume", "--checkpoint", tmp_path)
    assert [one.error for one in (whole, first, second)] == ["", "", ""]
    for rank in range(2):
        assert first.ranks[rank] + second.ranks[rank] == whole.ranks[rank]
    epochs = [[one for rank in whole.ranks for step in rank[begin : begin + 13] for one in step] for begin in (0, 13)]
    assert all(set(epoch) == set(range(100)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert set(Counter(epochs[0] + epochs[1]).values()) <= {2, 3, 4}


def tokens(sample: dict[str, Any]) -> dict[str, Any]:
    """A row of 1 to 7 tokens, each of which is the sample's id."""
    return {"input_ids": torch.full([sample["id"] % 7 + 1], sample["id"])}


def padded(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {"input_ids": pad_sequence([one["input_ids"] for one in samples], batch_first=True, padding_value=-1)}


class Rows(LocalDataset):
    """The rows by id."""

    def __getitem__(self, index: Any) -> Any:
        return tokens(super().__getitem__(index))


def make_trainer(out: Path, strategy: str, dataset: Any, evaluated: Any = None) -> Trainer:
    args = TrainingArguments(
        str(out), train_sampling_strategy=strategy, remove_unused_columns=False, use_cpu=True, report_to=[]
    )
    return Trainer(torch.nn.Linear(1, 1), args, padded, dataset, evaluated)


@pytest.mark.parametrize(
    ("strategy", "shuffle", "said"),
    [
        ("group_by_length", True, r"train_dataset=LocalDataset\(...\)"),
        ("batch_rebalance", False, r"layout='pack'"),
        ("sequential", True, "shuffle=False"),
        ("sequential", False, ""),
        ("random", False, ""),
    ],
)
def test_a_sampler_that_trainer_would_leave_out_is_refused(
    data: Path, tmp_path: Path, strategy: str, shuffle: bool, said: str
) -> None:
    dataset = StreamingDataset(str(data), shuffle=shuffle, batch_size=8, transform=tokens)
    if said:
        with pytest.raises(ConfigError, match=said):
            make_trainer(tmp_path, strategy, dataset)
    else:
        make_trainer(tmp_path, strategy, dataset)


def test_samples_by_id_are_grouped_by_length(data: Path, tmp_path: Path) -> None:
    evaluated = StreamingDataset(str(data), batch_size=8, transform=tokens)
    trainer = make_trainer(tmp_path, "group_by_length", Rows(str(data)), evaluated)
    batches = [batch["input_ids"] for batch in trainer.get_train_dataloader()]
    assert sorted(one for batch in batches for one in batch[:, 0].tolist()) == list(range(100))
    # In the order of the dataset, nearly half of all places would be padding.
    assert sum(int((batch == -1).sum()) for batch in batches) < 0.3 * sum(batch.numel() for batch in batches)
    held_out = [batch["input_ids"][:, 0].tolist() for batch in trainer.get_eval_dataloader()]
    assert [one for batch in held_out for one in batch] == list(range(100))


@pytest.fixture(scope="module")
def rows(data: Path) -> Path:
    """100 rows of 8 tokens, beside the dataset."""
    path = data.with_name("rows.parquet")
    pq.write_table(pa.table({"input_ids": [[number] * 8 for number in range(100)]}), path, row_group_size=10)
    return path


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize(("variant", "workers"), [("parquet two", 1), ("stream", 0)])
def test_a_loader_of_tokens_resumes_by_the_lines_that_its_error_shows(
    data: Path, tmp_path: Path, variant: str, workers: int
) -> None:
    more = ("--workers", workers)
    whole = run(data, variant, *more)
    first = run(data, variant, "--stop-after", 18, "--checkpoint", tmp_path, *more)
    second = run(data, variant, "--resume", "--checkpoint", tmp_path, *more)
    assert [one.error for one in (whole, first, second)] == ["", "", ""]
    assert whole.steps_equal
    assert all(first.ranks[rank] + second.ranks[rank] == whole.ranks[rank] for rank in range(2))
    assert whole.unique == 100
    if variant != "stream":
        assert [len(steps) for steps in whole.ranks] == [26, 26]
        epoch = [one for rank in whole.ranks for step in rank[:13] for one in step]
        assert set(epoch) == set(range(100))


def test_the_page_has_the_lines_of_the_error() -> None:
    page = Path(__file__).parents[3] / "docs" / "trainers" / "transformers.md"
    assert f"```python\n{TRAINER}```\n" in page.read_text()


@pytest.mark.parametrize("collator", [None, DataCollatorWithFlattening()])
@pytest.mark.parametrize("kind", [StreamingParquetLoader, LMStream])
def test_a_collator_of_samples_is_refused_for_loaders_of_tokens(
    rows: Path, tmp_path: Path, kind: type, collator: Any
) -> None:
    if kind is LMStream:
        loader: Any = LMStream(StreamingDataset(str(rows)), "input_ids", 4, 8, endless=True)
    else:
        loader = StreamingParquetLoader(str(rows), batch_size=4, seq_len=8)
    args = TrainingArguments(str(tmp_path), max_steps=3, use_cpu=True, report_to=[], disable_tqdm=True)
    with pytest.raises(ConfigError, match=r"ollator.* has whole ones(?s:.*)class TokenTrainer\(Trainer\)"):
        Trainer(Layer(), args, collator, loader).train()
    args.per_device_train_batch_size = 1
    trainer = Trainer(Layer(), args, lambda batches: {"x": torch.from_numpy(batches[0].input_ids).float()}, loader)
    assert trainer.train().global_step == 3


@pytest.mark.parametrize("layout", ["concat", "pad"])
def test_a_stream_that_ends_is_refused(rows: Path, tmp_path: Path, layout: Any) -> None:
    stream = LMStream(StreamingDataset(str(rows)), "input_ids", 4, 8, layout=layout, pad_id=0)
    args = TrainingArguments(str(tmp_path), max_steps=3, use_cpu=True, report_to=[], disable_tqdm=True)
    with pytest.raises(ConfigError, match=r"Give LMStream\(endless=True\)"):
        Trainer(Layer(), args, lambda batches: batches[0].hugging_face(), stream).train()


class Layer(torch.nn.Module):
    """A model of ``x`` alone, whose loss is its output's mean square."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.layer(x).square().mean()}


def test_one_dataset_object_for_training_and_evaluation_is_refused_with_the_remedy(data: Path, tmp_path: Path) -> None:
    args = TrainingArguments(
        str(tmp_path), eval_strategy="steps", eval_steps=2, max_steps=6, use_cpu=True, report_to=[], disable_tqdm=True
    )
    args.per_device_train_batch_size = args.per_device_eval_batch_size = 4
    dataset, evaluated = (StreamingDataset(str(data), batch_size=4, columns=["x"]) for _ in range(2))
    with pytest.raises(StateError, match="use another dataset object"):
        Trainer(Layer(), args, train_dataset=dataset, eval_dataset=dataset).train()
    assert Trainer(Layer(), args, train_dataset=dataset, eval_dataset=evaluated).train().global_step == 6
