"""Datasets of litdata: those that it wrote itself, with the samples that it reads, and chunks of any samples, made here."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from stoker.formats.base import ShardInfo
from stoker.index.index import Index

__all__ = ["BLOCK", "files_of", "golden", "golden_names", "litdata_files", "shards_of_golden", "value_of"]

_GOLDEN = Path(__file__).parent / "golden" / "litdata.json"


@cache
def golden() -> Mapping[str, Any]:
    """Name to ``files`` and ``samples``, as ``benchmarks/make_litdata_golden.py`` wrote them."""
    found: dict[str, Any] = json.loads(_GOLDEN.read_text())
    return found


BLOCK: int = golden()["block_size"]


def golden_names() -> list[str]:
    """Names of the datasets that litdata wrote."""
    return [name for name, one in golden().items() if isinstance(one, dict)]


def files_of(name: str) -> dict[str, bytes]:
    """The files of a dataset that litdata wrote."""
    return {key: base64.b64decode(data) for key, data in golden()[name]["files"].items()}


def value_of(told: Any) -> Any:
    """A value as litdata read it; tensors as arrays."""
    kind, *rest = told
    if kind == "array":
        return np.array(rest[2], np.dtype(rest[0])).reshape(rest[1])
    if kind == "image":
        from PIL import Image

        return Image.frombytes(rest[0], rest[1], base64.b64decode(rest[2]))
    if kind == "dict":
        return {key: value_of(one) for key, one in rest[0].items()}
    if kind in ("list", "tuple"):
        return {"list": list, "tuple": tuple}[kind](value_of(one) for one in rest[0])
    if kind == "bytes":
        return base64.b64decode(rest[0])
    return complex(*rest[0]) if kind == "complex" else rest[0]


def shards_of_golden(name: str) -> Iterator[tuple[ShardInfo, list[bytes]]]:
    """Descriptions and bytes of a golden dataset's chunks."""
    files = files_of(name)
    sizes = {key: len(data) for key, data in files.items()}
    for info in Index.from_json(files["index.json"], "the index", sizes=lambda names: sizes).shards:
        yield info, [files[info.raw[0].basename]]


def litdata_files(numbers: range) -> dict[str, bytes]:
    """Chunks of samples ``{"id": number, "text": f"t{number}"}``, and their index, in plain Python."""
    step = -(-len(numbers) // 3) or 1
    files: dict[str, bytes] = {}
    chunks = []
    for turn, first in enumerate(range(0, len(numbers), step)):
        items = []
        for number in numbers[first : first + step]:
            text = f"t{number}".encode()
            items.append(struct.pack("<2Iq", 8, len(text), number) + text)
        head = 4 * (len(items) + 2)
        offsets = np.cumsum([head, *map(len, items)]).tolist()
        name = f"chunk-0-{turn}.bin"
        files[name] = struct.pack(f"<{len(items) + 2}I", len(items), *offsets) + b"".join(items)
        chunks.append({"chunk_bytes": len(files[name]), "chunk_size": len(items), "dim": None, "filename": name})
    leaf: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
    spec = [1, {"type": "builtins.dict", "context": '["id", "text"]', "children_spec": [leaf, leaf]}]
    config = {
        "compression": None,
        "chunk_size": step,
        "chunk_bytes": None,
        "data_format": ["int", "str"],
        "data_spec": json.dumps(spec),
        "encryption": None,
        "item_loader": "PyTreeLoader",
    }
    files["index.json"] = json.dumps({"chunks": chunks, "config": config, "updated_at": "1"}).encode()
    return files
