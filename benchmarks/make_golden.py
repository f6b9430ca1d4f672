"""Write the golden files of ``tests/formats/golden`` with mosaicml-streaming, so that tests compare without it.

Run it with the Python of the peer's environment, which ``tools/environments.py`` makes::

    .venvs/mosaic/bin/python benchmarks/make_golden.py
"""

from __future__ import annotations

import base64
import json
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
_GOLDEN = _ROOT / "tests" / "formats" / "golden"
sys.path.insert(0, str(_ROOT / "tests"))


def main() -> None:
    """Write a file for each group of cases."""
    import cases

    mds: dict[str, Any] = {}
    for name, (columns, samples) in cases.stable_samples().items():
        # The default limit, but for the case with many samples, which is to be cut into several shards.
        options = {"size_limit": 900, "hashes": ["sha1", "xxh64"]} if name == "many" else {}
        mds[name] = record("mds", columns, options, samples)
    text: dict[str, Any] = {}
    for name, (kind, columns, options, samples) in cases.text_samples().items():
        text[name] = record(kind, columns, {**options, "size_limit": 60}, samples)
    packed: dict[str, Any] = {}
    columns, samples = cases.stable_samples()["many"]
    for codec in ("br", "br:1", "bz2", "gz", "gz:1", "snappy", "zstd", "zstd:9"):
        options = {"compression": codec, "hashes": ["md5"], "size_limit": 4000}
        packed[codec] = record("mds", columns, options, samples)
        del packed[codec]["values"]  # they are those of the case "many"
    _GOLDEN.mkdir(exist_ok=True)
    for name, records in (("mds", mds), ("text", text), ("compressed", packed)):
        path = _GOLDEN / f"{name}.json"
        path.write_text(json.dumps(records, indent=1, sort_keys=True) + "\n")
        print(f"{path.relative_to(_ROOT)}: {len(records)} cases, {path.stat().st_size} bytes")


def record(kind: str, columns: dict[str, str], options: dict[str, Any], samples: list[Any]) -> dict[str, Any]:
    """A dataset's settings and files, as the peer writes them, and its values, as the peer reads them."""
    import peer_server

    with tempfile.TemporaryDirectory() as root:
        peer_server.write(kind, columns, options, samples, root)
        files = {path.name: pack(path.read_bytes()) for path in sorted(Path(root).iterdir())}
        values = pack(repr(peer_server.read(root)).encode())
    return {"kind": kind, "columns": columns, "options": options, "files": files, "values": values}


def pack(data: bytes) -> str:
    """Bytes as text; compressed, as arrays are mostly zeros."""
    return base64.b85encode(zlib.compress(data, 9)).decode()


if __name__ == "__main__":
    main()
