"""Python environments of this checkout: made of pinned packages, found again by the hash of their pins.

    python3 tools/environments.py dev                  # make .venv, unless it is there with these pins
    python3 tools/environments.py pytorch ray          # the environments of these trainers, below .venvs
    python3 tools/environments.py --unpinned dev       # the newest versions, in .venvs/unpinned-dev
    python3 tools/environments.py --lock dev           # the newest versions become the pins
    python3 tools/environments.py --python python3.13 dev   # for another Python, in .venvs/python3.13-dev

The pins of an environment are in ``constraints.txt`` for ``dev`` and ``demo``, and in ``tools/constraints/<name>.txt``
for the others.

With ``STOKER_ENVIRONMENTS=<folder>``, environments are kept in that folder, and checkouts get copies, as hard links
where the file system has them: a fresh clone has its environment in seconds. ``.ci/run`` sets it.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
BENCH: Final = ROOT / "packages" / "stoker-bench"
VENVS: Final = ROOT / ".venvs"
STAMP: Final = "stoker-pins"
WITHOUT: Final = "WITHOUT_STOKER_BENCH"
"""Variable with which ``dev`` does not find stoker-bench, as if it were not installed."""

# The index's newest torch is a build for CUDA of several GB, where it has another one at all.
TORCH: Final = "torch==2.13.0"
_UNUSED: Final = 14 * 86400
"""Seconds after which an environment that no checkout has asked for is removed."""
_TEST: Final = ("pytest>=8", "pytest-timeout>=2.3")


@dataclass(frozen=True)
class Environment:
    """The packages of an environment.

    Attributes:
        packages: requirements, as pip takes them. ``stoker[...]`` and ``stoker-bench[...]`` stand for what these require.
        alone: requirements that are installed without their own requirements.
        imports: modules that must import; a torchvision built for CUDA is made to.
        stoker: whether this checkout is installed in it, editable.
        bench: whether stoker-bench is, too; see :data:`WITHOUT`.
        pins: the file of its pins; default ``tools/constraints/<name>.txt``.
    """

    packages: tuple[str, ...]
    alone: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    stoker: bool = True
    bench: bool = False
    pins: str = ""


ENVIRONMENTS: Final[dict[str, Environment]] = {
    "dev": Environment((TORCH, "stoker[dev]"), bench=True, pins="constraints.txt"),
    "demo": Environment(("stoker[demo]", "stoker-bench"), bench=True, pins="constraints.txt"),
    # Trainers that stoker is tested with. Those that go together share an environment; datasets of torchtitan is older
    # than TRL's.
    "pytorch": Environment(
        (
            TORCH,
            "torchdata==0.11.0",
            "accelerate==1.15.0",
            "transformers==5.23.0",
            "trl==1.16.0",
            "datasets==5.2.0",
            "lightning==2.6.6",
            *_TEST,
        ),
        # Composer asks for torch 2.6 and for clients of clouds: these are what its Trainer imports.
        alone=(
            "mosaicml==0.32.1",
            "torch_optimizer==0.3.0",
            "pytorch_ranger==0.1.1",
            "coolname==3.0.0",
            "py-cpuinfo==9.0.0",
            "tabulate==0.9.0",
            "importlib-metadata==8.9.0",
            "zipp==4.1.2",
            "pillow==13.0.0",
        ),
    ),
    "torchtitan": Environment((TORCH, "torchdata==0.11.0", "torchtitan==0.3.0", *_TEST)),
    "ray": Environment(
        (
            TORCH,
            "ray[data,train]==2.60.0",
            # The formats that Ray Data reads.
            "h5py==3.16.0",
            "pillow==13.0.0",
            "webdataset==1.0.2",
            "tfrecord==1.14.6",
            "crc32c==2.9.post0",
            "tokenizers==0.23.3",
            # Tests of stoker's own parts that use Ray.
            "hypothesis==6.170.15",
            "boto3==1.44.5",
            "moto[s3,server]==5.2.5",
            "stoker-bench",
            *_TEST,
        ),
        bench=True,
    ),
    "jax": Environment((TORCH, "jax==0.10.2", "orbax-checkpoint==0.12.8", "keras==3.15.1", *_TEST)),
    "peers": Environment(
        (TORCH, "litdata==0.2.76", "webdataset==1.0.2", "datasets==5.2.0", "grain==0.2.18", *_TEST),
    ),
    # Libraries that benchmarks measure stoker against, and whose results tests compare.
    "mosaic": Environment((TORCH, "mosaicml-streaming==0.13.0"), imports=("streaming",), stoker=False),
    "litdata": Environment(
        (TORCH, "litdata==0.2.76", "webdataset==1.0.2", "zstd==1.5.7.2"),
        imports=("litdata", "webdataset", "torchvision"),
        stoker=False,
    ),
    "hf": Environment((TORCH, "datasets==5.2.0"), imports=("datasets",), stoker=False),
    # torchcodec needs FFmpeg's libraries: apt-get install libavdevice59 (of Debian 12), or ffmpeg.
    "video": Environment(
        (TORCH, "datasets==5.2.0", "torchcodec==0.13.0", "aiohttp", "requests"),
        imports=("datasets", "torchcodec"),
        stoker=False,
    ),
    "grain": Environment(("grain==0.2.18", "array_record==0.8.6"), imports=("grain", "array_record"), stoker=False),
    # Compiled here: apt-get install g++ pkg-config libopencv-dev libturbojpeg0-dev.
    "ffcv": Environment((TORCH, "ffcv==1.0.2", "pillow"), imports=("ffcv",), stoker=False),
    # DALI's operators of the processor need none of the libraries for graphics processors that it requires.
    "dali": Environment(
        ("numpy", "astunparse", "gast", "libcst", "makefun", "nvtx", "optree", "packaging", "six", "dm-tree"),
        alone=("nvidia-dali-cuda120==2.4.0", "nvidia-nvimgcodec-cu12==0.9.0.20"),
        imports=("nvidia.dali",),
        stoker=False,
    ),
    # DLIO requires DALI, which PyPI does not have, and does not import it for what is measured; TensorFlow it imports
    # always.
    "dlio": Environment(
        (
            TORCH,
            "pydftracer==1.0.2",
            "tensorflow-cpu==2.21.0",
            *("mpi4py", "mpich", "h5py", "omegaconf", "hydra-core", "pandas", "psutil", "pillow", "pyyaml"),
        ),
        alone=("dlio_benchmark==2.0.0",),
        imports=("dlio_benchmark.main",),
        stoker=False,
    ),
}
TRAINERS: Final = ("pytorch", "torchtitan", "ray", "jax", "peers")
"""Environments of ``tests/trainers/<name>``."""

# Peers require torchvision for what is not measured here. Where the index offers a torchvision built for CUDA beside a
# torch without, its compiled operators do not load, and it refuses to be imported because two of them are unknown.
# Declared without a body, they let it be imported.
_DECLARE_TORCHVISION: Final = '''\
"""Lets a torchvision built for CUDA be imported beside a torch that is not (made by tools/environments.py)."""

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


@dataclass(frozen=True)
class Variant:
    """An environment for a Python, with its pins or without.

    Attributes:
        name: key of :data:`ENVIRONMENTS`.
        python: the interpreter that makes it, a path or a program's name.
        pinned: whether the versions are those of the pins.
    """

    name: str
    python: str = sys.executable
    pinned: bool = True

    @property
    def environment(self) -> Environment:
        """The packages."""
        return ENVIRONMENTS[self.name]

    @property
    def folder(self) -> Path:
        """Its folder in this checkout."""
        if self.python != sys.executable:
            return VENVS / f"{Path(self.python).name}-{self.name}"
        if not self.pinned:
            return VENVS / f"unpinned-{self.name}"
        return ROOT / ".venv" if self.name == "dev" else VENVS / self.name

    @property
    def interpreter(self) -> Path:
        """Its Python, whether it is there or not."""
        return self.folder / "bin" / "python"

    @property
    def pins(self) -> Path:
        """The file of its pins."""
        return ROOT / (self.environment.pins or f"tools/constraints/{self.name}.txt")

    def requirements(self) -> list[str]:
        """What pip is asked for, but stoker itself, and what is installed alone."""
        ours = ["stoker"] if self.environment.stoker else []
        return sorted(set(_without_stoker([*self.environment.packages, *ours])))

    def key(self) -> str:
        """The hash of all that decides which files are installed; without pins also of the day."""
        versions = _read(self.pins) if self.pinned else date.today().isoformat()
        python = subprocess.check_output([self.python, "-c", "import sys; print(sys.version)"], text=True)
        parts = [python, versions, _DECLARE_TORCHVISION, *self.requirements(), *self.environment.alone]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def python_of(name: str) -> Path:
    """The interpreter of an environment of this checkout, whether it is there or not."""
    return Variant(name).interpreter


def is_made(variant: Variant) -> bool:
    """Whether an environment is there, whole, with the pins of now, and of this checkout."""
    return _read(variant.folder / STAMP) == _stamp(variant)


def make(variant: Variant) -> None:
    """Make an environment, unless it is there with these pins. Its stamp comes last: half an environment is none.

    Raises:
        SystemExit: an installation failed, or a library does not import.
    """
    if is_made(variant):
        return
    VENVS.mkdir(exist_ok=True)
    shutil.rmtree(variant.folder, ignore_errors=True)
    kept = os.environ.get("STOKER_ENVIRONMENTS")
    if kept:
        source = Path(kept) / f"{variant.name}-{variant.key()}"
        with _locked(source.with_name(f"{source.name}.lock")):
            if _read(source / STAMP) != variant.key():
                shutil.rmtree(source, ignore_errors=True)
                _install(variant, source)
                (source / STAMP).write_text(variant.key())
            os.utime(source)
            for old in source.parent.glob(f"{variant.name}-*/"):
                if time.time() - old.stat().st_mtime > _UNUSED:
                    shutil.rmtree(old, ignore_errors=True)
        _copy(source, variant.folder)
        print(f"{variant.name}: copied from {source}", flush=True)
    else:
        _install(variant, variant.folder)
    _finish(variant)


def lock(variant: Variant) -> None:
    """Make an environment of the newest versions that its requirements allow, and write them as its pins."""
    variant.pins.parent.mkdir(exist_ok=True)
    variant.pins.unlink(missing_ok=True)
    shutil.rmtree(variant.folder, ignore_errors=True)
    _install(variant, variant.folder)
    command = [str(variant.interpreter), "-m", "pip", "freeze", "--all", "--exclude-editable"]
    frozen = subprocess.check_output(command, text=True).splitlines()
    versions = sorted({_plain(line) for line in frozen if "==" in line}, key=str.lower)
    head = f"# Made by: python3 tools/environments.py --lock {variant.name}\n"
    variant.pins.write_text(head + "".join(f"{version}\n" for version in versions))
    _finish(variant)


def _finish(variant: Variant) -> None:
    """Install this checkout, where the environment has it, and write the stamp."""
    if variant.environment.stoker:
        _pip(variant.interpreter, "--no-deps", "--editable", str(ROOT), pins=variant.pins if variant.pinned else None)
    if variant.environment.bench:
        _pip(variant.interpreter, "--no-deps", "--editable", str(BENCH), pins=None)
    if variant.name == "dev":
        _set_apart(variant)
    (variant.folder / STAMP).write_text(_stamp(variant))


def _set_apart(variant: Variant) -> None:
    """Have an environment find stoker-bench in a folder beside its packages, unless the variable :data:`WITHOUT` is set.

    Tests of stoker run where stoker-bench is not installed, without an environment of their own.
    """
    (site,) = variant.folder.glob("lib/python*/site-packages")
    apart = variant.folder / "lib" / "stoker-bench"
    apart.mkdir()
    for path in site.glob("*stoker_bench*"):
        path.rename(apart / path.name)
    (site / "stoker-bench.pth").write_text(
        f"import os, site; {WITHOUT!r} in os.environ or site.addsitedir({str(apart)!r})\n"
    )


def _plain(pin: str) -> str:
    """A pin without the local part of its version: builds of torch differ in nothing else."""
    return pin.split(";", maxsplit=1)[0].split("+", maxsplit=1)[0].strip()


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _stamp(variant: Variant) -> str:
    ours = [tomllib.loads((folder / "pyproject.toml").read_text())["project"] for folder in (ROOT, BENCH)]
    projects = hashlib.sha256(json.dumps(ours).encode()).hexdigest()[:16]  # also commands and names that they bring
    found = {"pins": variant.key(), "projects": projects, "bench": variant.environment.bench, "checkout": str(ROOT)}
    return json.dumps(found)


def _without_stoker(packages: Iterable[str]) -> Iterator[str]:
    """The requirements, with ``stoker[extra]`` and ``stoker-bench[extra]`` replaced by what these require."""
    for package in packages:
        ours = re.fullmatch(r"(stoker|stoker-bench)(?:\[([^\]]+)\])?(?:==.*)?", package)
        if ours is None:
            yield package
            continue
        folder = ROOT if ours[1] == "stoker" else BENCH
        project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        yield from _without_stoker(project["dependencies"])
        for extra in (ours[2] or "").split(","):
            yield from _without_stoker(project["optional-dependencies"].get(extra.strip(), ()))


def _install(variant: Variant, folder: Path) -> None:
    """Make a virtual environment in a folder with all packages, but stoker."""
    environment = variant.environment
    pins = variant.pins if variant.pinned and variant.pins.exists() else None
    print(f"{variant.name}: installing {len(variant.requirements())} requirements and what they require", flush=True)
    subprocess.run([variant.python, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    _pip(python, "--upgrade", "pip", pins=pins)
    _pip(python, *variant.requirements(), pins=pins)
    if environment.alone:
        _pip(python, "--no-deps", *environment.alone, pins=None)
    if "torchvision" in _import_error(python, environment.imports):
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "_declare_torchvision.py").write_text(_DECLARE_TORCHVISION)
        (site / "_declare_torchvision.pth").write_text("import _declare_torchvision\n")
    if error := _import_error(python, environment.imports):
        raise SystemExit(f"{variant.name}: a library does not import: {error}")


def _pip(python: Path, *arguments: str, pins: Path | None) -> None:
    constraint = ["--constraint", str(pins)] if pins else []
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *constraint, *arguments]
    for attempt in (1, 2, 3):  # an index that is busy answers with errors
        done = subprocess.run(command, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode == 0:
            return
        print(f"{done.stdout[-4000:]}\nattempt {attempt} failed: {' '.join(command)}", file=sys.stderr, flush=True)
    raise SystemExit(f"pip failed three times: {' '.join(command)}")


def _import_error(python: Path, modules: tuple[str, ...]) -> str:
    """Empty if the modules import, else the last line of the error."""
    for module in modules:
        run = subprocess.run([python, "-c", f"import {module}"], capture_output=True, text=True, check=False)
        if run.returncode:
            return run.stderr.strip().splitlines()[-1]
    return ""


def _copy(source: Path, target: Path) -> None:
    """Copy an environment to another folder, whose scripts name their own Python."""
    target.parent.mkdir(parents=True, exist_ok=True)
    linked = subprocess.run(["cp", "-a", "--link", str(source), str(target)], check=False, capture_output=True)
    if linked.returncode:  # another file system
        shutil.rmtree(target, ignore_errors=True)
        subprocess.run(["cp", "-a", str(source), str(target)], check=True)
    (target / STAMP).unlink()
    old, new = str(source).encode(), str(target).encode()
    for script in [*(target / "bin").iterdir(), target / "pyvenv.cfg"]:
        if script.is_symlink() or not script.is_file():
            continue
        content = script.read_bytes()
        if old in content and not content.startswith(b"\x7fELF"):
            mode = script.stat().st_mode
            script.unlink()  # a hard link: the other name must keep its content
            script.write_bytes(content.replace(old, new))
            script.chmod(mode)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time, on this machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=ENVIRONMENTS, metavar="NAME", help=", ".join(ENVIRONMENTS))
    parser.add_argument("--python", default=sys.executable, help="another Python than the one that runs this")
    parser.add_argument("--unpinned", action="store_true", help="the newest versions, not those of the pins")
    parser.add_argument("--lock", action="store_true", help="take the newest versions, and write them as pins")
    parser.add_argument("--clear", action="store_true", help="make what is there, too")
    parser.add_argument("--quiet", action="store_true", help="say nothing of what is there")
    options = parser.parse_args()
    variants = [Variant(name, options.python, not options.unpinned) for name in options.names]
    if options.clear:
        for variant in variants:
            shutil.rmtree(variant.folder, ignore_errors=True)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lock if options.lock else make, variants))
    for variant in () if options.quiet else variants:
        print(f"{variant.name}: {variant.pins if options.lock else variant.interpreter}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
