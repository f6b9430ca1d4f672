"""Makes golden/saved_by_datasets with Hugging Face's own library: run it where ``datasets`` and Pillow are installed.

.venvs/hf/bin/python benchmarks/make_datasets_golden.py
"""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import datasets
from PIL import Image

HERE = Path(__file__).resolve().parents[1] / "tests" / "conversion" / "golden" / "saved_by_datasets"


def row(number: int) -> dict[str, object]:
    """A sample."""
    out = io.BytesIO()
    Image.new("RGB", (4, 3), (number, 10 * number, 255 - number)).save(out, "PNG")
    return {
        "image": {"bytes": out.getvalue(), "path": f"{number}.png"},
        "label": number % 3,
        "text": f"number {number}",
        "tokens": list(range(number + 1)),
        "grid": [[number + 0.5, 1.0, 2.0], [3.0, 4.0, 5.0]],
        "flag": number % 2 == 0,
        "meta": {"a": number, "b": [str(number)]},
        "score": number / 4,
    }


def main() -> None:
    """Make it."""
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog", "fish"]),
            "text": datasets.Value("string"),
            "tokens": datasets.Sequence(datasets.Value("int32")),
            "grid": datasets.Array2D((2, 3), "float32"),
            "flag": datasets.Value("bool"),
            "meta": {"a": datasets.Value("int64"), "b": datasets.Sequence(datasets.Value("string"))},
            "score": datasets.Value("float32"),
        }
    )
    shutil.rmtree(HERE, ignore_errors=True)
    made = datasets.Dataset.from_list([row(number) for number in range(7)], features=features)
    made.save_to_disk(str(HERE), num_shards=2)
    made.to_parquet(str(HERE.with_suffix(".parquet")))


if __name__ == "__main__":
    main()
