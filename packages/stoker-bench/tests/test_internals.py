"""Of stoker this package uses public names, and the modules that stand here: a change of one of these is tried on both."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parents[1] / "src"
CORE: Final = Path(__file__).parents[3] / "src"
USED: Final = {
    "stoker.arguments",
    "stoker.cli.arguments",
    "stoker.cli.order",
    "stoker.cli.running",
    "stoker.cli.terminal",
    "stoker.cluster",
    "stoker.concurrency.processes",
    "stoker.concurrency.ray_tasks",
    "stoker.concurrency.shared.counters",
    "stoker.concurrency.request_observer",
    "stoker.digests",
    "stoker.display",
    "stoker.errors",
    "stoker.formats.arrays.npy",
    "stoker.formats.arrays.npz",
    "stoker.formats.base",
    "stoker.formats.common.checks",
    "stoker.formats.common.compression",
    "stoker.formats.mds.encodings.images",
    "stoker.formats.format",
    "stoker.formats.arrays.hdf5_skeleton",
    "stoker.formats.mds.encoder",
    "stoker.formats.indexed_binary",
    "stoker.formats.parquet.arrow",
    "stoker.formats.parquet.facts",
    "stoker.formats.parquet.schema",
    "stoker.formats.parquet.thrift",
    "stoker.formats.registry",
    "stoker.formats.tar.writer",
    "stoker.formats.tfrecord.example",
    "stoker.formats.tfrecord.reader",
    "stoker.index.columnar_shards",
    "stoker.index.index",
    "stoker.index.shard_files",
    "stoker.integers",
    "stoker.lazy",
    "stoker.loaders.dataset",
    "stoker.order.native",
    "stoker.order.sample_order",
    "stoker.order.settings",
    "stoker.order.shuffle.shard_table",
    "stoker.order.shuffle.shuffle",
    "stoker.policy",
    "stoker.storage",
    "stoker.storage.files.copying",
    "stoker.storage.files.file_errors",
    "stoker.storage.files.locked_folder",
    "stoker.storage.files.mapped",
    "stoker.storage.files.mounts",
    "stoker.storage.files.part_files",
    "stoker.storage.files.regular",
    "stoker.storage.files.walk",
    "stoker.storage.job_record",
    "stoker.storage.local",
    "stoker.storage.open_store",
    "stoker.storage.remote.clients",
    "stoker.storage.remote.faults",
    "stoker.storage.remote.options",
    "stoker.storage.remote.response_bodies",
    "stoker.storage.retry",
    "stoker.storage.transfer",
    "stoker.storage.types",
    "stoker.storage.unfinished",
    "stoker.storage.url",
    "stoker.streams.streams",
    "stoker.types",
    "stoker.units",
    "stoker.version",
}


def test_the_modules_of_stoker_that_are_used_stand_here() -> None:
    paths = [path.relative_to(CORE).with_suffix("") for path in CORE.rglob("*.py")]
    modules = {".".join(path.parts).removesuffix(".__init__") for path in paths}
    found = set[str]()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "stoker":
                names = [f"{node.module}.{one.name}" for one in node.names]
                found |= {name if name in modules else node.module or "" for name in names}
    assert found == USED
