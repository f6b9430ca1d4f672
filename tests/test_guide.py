"""Examples as users find them in guides to MDS, run as written but for the package's name, on a real S3 server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from patience import PATIENCE
from s3server import Bucket
from support import cache_of

PRELUDE = """
import numpy as np

def make_episodes():
    for number in range(500):
        yield {
            "frame_table": np.full((20, 30), number, dtype="float64"),
            "meta": {"number": number, "title": "Épisode"},
        }
"""

WRITE = """
from stoker import MDSWriter
import json, io, numpy as np

columns = {
    "frame_table": "bytes",   # packed npy/npz/etc.
    "meta_json":   "str",     # utf-8 JSON string
}

with MDSWriter(
    out="data/mds/train",                 # local staging/cache
    columns=columns,
    compression="zstd",                   # fast decode in training
    hashes="sha1",                        # integrity
    size_limit="128MB",                   # shard target
    remote="s3://my-bucket/datasets/ui-trajs"  # optional: upload shards as they close
) as w:
    for episode in make_episodes():
        buf = io.BytesIO()
        np.save(buf, episode["frame_table"].astype("float32"))
        sample = {
            "frame_table": buf.getvalue(),
            "meta_json":   json.dumps(episode["meta"], ensure_ascii=False),
        }
        w.write(sample)
"""

READ = """
from stoker import StreamingDataset
from torch.utils.data import DataLoader

def collate(batch):
    # Each item is a dict with your columns.
    return batch

if __name__ == "__main__":
    ds = StreamingDataset(
        remote="s3://my-bucket/datasets/ui-trajs",  # remote is optional if data is fully local
        local="data/cache/ui-trajs",                # local cache directory
        shuffle=True, shuffle_seed=1337,            # deterministic across workers
    )

    loader = DataLoader(ds, batch_size=8, num_workers=8, collate_fn=collate, persistent_workers=True)
    for batch in loader:
        ...
"""

CHECK = """
    import io, json
    import numpy as np

    for epoch in range(2):
        seen = {}
        for batch in loader:
            for sample in batch:
                meta = json.loads(sample["meta_json"])
                frames = np.load(io.BytesIO(sample["frame_table"]))
                assert frames.dtype == np.float32 and (frames == meta["number"]).all()
                assert meta["title"] == "Épisode"
                assert meta["number"] not in seen
                seen[meta["number"]] = True
        assert len(seen) == 500
    print("complete")
"""


@pytest.mark.s3
@pytest.mark.processes
def test_the_guides_examples_run_as_written(bucket: Bucket, tmp_path: Path) -> None:
    name = bucket.url.removeprefix("s3://").split("/")[0]
    environment = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": str(bucket.storage_options["access_key_id"]),
        "AWS_SECRET_ACCESS_KEY": str(bucket.storage_options["secret_access_key"]),
        "AWS_DEFAULT_REGION": "us-east-1",
        "S3_ENDPOINT_URL": str(bucket.storage_options["endpoint"]),
        # torch warns of more workers than processors; what else is written to stderr fails the test.
        "PYTHONWARNINGS": "ignore::UserWarning",
    }

    def run(code: str) -> str:
        script = tmp_path / "example.py"
        script.write_text(code.replace("my-bucket", name))
        done = subprocess.run(
            [sys.executable, str(script)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        assert not done.stderr, done.stderr
        return done.stdout

    run(PRELUDE + WRITE)
    assert not (tmp_path / "data" / "mds" / "train").exists()  # keep_local is off: staging only
    assert run(READ + CHECK).strip() == "complete"
    assert (cache_of(tmp_path / "data" / "cache" / "ui-trajs") / "index.json").exists()
