"""Tokens a second of each layout for language models, alone: no reading, no decoding.

    python benchmarks/tokens_layouts.py --tokens 20000000 --rounds 5

Documents have log-normal lengths (mean ``--mean``), ids are uint32, batches are int64 with shifted labels, 16 rows of
2,048. One thread, timed by its processor time. Prints the median of all rounds, in millions of tokens a second:

* ``copy``: the ids of each batch converted to int64 once, and nothing else; what no layout can beat;
* ``windows``: joined documents, their lengths known; ids and labels;
* ``windows, eos``: with an eos put behind each document;
* ``windows, all fields``: masks, positions, document ids and cu_seqlens as well;
* ``joiner``: joined documents that come 1,000 at a time;
* ``packer``: best-fit packing of documents that come 1,000 at a time, and the padding it leaves;
* ``pad``: 16 documents a row each, cut at 2,048; only tokens count, not padding.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np

from stoker.tokens import Joiner, LMBatch, LMSettings, Packer, Ragged, pad, stream_starts, windows

SEQ, ROWS, FED = 2048, 16, 1000


def make(tokens: int, mean: int) -> Ragged:
    rng = np.random.default_rng(0)
    lengths = np.maximum(1, rng.lognormal(np.log(mean) - 0.5, 1, tokens // mean).astype(np.int64))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return Ragged(rng.integers(2, 50_000, int(offsets[-1]), dtype=np.uint32), offsets)


def bare(documents: Ragged) -> tuple[int, int]:
    size = SEQ * ROWS
    for first in range(0, documents.values.size - size, size):
        documents.values[first : first + size].astype(np.int64)
    return documents.values.size, documents.values.size


def by_windows(documents: Ragged, settings: LMSettings) -> Iterator[LMBatch]:
    starts = stream_starts(documents.lengths, settings)
    for first in range(0, int(starts[-1]) // SEQ - ROWS, ROWS):
        begin, end = first * SEQ, (first + ROWS) * SEQ
        low = int(np.searchsorted(starts, begin, side="right")) - 1
        stop = int(np.searchsorted(starts, end, side="left"))
        yield windows(documents[low:stop], begin - int(starts[low]), ROWS, settings, first_document=low)


def by_maker(maker: Joiner | Packer, documents: Ragged) -> Iterator[LMBatch]:
    for first in range(0, len(documents), FED):
        yield from maker.feed(documents[first : first + FED])
    yield from maker.finish()


def by_pad(documents: Ragged, settings: LMSettings) -> Iterator[LMBatch]:
    for first in range(0, len(documents), ROWS):
        yield pad(documents[first : first + ROWS], settings, too_long="truncate")


def total(batches: Iterator[LMBatch], every_field: bool = False) -> tuple[int, int]:
    """Tokens and places of all batches."""
    tokens = places = 0
    for batch in batches:
        tokens += batch.num_tokens
        places += batch.input_ids.size
        if every_field:
            batch.as_dict()
    return tokens, places


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=20_000_000)
    parser.add_argument("--mean", type=int, nargs="+", default=[100, 500, 2000])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    plain = LMSettings(SEQ, pad_id=0, vocab_size=50_000)
    eos = LMSettings(SEQ, pad_id=0, vocab_size=50_000, eos_id=1)
    kinds: dict[str, Callable[[Ragged], tuple[int, int]]] = {
        "copy": bare,
        "windows": lambda d: total(by_windows(d, plain)),
        "windows, eos": lambda d: total(by_windows(d, eos)),
        "windows, all fields": lambda d: total(by_windows(d, plain), every_field=True),
        "joiner": lambda d: total(by_maker(Joiner(plain, ROWS), d)),
        "packer": lambda d: total(by_maker(Packer(plain, ROWS), d)),
        "packer, all fields": lambda d: total(by_maker(Packer(plain, ROWS), d), every_field=True),
        "pad": lambda d: total(by_pad(d, plain)),
    }
    for mean in options.mean:
        documents = make(options.tokens, mean)
        print(f"documents of about {mean} tokens")
        for name, run in kinds.items():
            rates = []
            for _ in range(options.rounds):
                # As just decoded: nothing is known of the ids.
                fresh = Ragged(documents.values, documents.offsets)
                begin = time.process_time()
                tokens, places = run(fresh)
                rates.append(tokens / (time.process_time() - begin) / 1e6)
            padding = f"  padding {1 - tokens / places:.2%}" if name in ("packer", "pad") else ""
            print(f"  {name:22} {statistics.median(rates):7.0f} M/s{padding}")


if __name__ == "__main__":
    main()
