"""Write ``tests/formats/golden/litdata.json``: datasets that litdata wrote, and the samples that it reads from them.

    python3 tools/environments.py litdata
    .venvs/litdata/bin/python benchmarks/make_litdata_golden.py

The file holds, for each dataset, its files, and each sample as litdata gives it; see :func:`told` for how values are spelled.
"""

from __future__ import annotations

import base64
import io
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import litdata
import numpy as np
import torch
from litdata.streaming.item_loader import TokensLoader
from litdata.types import Jpeg
from PIL import Image

OUT = Path(__file__).resolve().parent.parent / "tests" / "formats" / "golden" / "litdata.json"
SAMPLES = 11
BLOCK = 8


def picture(number: int, kind: str) -> Any:
    pixels = (np.arange(6 * 5 * 3) * (number + 1) % 251).astype(np.uint8).reshape(6, 5, 3)
    if kind == "PIL":
        return Image.fromarray(pixels)
    data, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 1 + 5 * (
        number % 2
    )  # turned by 90 degrees; litdata decodes a JPEG with Exif by Pillow, without torchvision
    Image.fromarray(pixels).save(data, kind, exif=exif)
    return Jpeg(bytes=data.getvalue())


def plain(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "score": number / 4,
        "even": number % 2 == 0,
        "text": f"é{number}" * (number % 3),
        "data": bytes(range(number)),
        "pil": picture(number, "PIL"),
        "vector": np.arange(number, dtype=np.float32),
        "matrix": np.full((number % 3, 2), number, np.uint16),
        "row": torch.arange(number % 4, dtype=torch.int64),
        "tensor": torch.full((2, number % 3), number, dtype=torch.float16),
        "deep": {"pair": (number, f"p{number}"), "box": {"x": float(number), "v": np.arange(3)}},
    }


def jpeg(number: int) -> dict[str, Any]:
    return {"id": number, "image": picture(number, "JPEG")}


def mixed(number: int) -> dict[str, Any]:
    turns = [{"role": "user", "text": f"t{turn}", "n": turn, "w": None} for turn in range(number % 3)]
    return {"id": number, "x": np.arange(2), "turns": turns, "words": ["a"] * (number % 2), "any": [1, "b", None]}


def rows(number: int) -> dict[str, Any]:
    row: dict[str, Any] = {"id": number, "text": f"t{number}", "tags": [f"g{k}" for k in range(number % 3)]}
    return (
        row
        | {"extra": {"n": number, "f": number / 2}, "data": bytes(number)}
        | ({"late": number} if number > 6 else {})
    )


def pair(number: int) -> tuple[int, str]:
    return number, f"s{number}"


def tokens(number: int) -> Any:
    return torch.arange(number * 100, number * 100 + 3 + number, dtype=torch.int32)


def array_tokens(number: int) -> Any:
    return np.arange(number * 10, number * 10 + 2 + number).astype(np.uint16)


def single(number: int) -> str:
    return f"line {number}"


def pickled(number: int) -> dict[str, Any]:
    return {"id": number, "thing": complex(number, 1)}


DATASETS: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (plain, {}),
    "jpeg": (jpeg, {}),
    "chunk-zstd": (plain, {"compression": "zstd", "compression_level": "chunk"}),
    "chunk-zstd-level": (plain, {"compression": "zstd:7", "compression_level": "chunk"}),
    "batch-zstd": (plain, {"compression": "zstd", "compression_batch_size": 2}),
    "sample-zstd": (plain, {"compression": "zstd", "compression_level": "sample"}),
    "json": (mixed, {}),
    "rows": (rows, {}),
    "rows-zstd": (rows, {"compression": "zstd"}),
    "pair": (pair, {}),
    "single": (single, {}),
    "tokens": (tokens, {"item_loader": TokensLoader(block_size=BLOCK)}),
    "array-tokens": (array_tokens, {"item_loader": TokensLoader(block_size=BLOCK)}),
    "pickle": (pickled, {}),
}


def told(value: Any) -> Any:
    """A value as JSON: ``[kind, ...]``."""
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return ["array", value.dtype.name, list(value.shape), value.ravel().tolist()]
    if isinstance(value, Image.Image):
        return ["image", value.mode, list(value.size), base64.b64encode(value.tobytes()).decode()]
    if isinstance(value, dict):
        return ["dict", {key: told(one) for key, one in value.items()}]
    if isinstance(value, list | tuple):
        return [type(value).__name__, [told(one) for one in value]]
    if isinstance(value, bytes | memoryview):
        return ["bytes", base64.b64encode(value).decode()]
    if isinstance(value, complex):
        return ["complex", [value.real, value.imag]]
    return ["value", value]


def main() -> None:
    golden: dict[str, Any] = {"litdata": litdata.__version__, "block_size": BLOCK}
    for name, (make, options) in DATASETS.items():
        with tempfile.TemporaryDirectory() as folder:
            litdata.optimize(make, list(range(SAMPLES)), folder, num_workers=1, chunk_size=4, **options)
            files = {p.name: base64.b64encode(p.read_bytes()).decode() for p in sorted(Path(folder).iterdir())}
            loader = TokensLoader(block_size=BLOCK) if "item_loader" in options else None
            cache = Path(folder) / "cache"  # litdata decompresses in place otherwise
            shutil.copytree(folder, cache)
            dataset = litdata.StreamingDataset(str(cache), item_loader=loader)
            golden[name] = {"files": files, "samples": [told(dataset[k]) for k in range(len(dataset))]}
            print(name, len(dataset), {k: len(v) for k, v in files.items()}, flush=True)
    OUT.write_text(json.dumps(golden, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
