"""Write the Parquet files of tests/formats/parquet/golden as Hugging Face ``datasets`` writes them.

    python3 tools/environments.py hf
    .venvs/hf/bin/python benchmarks/make_parquet_golden.py tests/formats/parquet/golden

``expected.json`` beside them holds the rows, as Python has them before they are written.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import datasets
from datasets import Array2D, ClassLabel, Dataset, Features, List, Value

ROWS = 150


def rows() -> list[dict[str, object]]:
    return [
        {
            "id": number,
            "text": None if number % 7 == 0 else f"tekst ø {number}",
            "input_ids": list(range(number, number + number % 5)),
            "label": number % 2,
            "grid": [[number, 1], [2, 3]],
            "fixed": [number, number + 1, number + 2],
            "answers": {"text": [f"a{k}" for k in range(number % 3)], "start": list(range(number % 3))},
            "score": number / 8,
        }
        for number in range(ROWS)
    ]


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    features = Features(
        {
            "id": Value("int64"),
            "text": Value("string"),
            "input_ids": List(Value("int32")),
            "label": ClassLabel(names=["no", "yes"]),
            "grid": Array2D((2, 2), "int32"),
            "fixed": List(Value("uint16"), length=3),
            "answers": {"text": List(Value("string")), "start": List(Value("int32"))},
            "score": Value("float32"),
        }
    )
    dataset = Dataset.from_list(rows(), features=features)
    for number in range(2):
        part = dataset.shard(2, number, contiguous=True)
        part.to_parquet(out / f"train-{number:05d}-of-00002.parquet", batch_size=40)
    (out / "expected.json").write_text(
        json.dumps({"datasets": datasets.__version__, "rows": rows()}, ensure_ascii=False) + "\n"
    )


if __name__ == "__main__":
    main()
