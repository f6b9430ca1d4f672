"""Token loaders as they are recorded: arguments drawn by lot, stopped, and resumed by other ranks where they can be."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from recording import Recorded, Run

from stoker import (
    BadSamples,
    LMStream,
    MDSWriter,
    StreamingDataset,
    StreamingParquetLoader,
    World,
)
from stoker.tokens import RawSource
from stoker.tokens.sources.ragged import Ragged
from stoker.writers import MegatronWriter

__all__ = ["TokenRun", "write_tokens"]

NAMES: Final = (
    "input_ids",
    "attention_mask",
    "position_ids",
    "document_ids",
    "cu_seqlens",
)
LARGEST: Final = 5000
"""Tokens from here on are those that only a few documents have: with ``vocab_size=LARGEST`` these are bad."""
_FILES: Final = ((4, 9, 17), (12, 3), (30,), (8, 8, 2, 5))
"""Of each file, the documents of its row groups."""


def _documents() -> list[list[list[int]]]:
    lot, found = random.Random(5), []
    first = 10
    for groups in _FILES:
        file = []
        for count in groups:
            for _ in range(count):
                length = lot.choice((0, 1, 3, 8, 8, 13, 30, 55))
                document = list(range(first, first + length))
                first += length
                if length and lot.random() < 0.08:
                    document[-1] = LARGEST + length
                file.append(document)
        found.append(file)
    return found


def write_tokens(root: Path) -> None:
    """Documents as Parquet files, raw files, Megatron's, and MDS of tokens and text."""
    for number, (groups, documents) in enumerate(zip(_FILES, _documents(), strict=True)):
        path = root / "parquet" / f"{number}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        schema = pa.schema([("input_ids", pa.list_(pa.uint16()))])
        rest = iter(documents)
        with pq.ParquetWriter(path, schema) as writer:
            for count in groups:
                rows = list(islice(rest, count))
                writer.write_table(pa.table({"input_ids": pa.array(rows, schema.field(0).type)}, schema=schema), count)
    every = list(itertools.chain(*_documents()))
    (root / "raw").mkdir()
    np.array(list(itertools.chain(*every)), np.uint16).tofile(root / "raw" / "tokens.bin")
    (root / "megatron").mkdir()
    with MegatronWriter(root / "megatron" / "tokens", np.uint16) as out:
        for document in every:
            if document:
                out.write(Ragged(np.array(document), np.array([0, len(document)])))
    columns = {"tokens": "ndarray:uint16", "text": "str", "x": "int"}
    with MDSWriter(columns, root / "mds", size_limit=900, hashes=[]) as mds:
        for x, document in enumerate(filter(None, every)):
            text = " ".join(map(str, document))
            mds.write({"tokens": np.array(document, np.uint16), "text": text, "x": x})


def numbers_of(texts: list[str]) -> list[list[int]]:
    """The tokenizer: a token for each word, which is its number."""
    return [[int(word) for word in text.split()] for text in texts]


def _is_even(sample: dict[str, Any]) -> bool:
    return int(sample["x"]) % 2 == 0


def _twice(sample: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return iter((sample, sample))


def _settings(lot: random.Random, layout: str) -> dict[str, Any]:
    """Labels, padding and dtype."""
    found: dict[str, Any] = {"labels": lot.choice(("shifted", "shifted", "unshifted", "none"))}
    if layout != "concat" or lot.random() < 0.5:
        found["pad_id"] = 0
    if lot.random() < 0.4:
        found["eos_id"] = 1
    if lot.random() < 0.3:
        found["cross_document_labels"] = lot.random() < 0.5
    if lot.random() < 0.3:
        found["reset_positions"] = lot.random() < 0.5
    if lot.random() < 0.2:
        found["dtype"] = lot.choice(("int32", "uint16"))
    return found


class TokenRun(Run):
    """A run by its name, which draws it: ``rows N`` of a ``StreamingParquetLoader``, ``stream N`` of an ``LMStream``."""

    def __init__(self, name: str, root: Path, scratch: Path) -> None:
        lot = random.Random(name)
        of_rows = name.startswith("rows")
        layout = lot.choice(("concat", "pack", "pad", "truncate"))
        ranks = lot.choice((1, 2, 2, 3))
        self.elastic = of_rows
        self._worlds = (ranks, lot.choice((1, 2, 3, 4))) if of_rows else (ranks, ranks)
        super().__init__(root, scratch, lot.randrange(1, 4))
        self._bad = lot.choice(("raise", "raise", "skip", "replace"))
        self._drawn: dict[str, Any] = {
            "layout": layout,
            "batch_size": lot.choice((2, 3)),
            "seq_len": lot.choice((8, 20, 64)),
        }
        self._drawn |= _settings(lot, layout)
        if self._bad != "raise" or lot.random() < 0.1:
            self._drawn["vocab_size"] = LARGEST
        if layout == "pack":
            self._drawn["too_long"] = lot.choice(("split", "truncate"))
        self._made = self._draw_rows(lot) if of_rows else self._draw_stream(lot)

    def _draw_rows(self, lot: random.Random) -> Callable[[World, Path], Any]:
        kind = lot.choice(("parquet", "parquet", "parquet", "raw", "megatron", "cached"))
        given: dict[str, Any] = {
            "shuffle": lot.random() < 0.7,
            "remainder": lot.choice(("pad", "pad", "drop", "uneven")),
        }
        if lot.random() < 0.5:
            given["granularity"] = lot.choice(("file", "row_group", "row"))
        if lot.random() < 0.6:
            given["shuffle_tokens"] = lot.choice((40, 300))
        self._drawn |= given

        def make(world: World, caches: Path) -> Any:
            source: Any = self.root / "tokens" / kind
            more: dict[str, Any] = {}
            if kind == "raw":
                source = RawSource(source / "tokens.bin", "uint16", row_tokens=25)
            elif kind == "cached":
                source, more = f"file://{source.with_name('parquet')}", {"local": caches}
            elif kind == "megatron":
                source = source / "tokens.bin"
            if self._bad != "raise":
                more["on_bad_sample"] = BadSamples(self._bad, max_share=None, file=self.log)  # type: ignore[arg-type]
            return StreamingParquetLoader(source, world=world, **self._drawn, **more)

        self._told: dict[str, Any] = {"source": kind}
        return make

    def _draw_stream(self, lot: random.Random) -> Callable[[World, Path], Any]:
        column = lot.choice(("tokens", "tokens", "text"))
        self._drawn["endless"] = lot.random() < 0.5
        if lot.random() < 0.4:
            self._drawn["lookahead"] = lot.choice((4, 16))
        steps = lot.choice(((), (), ("filter",), ("flat_map",), ("filter", "flat_map")))
        shuffle = lot.random() < 0.7
        self._told = {"column": column, "steps": [*steps], "shuffle": shuffle}

        def make(world: World, caches: Path) -> Any:
            more: dict[str, Any] = {}
            if self._bad != "raise":
                more["on_bad_sample"] = BadSamples(self._bad, max_share=None, file=self.log)  # type: ignore[arg-type]
            dataset = StreamingDataset(
                self.root / "tokens" / "mds", shuffle=shuffle, world=world, columns=[column, "x"], **more
            )
            for step in steps:
                dataset = dataset.filter(_is_even) if step == "filter" else dataset.flat_map(_twice)
            tokenizer = numbers_of if column == "text" else None
            given = dict(self._drawn)
            return LMStream(
                dataset, column, given.pop("batch_size"), given.pop("seq_len"), tokenizer=tokenizer, **given
            )

        return make

    def readers(self, phase: int) -> list[Any]:
        """See the base class."""
        ranks, caches = self._worlds[phase], self.scratch / f"caches {phase}"
        return [self._made(World(rank, ranks), caches) for rank in range(ranks)]

    def _recorded(self) -> Recorded:
        return {"drawn": {**self._drawn, **self._told, "on_bad_sample": self._bad}} | super()._recorded()

    def stay(self) -> None:
        """See the base class."""
        self._worlds = self._worlds[:1] * 2

    def steps(self, reader: Any) -> Iterator[Any]:
        """See the base class."""
        return map(_contents, reader)


def _contents(batch: Any) -> dict[str, Any]:
    """All that a batch has."""
    found = {name: getattr(batch, name) for name in NAMES} | {"max_seqlen": np.array([batch.max_seqlen])}
    return found | ({} if batch.label_kind == "none" else {"labels": batch.labels, "loss_mask": batch.loss_mask})
