"""Write ``tests/formats/golden/tars.json``: one folder, packed by several programs in their formats.

Wants GNU tar, bsdtar (libarchive-tools) and busybox, and a file system that keeps holes::

    python benchmarks/make_golden_tars.py
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import tarfile
import tempfile
import zlib
from pathlib import Path

_PATH = Path(__file__).resolve().parents[1] / "tests" / "formats" / "golden" / "tars.json"
_GNU = "tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0"
_BSD = "bsdtar --uid 0 --gid 0 --uname= --gname="
_LONG = f"5{'long' * 30}.txt"

COMMANDS = {
    **{f"GNU {kind}": f"{_GNU} --format={kind} -cf" for kind in ("v7", "oldgnu", "gnu", "ustar", "pax")},
    **{f"GNU {kind}, sparse": f"{_GNU} --format={kind} --sparse -cf" for kind in ("oldgnu", "gnu")},
    **{
        f"GNU pax, sparse {version}": f"{_GNU} --format=pax --sparse --sparse-version={version} -cf"
        for version in ("0.0", "0.1", "1.0")
    },
    **{f"bsdtar {kind}": f"{_BSD} --format={kind} -cf" for kind in ("pax", "gnutar", "ustar", "v7")},
    "busybox": "busybox tar cf",
}
TARFILE = {"tarfile ustar": tarfile.USTAR_FORMAT, "tarfile GNU": tarfile.GNU_FORMAT, "tarfile pax": tarfile.PAX_FORMAT}


def make_folder(folder: Path) -> dict[str, bytes]:
    """Files of all kinds, and what each holds."""
    for number, parts in enumerate((1, 3, 40)):  # holes between parts: as many as a header holds, and more
        with open(folder / f"{number}.bin", "wb") as file:
            for part in range(parts):
                file.seek(part * 65536)
                file.write(b"%d" % part * 4096)
            file.truncate(parts * 65536 - 100 * (number != 1))
        (folder / f"{number}.cls").write_bytes(b"%d" % number)
    with open(folder / "3.bin", "wb") as file:
        file.truncate(100_001)  # nothing but a hole
    os.link(folder / "0.cls", folder / "3.cls")
    os.link(folder / "1.bin", folder / "4.bin")
    os.symlink("2.cls", folder / "4.cls")
    os.symlink("/nowhere/5.cls", folder / "5.cls")
    (folder / "5.txt").write_bytes("é".encode())
    (folder / _LONG).write_bytes(b"a name of more than 100 bytes")
    for hidden in ("._0.bin", "._5.txt", ".DS_Store"):  # as macOS has them
        (folder / hidden).write_bytes(b"\0\x05\x16\x07\0\x02\0\0Mac OS X        ")
    names = sorted(name for name in os.listdir(folder) if not name.startswith(".") and name != "5.cls")
    return {name: (folder / name).read_bytes() for name in names}


def main() -> None:
    """Write the file."""
    with tempfile.TemporaryDirectory() as root:
        folder, path = Path(root, "in"), Path(root, "x.tar")
        folder.mkdir()
        held = {name: pack(data) for name, data in make_folder(folder).items()}
        names = sorted(os.listdir(folder))
        archives = {}
        for case, command in COMMANDS.items():
            given = [name for name in names if name != _LONG or not case.endswith(("v7", "ustar"))]
            subprocess.run([*command.split(), str(path), *given], cwd=folder, check=True)
            archives[case] = pack(path.read_bytes())
        for case, kind in TARFILE.items():
            with tarfile.open(path, "w", format=kind) as archive:
                for name in names:
                    if name != _LONG or kind != tarfile.USTAR_FORMAT:
                        archive.add(folder / name, name)
            archives[case] = pack(path.read_bytes())
    _PATH.write_text(json.dumps({"files": held, "archives": archives}, indent=1, sort_keys=True) + "\n")
    print(f"{len(archives)} archives, {_PATH.stat().st_size} bytes")


def pack(data: bytes) -> str:
    """Bytes as text; compressed, as they are mostly zeros."""
    return base64.b85encode(zlib.compress(data, 9)).decode()


if __name__ == "__main__":
    main()
