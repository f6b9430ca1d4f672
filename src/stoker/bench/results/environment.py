"""The environment of a run: the machine, the system, versions."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from stoker.bench.measure import page_cache as pagecache
from stoker.policy import processor_count
from stoker.storage.files.mounts import mount_of
from stoker.storage.files.regular import existing_path

_PACKAGES: Final = (
    *(
        "stoker",
        "numpy",
        "pyarrow",
        "obstore",
        "torch",
        "pillow",
        "h5py",
        "mosaicml-streaming",
        "litdata",
        "webdataset",
    ),
    *("datasets", "ray", "s3torchconnector"),
)


def describe_host() -> dict[str, Any]:
    """This host, for JSON."""
    versions: dict[str, str] = {"python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    model = ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {
        "host": socket.gethostname(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": model,
        "processors": os.cpu_count(),
        "processors_usable": processor_count(),
        "memory_bytes": pagecache.memory_bytes(),
        "executable": sys.executable,
        "versions": versions,
    }


def volume_of(path: str) -> dict[str, Any] | None:
    """The file system that a path is on, or would be, for JSON; ``None`` where it can not be asked."""
    inside = existing_path(path.removeprefix("file://"))
    try:
        status = os.statvfs(inside)
        number = os.stat(inside).st_dev
    except OSError:
        return None
    mount, kind, device = mount_of(inside)
    return {
        "mount": mount,
        "device": device,
        "kind": kind,
        "number": number,
        "bytes": status.f_blocks * status.f_frsize,
        "free_bytes": status.f_bavail * status.f_frsize,
    }
