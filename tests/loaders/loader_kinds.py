"""An object of each public class that reads, over little data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stoker import (
    LMStream,
    LocalDataset,
    MDSWriter,
    StreamingDataLoader,
    StreamingDataset,
    StreamingParquetLoader,
    StreamingShardLoader,
)

__all__ = ["LOADERS", "make_loader"]

_MAKERS: Final[dict[str, Callable[[Path], Any]]] = {
    "StreamingDataset": StreamingDataset,
    "StreamingDataLoader": lambda data: StreamingDataLoader(StreamingDataset(data), batch_size=2),
    "StreamingShardLoader": lambda data: StreamingShardLoader(StreamingDataset(data, batch_size=2)),
    "StreamingParquetLoader": lambda data: StreamingParquetLoader(data / "tokens.parquet", seq_len=4, batch_size=2),
    "LMStream": lambda data: LMStream(StreamingDataset(data), "tokens", 2, 4, layout="truncate", pad_id=0),
    "LocalDataset": LocalDataset,
}
LOADERS: Final = tuple(_MAKERS)


def make_loader(kind: str, root: Path) -> Any:
    """A loader of this class, whose data is written below a directory."""
    data = root / "data"
    with MDSWriter({"id": "int", "tokens": "ndarray:uint16:4"}, data) as writer:
        writer.write_batch({"id": np.arange(8), "tokens": np.ones((8, 4), np.uint16)})
    pq.write_table(pa.table({"tokens": [[1, 2, 3, 4]] * 8}), data / "tokens.parquet")
    return _MAKERS[kind](data)
