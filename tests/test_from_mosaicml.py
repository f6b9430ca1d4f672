"""The page for users of mosaicml-streaming: its search-and-replace, and code that runs with both."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patience import PATIENCE
from peer import PYTHON, needs_peer
from stoker import MDSWriter, StreamingDataset, compat
from stoker.errors import ConfigError
from stoker.formats.mds import encodings as registry

PAGE = (Path(__file__).parents[1] / "docs" / "from" / "mosaicml.md").read_text()
BOTH = re.findall(r"^<!-- both -->\n```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
THEIRS = """\
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory
"""
OURS = """\
from stoker import MDSWriter, StreamingDataLoader, StreamingDataset
from stoker.util import clean_stale_shared_memory
"""


@pytest.mark.processes
def test_the_search_and_replace_makes_our_imports_of_theirs(tmp_path: Path) -> None:
    (command,) = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "one.py").write_text(THEIRS)
    (tmp_path / "two.py").write_text(
        "from streaming.base import JSONWriter, Stream\n    from streaming.base.stream import Stream\nimport streaming\n"
        "import streaming as stm\nfrom streaming.base.format.mds import MDSWriter\n"
        "from streaming.base.format.mds.encodings import Encoding\nfrom streaming.base.dataset import StreamingDataset\n"
        "streaming.base.util.clean_stale_shared_memory()\nstreaming.base.StreamingDataset\n"
        "from streaming.base.stream import Stream, streams_registry\nfrom streaming.base.format.mds.writer import MDSWriter\n"
        "from streaming.base.world import World\nimport streaming.base.util as util\n"
        "import streaming.base.distributed as dist\nfrom streaming.base import distributed as dist\n"
        "from streaming.base.format.mds.encodings import Encoding, _encodings\n"
        "from streaming.base.storage.download import download_file\nfrom streaming.base.format import reader_from_json\n"
        "dist.get_rank(), dist.get_world_size(), World.detect().num_ranks, util.merge_index\n"
    )
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True, timeout=PATIENCE)
    assert (tmp_path / "one.py").read_text() == OURS
    assert (tmp_path / "two.py").read_text().splitlines() == [
        "from stoker import JSONWriter, Stream",
        "    from stoker.compat import Stream",
        "import stoker as streaming",
        "import stoker as stm",
        "from stoker.compat import MDSWriter",
        "from stoker.compat import Encoding",
        "from stoker import StreamingDataset",
        "streaming.util.clean_stale_shared_memory()",
        "streaming.StreamingDataset",
        "from stoker.compat import Stream, streams_registry",
        "from stoker.compat import MDSWriter",
        "from stoker.compat import World",
        "import stoker.util as util",
        "import stoker.compat as dist",
        "from stoker.compat import distributed as dist",
        "from stoker.compat import Encoding, _encodings",
        "from stoker.compat import download_file",
        "from stoker.compat import reader_from_json",
        "dist.get_rank(), dist.get_world_size(), World.detect().num_ranks, util.merge_index",
    ]
    done = subprocess.run(
        [sys.executable, "-c", (tmp_path / "two.py").read_text().replace("    from", "from")], timeout=PATIENCE
    )
    assert done.returncode == 0
    assert all(OURS in block for block in BOTH)


@needs_peer
@pytest.mark.processes
@pytest.mark.parametrize("block", BOTH)
def test_what_runs_with_both_runs_with_theirs(block: str, tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text(block.replace(OURS, THEIRS))
    done = subprocess.run(
        [PYTHON, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr


class Latent(compat.Encoding):
    def encode(self, value: Any) -> bytes:
        self._validate(value, np.ndarray)
        return bytes(value.tobytes())

    def decode(self, data: bytes) -> Any:
        return np.frombuffer(data, np.uint8)


def test_encodings_are_set_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(registry, "_replaced", {})
    compat._encodings["latent"] = Latent
    compat._encodings["uint8"] = Latent
    assert "latent" in compat._encodings
    assert "strange" not in compat._encodings
    assert set(compat._encodings) >= {"int", "str", "latent", "uint8"}
    assert compat._encodings["int"]().size == 8
    values = np.arange(4, dtype=np.uint8)
    with MDSWriter({"a": "latent", "b": "uint8"}, str(tmp_path)) as out:
        out.write({"a": values, "b": values})
    (sample,) = compat.StreamingDataset(str(tmp_path))
    assert sample["a"].tolist() == sample["b"].tolist() == [0, 1, 2, 3]
    with pytest.raises(ConfigError, match="'int' can not be taken away"):
        del compat._encodings["int"]


def test_ranks_are_those_of_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", 5), ("WORLD_SIZE", 8), ("LOCAL_RANK", 1), ("LOCAL_WORLD_SIZE", 4)):
        monkeypatch.setenv(name, str(value))
    world = compat.World.detect()
    assert (world.num_ranks, world.num_nodes, world.node, world.rank_of_node, world.ranks_per_node) == (8, 2, 1, 1, 4)
    assert (compat.get_rank(), compat.get_world_size()) == (5, 8)
    assert (compat.distributed.get_local_rank(), compat.distributed.get_local_world_size()) == (1, 4)
    compat.barrier()  # of one process


@pytest.mark.parametrize("split", [None, "train"])
def test_files_and_shards_are_read_one_by_one(tmp_path: Path, split: str | None) -> None:
    folder = tmp_path / "data" / (split or "")
    with MDSWriter({"x": "int"}, str(folder), size_limit=300) as out:
        for number in range(100):
            out.write({"x": number})
    compat.download_file(f"{folder}/index.json", f"{tmp_path}/copy/index.json", 60)
    entries = json.loads((tmp_path / "copy" / "index.json").read_text())["shards"]
    readers = [compat.reader_from_json(str(tmp_path / "data"), split, entry) for entry in entries]
    assert len(readers) > 1
    assert [sample["x"] for reader in readers for sample in reader] == list(range(100))
    assert readers[1][-1] == {"x": readers[0].size + len(readers[1]) - 1}
    with pytest.raises(FileNotFoundError):
        compat.download_file(f"{folder}/nothing", f"{tmp_path}/copy/nothing")
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["index.json"]
    with pytest.raises(ConfigError, match=r"dataframe\.write\.parquet"):
        compat.dataframe_to_mds(None, merge_index=True)


def test_a_loader_counts_samples_and_resumes(tmp_path: Path) -> None:
    with MDSWriter({"x": "int"}, str(tmp_path)) as out:
        for number in range(30):
            out.write({"x": number})
    loader = compat.StreamingDataLoader(StreamingDataset(str(tmp_path), batch_size=8), batch_size=8)
    counts = []
    for batch in loader:
        counts.append(loader.num_samples_yielded)
        if len(counts) == 2:
            state = loader.state_dict()
        last = batch["x"].tolist()
    assert (counts, last) == ([8, 16, 24, 30], [24, 25, 26, 27, 28, 29])
    loader.load_state_dict(state)
    assert next(iter(loader))["x"].tolist() == list(range(16, 24))
