"""Runs in the peer's environment: writes and reads datasets with mosaicml-streaming, as asked through a pipe.

Requests and answers are pickles with their length before them.
"""

from __future__ import annotations

import json
import os
import pickle
import struct
import sys
from pathlib import Path
from typing import Any, BinaryIO

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))


def write(kind: str, columns: dict[str, str], options: dict[str, Any], samples: list[dict[str, Any]], out: str) -> None:
    """Write a dataset."""
    import streaming

    writer = {name: getattr(streaming, f"{name.upper()}Writer") for name in ("mds", "json", "csv", "tsv", "xsv")}[kind]
    with writer(columns=columns, out=out, **options) as sink:
        for sample in samples:
            sink.write(sample)


def read(root: str) -> list[dict[str, Any]]:
    """All samples of a dataset, described."""
    import numpy as np
    from streaming.base.compression import decompress
    from streaming.base.format import reader_from_json
    from streaming.base.hashing import get_hash

    from cases import describe

    samples = []
    for entry in json.loads(Path(root, "index.json").read_text())["shards"]:
        for role in ("data", "meta"):
            raw, packed = entry.get(f"raw_{role}"), entry.get(f"zip_{role}")
            if packed:
                data = Path(root, packed["basename"]).read_bytes()
                check(packed, data, get_hash)
                unpacked = decompress(entry["compression"], data)
                check(raw, unpacked, get_hash)
                Path(root, raw["basename"]).write_bytes(unpacked)
            elif raw:
                check(raw, Path(root, raw["basename"]).read_bytes(), get_hash)
        reader = reader_from_json(root, None, entry)
        samples += [describe({k: own(v, np) for k, v in reader[i].items()}) for i in range(len(reader))]
    return samples


def own(value: Any, np: Any) -> Any:
    """A copy of a value that is a view."""
    return value.copy() if isinstance(value, np.ndarray) else value


def check(info: dict[str, Any], data: bytes, get_hash: Any) -> None:
    """That a file is what the index says."""
    assert len(data) == info["bytes"]
    for name, digest in info["hashes"].items():
        assert get_hash(name, data) == digest, name


def merge(urls: list[str] | None, out: str) -> None:
    """Merge indexes."""
    from streaming.base.util import merge_index

    if urls is None:
        merge_index(out)
    else:
        merge_index(urls, out)


def pattern(name: str, local: str, options: dict[str, Any]) -> list[list[Any]]:
    """What a subclass of the StreamingDataset gives in its first epochs, in words."""
    from streaming import StreamingDataset

    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "loaders"))
    import subclass_patterns

    return subclass_patterns.epochs(StreamingDataset, name, local, options)


def receive(stream: BinaryIO) -> Any:
    """One message, or EOFError."""
    head = stream.read(8)
    if len(head) < 8:
        raise EOFError
    return pickle.loads(stream.read(struct.unpack("<Q", head)[0]))


def send(stream: BinaryIO, message: Any) -> None:
    """Send one message."""
    data = pickle.dumps(message, protocol=4)
    stream.write(struct.pack("<Q", len(data)) + data)
    stream.flush()


def main() -> None:
    """Serve until the pipe closes."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever the peer prints is not an answer
    calls: dict[str, Any] = {"write": write, "read": read, "merge": merge, "pattern": pattern}
    while True:
        try:
            name, arguments = receive(sys.stdin.buffer)
        except EOFError:
            return
        try:
            send(answers, ("ok", calls[name](**arguments)))
        except BaseException as error:
            send(answers, ("error", f"{type(error).__name__}: {error}"))


if __name__ == "__main__":
    main()
