"""Make the environments of the libraries that other commands of this folder measure stoker against.

    python benchmarks/setup_peers.py            # make what is missing, but ffcv
    python benchmarks/setup_peers.py ffcv       # compiles it: apt-get install g++ pkg-config libopencv-dev libturbojpeg0-dev
    python benchmarks/setup_peers.py --clear    # make all anew

Each lies in a folder of its own under ``benchmarks/.venvs``, with the versions given below, so that no peer
decides which NumPy or torch stoker runs with. What is there already with the right versions is left alone. torchcodec, of
``video``, needs FFmpeg's libraries to be imported: apt-get install libavdevice59 (of Debian 12), or ffmpeg.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
VENVS = HERE / ".venvs"
PINS: dict[str, dict[str, str]] = {
    "mosaic": {"torch": "2.13.0", "mosaicml-streaming": "0.13.0"},
    "litdata": {"torch": "2.13.0", "litdata": "0.2.76", "webdataset": "1.0.2", "zstd": "1.5.7.2"},
    "hf": {"torch": "2.13.0", "datasets": "5.2.0"},
    "video": {"torch": "2.13.0", "datasets": "5.2.0", "torchcodec": "0.13.0"},
    "grain": {"grain": "0.2.18", "array_record": "0.8.6"},
    "ffcv": {"torch": "2.13.0", "ffcv": "1.0.2"},
    "dali": {"nvidia-dali-cuda120": "2.4.0", "nvidia-nvimgcodec-cu12": "0.9.0.20"},
    "dlio": {"torch": "2.13.0", "dlio_benchmark": "2.0.0", "pydftracer": "1.0.2", "tensorflow-cpu": "2.21.0"},
}
# DLIO requires DALI, which PyPI does not have, and does not import it for what is measured here; TensorFlow it imports
# always. So it is installed without what it requires, and what it imports with it: MPI itself is a package, too. DALI's
# operators of the processor need none of the libraries for graphics processors that it requires.
ALONE = ("dlio_benchmark", "nvidia-dali-cuda120", "nvidia-nvimgcodec-cu12")
MORE = {
    "video": ("aiohttp", "requests"),
    "ffcv": ("pillow",),
    "dali": ("numpy", "astunparse", "gast", "libcst", "makefun", "nvtx", "optree", "packaging", "six", "dm-tree"),
    "dlio": ("mpi4py", "mpich", "h5py", "omegaconf", "hydra-core", "pandas", "psutil", "pillow", "pyyaml"),
}
BY_NAME = ("ffcv",)  # made where it is asked for
IMPORTS = {
    "mosaic": ("streaming",),
    "litdata": ("litdata", "webdataset", "torchvision"),
    "hf": ("datasets",),
    "video": ("datasets", "torchcodec"),
    "grain": ("grain", "array_record"),
    "ffcv": ("ffcv",),
    "dali": ("nvidia.dali",),
    "dlio": ("dlio_benchmark.main",),
}

# The peers require torchvision for datasets that are not measured here. Where the registry offers a
# torchvision built for CUDA next to a CPU-only torch, its compiled operators do not load, and then it
# refuses to be imported because two of them are unknown. Declaring these, without a body, is enough for the
# import.
SHIM = '''\
"""Lets a CUDA build of torchvision be imported beside a CPU-only torch (made by setup_peers.py)."""

import sys
from importlib.abc import MetaPathFinder


class DeclareOperators(MetaPathFinder):
    library = None  # kept: the declaration ends with the object

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            DeclareOperators.library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                arguments = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                DeclareOperators.library.define(operator + arguments)
        return None


sys.meta_path.insert(0, DeclareOperators())
'''


def python_of(name: str) -> Path:
    return VENVS / name / "bin" / "python"


def installed(name: str) -> dict[str, str]:
    """Versions of the pinned packages in an environment; empty if there is no such environment."""
    if not python_of(name).exists():
        return {}
    code = (
        "import sys, json; from importlib.metadata import distributions\n"
        "print(json.dumps([(d.metadata['Name'], d.version) for d in distributions()]))"
    )
    listed = json.loads(subprocess.check_output([python_of(name), "-c", code], text=True))
    found = {normal(one): version for one, version in listed}
    return {pin: found.get(normal(pin), "") for pin in PINS[name]}


def normal(package: str) -> str:
    """A package's name as all spellings of it are compared: ``tensorflow-cpu`` calls itself ``tensorflow_cpu``."""
    return re.sub(r"[-_.]+", "-", package).lower()


def right(name: str) -> bool:
    """Whether the versions are those wanted; a local part such as ``+cpu`` makes no difference."""
    return {pin: version.split("+")[0] for pin, version in installed(name).items()} == PINS[name]


def imports(name: str) -> str:
    """Empty if the libraries import, else the last line of what they said."""
    for module in IMPORTS[name]:
        run = subprocess.run([python_of(name), "-c", f"import {module}"], capture_output=True, text=True, check=False)
        if run.returncode:
            return run.stderr.strip().splitlines()[-1]
    return ""


def make(name: str) -> None:
    wanted = [f"{pin}=={version}" for pin, version in PINS[name].items()]
    print(f"{name}: installing {', '.join(wanted)} into {VENVS / name}", flush=True)
    venv.create(VENVS / name, with_pip=True, clear=True)
    install = [python_of(name), "-m", "pip", "install", "--quiet"]
    alone = [one for one in wanted if one.startswith(ALONE)]
    subprocess.run([*install, *(one for one in wanted if one not in alone), *MORE.get(name, ())], check=True)
    if alone:
        subprocess.run([*install, "--no-deps", *alone], check=True)


def shim(name: str) -> None:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(subprocess.check_output([python_of(name), "-c", code], text=True).strip())
    (site / "_declare_torchvision.py").write_text(SHIM)
    (site / "_declare_torchvision.pth").write_text("import _declare_torchvision\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which of {', '.join(PINS)}; default all but ffcv")
    parser.add_argument("--clear", action="store_true", help="remove the environments and make them anew")
    options = parser.parse_args()
    unknown = set(options.names) - set(PINS)
    if unknown:
        parser.error(f"no environment is called {min(unknown)}; there are {', '.join(PINS)}")
    for name in options.names or [one for one in PINS if one not in BY_NAME]:
        if options.clear:
            shutil.rmtree(VENVS / name, ignore_errors=True)
        if not right(name):
            make(name)
        said = imports(name)
        if "torchvision" in said:
            shim(name)
            said = imports(name)
        if said:
            print(f"{name}: does not import: {said}", file=sys.stderr)
            return 1
        print(f"{name}: {', '.join(f'{k} {v}' for k, v in installed(name).items())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
