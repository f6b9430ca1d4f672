"""The table of cases: what a run says, how it ends and what is kept where something is wrong, as in ``docs/bench/cases.md``.

``python packages/stoker-bench/tests/bench/cases_table.py`` runs all cases as real processes and prints the table; with
``--write`` it becomes the page's; with names of cases only these are run. ``test_bench_cases.py`` runs them one by one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

HERE: Final = Path(__file__).parent
PAGE: Final = HERE.parent.parent / "docs" / "bench" / "cases.md"
_MARK: Final = "<!-- made by packages/stoker-bench/tests/bench/cases_table.py -->\n"

sys.path[:0] = [str(HERE), str(HERE.parent)]

from bench_faults import pid_of, small_disk  # noqa: E402 - of the folders above

from patience import PATIENCE  # noqa: E402
from s3server import S3Server, make_bucket, run_s3_server  # noqa: E402
from stoker_bench.measure.generation import make_data  # noqa: E402
from stoker_bench.settings.sources import read_workload  # noqa: E402

SMALL: Final[dict[str, Any]] = {
    "name": "small",
    "dataset": {"files": 24, "samples_per_file": 2, "record_bytes": 4096},
    "compute": {"seconds": 0.01},
    "reader": {"batch_size": 2, "threads": 1},
    "metric": {"au": 0.02},
}
"""24 steps of one rank, of which 23 count. A batch may take half a second, and the utilization is still enough."""
ON_TIME: Final = "reader.loader=bench_loaders:OnTime"
"""For a run that is to be valid however busy this host is."""


def _generate(url: str, *settings: str) -> None:
    """Make the data set of :data:`SMALL` and such settings."""
    small = [f"{section}.{name}={value}" for section in ("dataset", "reader") for name, value in SMALL[section].items()]
    make_data(read_workload(None, [*small, *settings], environ={}, dotenv=None).workload, url)


@dataclass(frozen=True)
class Store:
    """An S3 server, and the data set in it that all cases share which only read it.

    Attributes:
        server: the server.
        url: of the data set.
    """

    server: S3Server
    url: str

    @property
    def options(self) -> str:
        """The setting with what the server asks for."""
        return f"storage.options={json.dumps(self.server.storage_options)}"


@contextlib.contextmanager
def open_store(server: S3Server) -> Iterator[Store]:
    """Make the data set on a server, for as long as the block lasts."""
    with make_bucket(server) as bucket:
        made = Store(server, f"{bucket.url}/data")
        _generate(made.url, made.options)
        yield made


@dataclass
class Place:
    """Where one case runs.

    Attributes:
        folder: its own, empty.
        store: the store of objects.
        stack: ends what the case has begun.
        results: where the run's results go.
    """

    folder: Path
    store: Store
    stack: contextlib.ExitStack
    results: Path

    @property
    def shared(self) -> list[str]:
        """Arguments for the data set that is only read."""
        return [f"--data={self.store.url}", self.store.options]

    def bucket(self, *settings: str) -> list[str]:
        """Arguments for a data set of its own, in a bucket."""
        bucket = self.stack.enter_context(make_bucket(self.store.server))
        _generate(f"{bucket.url}/data", self.store.options, *settings)
        return [f"--data={bucket.url}/data", self.store.options, *settings]

    def disk(self, size: str) -> Path:
        """A file system with little room."""
        return self.stack.enter_context(small_disk(self.folder / "small", size))

    def start(self, results: Path, *arguments: str) -> subprocess.Popen[str]:
        """``stoker bench run``, in a session of its own, which ends with the case. Its folder has modules for it."""
        path = self.folder / "workload.yaml"
        path.write_text(json.dumps(SMALL))
        given = ["bench", "run", str(path), *arguments, "--results", str(results)]
        modules = os.pathsep.join((str(self.folder), str(HERE)))
        run = subprocess.Popen(
            [sys.executable, "-m", "stoker", *given],
            env=os.environ | {"PYTHONPATH": modules, "COLUMNS": "200", "TMPDIR": str(self.folder)},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.stack.callback(_end, run)
        return run


def _end(run: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    for stream in (run.stdout, run.stderr):
        if stream is not None:
            stream.close()


@dataclass(frozen=True)
class Seen:
    """The end of a case.

    Attributes:
        au: utilization, and nominal, as text.
        verdict: of the results; ``error`` where there are none.
        code: exit code.
        kept: what is left of the measurement.
        said: stdout and stderr.
    """

    au: str
    verdict: str
    code: int
    kept: str
    said: str


@dataclass(frozen=True)
class Case:
    """A case, and what must come of it.

    Attributes:
        name: for people.
        given: the run's arguments; makes what they need.
        verdict, code, kept: as of :class:`Seen`.
        says: a pattern of what the terminal must say.
        during: done while the run goes on.
    """

    name: str
    given: Callable[[Place], list[str]]
    verdict: str
    code: int
    kept: str
    says: str
    during: Callable[[subprocess.Popen[str], Path], None] | None = field(default=None)


def run_case(case: Case, store: Store) -> Seen:
    """Run a case in a folder of its own."""
    with contextlib.ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-case-", ignore_cleanup_errors=True))
        )
        place = Place(folder, store, stack, folder / "r")
        given = case.given(place)
        run = place.start(place.results, *given)
        if case.during is not None:
            case.during(run, folder)
        out, error = run.communicate(timeout=PATIENCE)
        left = _processes(run.pid)
        assert not left, f"still running: {left}"
        return _seen(place.results, run.returncode, out, error)


def _processes(session: int) -> list[str]:
    """Processes of a run's session that are still there, a moment after it has ended."""
    deadline = time.monotonic() + PATIENCE
    while True:
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                name, _, rest = path.read_text().rpartition(")")
                state, _, _, its_session = rest.split()[:4]
                if int(its_session) == session and state != "Z":
                    found.append(name)
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def _seen(results: Path, code: int, out: str, error: str) -> Seen:
    assert "Traceback" not in error, error
    path = results / "results.json"
    if not path.exists():
        kept = "numbers on the terminal" if "utilization" in out else "nothing"
        return Seen("-", "error", code, kept, out + error)
    result = json.loads(path.read_text())
    return Seen(_utilization(result), result["verdict"], code, _kept(result), out + error)


def _utilization(result: dict[str, Any]) -> str:
    train = result["train"]
    values = [None if train is None or train[name] is None else train[name]["mean"] for name in ("au", "au_nominal")]
    return ", ".join("-" if value is None else f"{value:.0%}" for value in values)


def _kept(result: dict[str, Any]) -> str:
    epochs = [epoch for epoch in result["epochs"] if epoch["kind"] == "train"]
    if result["complete"]:
        return "all"
    if any(epoch["complete"] for epoch in epochs):
        return "epochs until then"
    return "steps until then" if any(sum(epoch["steps"]) for epoch in epochs) else "results without epochs"


# -- the cases -----------------------------------------------------------------------------------------------------


def _when_epochs(count: int, then: Callable[[subprocess.Popen[str], Path], None]) -> Callable[..., None]:
    """Do something once so many ranks have ended two epochs, the first of which is then kept."""

    def wait(run: subprocess.Popen[str], folder: Path) -> None:
        deadline = time.monotonic() + PATIENCE
        while len(list((folder / "r" / "steps").glob("*-train-0-1.npz"))) < count and run.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        then(run, folder)

    return wait


def _kill_starting(run: subprocess.Popen[str], _: object) -> None:
    deadline = time.monotonic() + PATIENCE
    while run.poll() is None and time.monotonic() < deadline:
        for pid in Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split():
            told = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"stoker_bench.ranks.rank_main" in told and told[-4] == b"1":
                os.kill(int(pid), signal.SIGKILL)
                return
        time.sleep(0.001)


def _kill_rank(_: object, folder: Path) -> None:
    os.kill(pid_of(folder, 1), signal.SIGKILL)


def _starting(place: Place) -> list[str]:
    """Rank 1 comes no further than the start of Python."""
    code = "import sys, time\nif sys.orig_argv[-3:-1] == ['1', '2']:\n    time.sleep(3600)\n"
    (place.folder / "sitecustomize.py").write_text(code)
    return [*_LONG]


def _memory(place: Place) -> list[str]:
    folder = tempfile.mkdtemp(prefix="bench-case-", dir="/dev/shm")
    place.stack.callback(shutil.rmtree, folder, ignore_errors=True)
    _generate(folder)
    return [f"--data={folder}"]


def _warm(place: Place) -> list[str]:
    large, data = "dataset.record_bytes=400000", place.folder / "large"
    _generate(str(data), large)
    return [f"--data={data}", large, "storage.cache=keep"]


def _cut_off(data: bytes) -> bytes:
    """As by a copy that broke off."""
    return data[: len(data) // 2]


def _changed(data: bytes) -> bytes:
    """One bit, in the middle of the array that lies there."""
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def _damaged(place: Place, damage: Callable[[bytes], bytes], *more: str) -> list[str]:
    """One file of 24."""
    told = [*place.bucket(), "reader.shuffle=false", *more]
    client, name = place.store.server.client(), told[0].removeprefix("--data=s3://").partition("/")[0]
    keys = sorted(one["Key"] for one in client.list_objects_v2(Bucket=name)["Contents"])
    key = [key for key in keys if "/train/" in key and "/_" not in key][7]
    data = client.get_object(Bucket=name, Key=key)["Body"].read()
    client.put_object(Bucket=name, Key=key, Body=damage(data))
    return told


def _resized(place: Place, kind: str) -> list[str]:
    """Of samples of 100 kB 1 kB is delivered, and all are read."""
    told = place.bucket(f"dataset.format={kind}", "dataset.record_bytes=100000")
    return [*told, "dataset.resize_bytes=1000", ON_TIME]


def _small_data(place: Place) -> list[str]:
    """Of files that are compressed it is not known before how large they are."""
    return [f"--data={place.disk('1m')}/d", "--stages=generate,train", "dataset.record_bytes=100000"]


def _checkpoints(place: Place, size: int) -> list[str]:
    """Checkpoints after the first and the last of three epochs."""
    when = "train.epochs=3", "checkpoint.every_epochs=2"
    told = f"checkpoint.url={place.disk('1m')}/c", f"model.size_bytes={size}", *when
    return [*told, "--stages=train,checkpoint", "reader.loader=bench_loaders:UntilFull", "--data=/nothing"]


def _fill(_: object, folder: Path) -> None:
    """As another program may, while the run goes on: its third epoch waits for it."""
    with contextlib.suppress(OSError), (folder / "small" / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    (folder / "full").touch()


def _full_results(place: Place) -> list[str]:
    """As full as it can be once an epoch has begun."""
    small = place.disk("64k")
    (small / "filler").write_bytes(bytes(52 << 10))
    place.results = small / "r"
    return ["train.epochs=300", "compute.seconds=0.001", "reader.loader=synthetic"]


_LONG: Final = ("train.epochs=1000", "compute.seconds=0.01", "reader.loader=synthetic", "--accelerators=2")


def _remote(*more: str) -> Callable[[Place], list[str]]:
    """The data set in a bucket, with such settings."""
    return lambda place: [*place.shared, *more]


def _without_data(*arguments: str) -> Callable[[Place], list[str]]:
    """Arguments that need no data set."""
    return lambda _: list(arguments)


CASES: Final = (
    Case("nothing is wrong", _remote(ON_TIME), "passed", 0, "all", "^passed: "),
    Case(
        "too slow for the accelerator",
        _remote("metric.au=0.9", "compute.seconds=0.00001", ON_TIME),
        *("not passed", 4, "all", "^not passed: a pass needs a valid run"),
    ),
    Case(
        "one step",
        _remote("train.steps=2", ON_TIME),
        *("smoke test", 4, "all", "only 1 steps of an epoch count"),
    ),
    Case(
        "fewer files than asked for",
        _remote("dataset.files=30"),
        *("error", 1, "nothing", "has 24 of the workload's 30 files"),
    ),
    Case(
        "more files: the first ones are read",
        _remote("dataset.files=12", ON_TIME),
        *("passed", 0, "all", "^passed: "),
    ),
    Case(
        "wrong sizes",
        _remote("dataset.record_bytes=8192"),
        *("invalid", 3, "all", "a sample of train has .* than the 8,192 that the workload says"),
    ),
    Case(
        "damaged file: cut off",
        partial(_damaged, damage=_cut_off),
        *("invalid", 1, "results without epochs", r"img-00007\.npz: not an NPZ"),
    ),
    Case(
        "damaged file: a bit differs, `reader.checksums=true`",
        lambda place: _damaged(place, _changed, "reader.checksums=true"),
        *("invalid", 1, "steps until then", r"img-00007\.npz: .*CRC-32"),
    ),
    Case(
        "damaged file: a bit differs, loader `torch`",
        lambda place: _damaged(place, _changed, "reader.loader=torch", "reader.threads=0"),
        *("invalid", 1, "steps until then", r"img-00007\.npz: .*CRC-32"),
    ),
    Case("resized NPZ", partial(_resized, kind="npz"), "passed", 0, "all", "^passed: "),
    Case("resized HDF5", partial(_resized, kind="hdf5"), "passed", 0, "all", "^passed: "),
    Case("`tmpfs`", _memory, "invalid", 3, "all", r"is in memory \(tmpfs\): no storage was measured"),
    Case(
        "warm page cache",
        _warm,
        "invalid",
        3,
        "all",
        "did not come from the device but from the page cache|is in memory",
    ),
    Case(
        "busy host",
        _remote("reader.loader=bench_loaders:Stopped", "compute.seconds=0.005"),
        *("invalid", 3, "all", r"longer than the 5 ms drawn for it: this host is overloaded"),
    ),
    Case(
        "wrong bucket",
        lambda place: ["--data=s3://no-such-bucket-of-ours/x", place.store.options, "--accelerators=2"],
        *("error", 1, "nothing", "s3://no-such-bucket-of-ours"),
    ),
    Case(
        "too little room for the data",
        _small_data,
        *("error", 1, "nothing", "small/d: the data set has .* free some space"),
    ),
    Case(
        "full disk under the data",
        lambda place: [*_small_data(place), "dataset.compression=zip"],
        *("invalid", 1, "results without epochs", "small/d.*No space left on device"),
    ),
    Case(
        "too little room for the checkpoints",
        partial(_checkpoints, size=600_000),
        *("error", 1, "nothing", "small/c: 2 checkpoints of this host's ranks need 1.2 MB, .* are free"),
    ),
    Case(
        "full disk under the checkpoints",
        partial(_checkpoints, size=400_000),
        *("invalid", 1, "epochs until then", "small/c.*No space left on device"),
        _when_epochs(1, _fill),
    ),
    Case(
        "full disk under the results",
        _full_results,
        *("error", 1, "numbers on the terminal", r"small/r/.*No space left on device(.|\n)*nothing is kept"),
    ),
    Case(
        "killed rank",
        _without_data(*_LONG),
        *("invalid", 1, "epochs until then", "rank 1 .*(killed|ended without a word)"),
        _when_epochs(2, _kill_rank),
    ),
    Case(
        "hanging rank",
        _without_data(
            *("reader.loader=bench_loaders:Hangs", "--data=/nothing", "--accelerators=2", "train.epochs=2"),
            *("train.barrier=true", "train.step_timeout=4", "compute.seconds=0.01"),
        ),
        *("invalid", 1, "epochs until then"),
        r"rank 1 \(.*hangs: no progress for .* in epoch 1 of train, step 3, waiting for a batch: .*called by _Hanging.read",
    ),
    Case(
        "hanging collate function in a worker process",
        _without_data(
            *("reader.loader=bench_loaders:HangsInWorker", "--data=/nothing", "--accelerators=2", "train.epochs=2"),
            *("train.barrier=true", "train.step_timeout=8", "compute.seconds=0.01"),
        ),
        *("invalid", 1, "epochs until then"),
        r"rank 1 \(.*hangs: no progress for .* in epoch 1 of train, step 1, waiting for a batch: .*; its worker process "
        r"\d+ in _collate \(bench_loaders.py:\d+\), called by",
    ),
    Case(
        "stopped rank, others in the barrier",
        _without_data(*_LONG, "train.barrier=true", "train.step_timeout=4"),
        *("invalid", 1, "epochs until then", r"rank 1 \(.* hangs: it gave no sign for 4 s. It is stopped"),
        _when_epochs(2, lambda _, folder: os.kill(pid_of(folder, 1), signal.SIGSTOP)),
    ),
    Case(
        "rank killed while it starts",
        _starting,
        *("invalid", 1, "results without epochs", "rank 1 was killed by SIGKILL"),
        _kill_starting,
    ),
    Case(
        "Ctrl-C",
        _without_data(*_LONG),
        *("invalid", 130, "epochs until then", "interrupted"),
        _when_epochs(2, lambda run, _: os.killpg(run.pid, signal.SIGINT)),
    ),
    Case(
        "SIGTERM",
        _without_data(*_LONG),
        *("invalid", 143, "epochs until then", "terminated"),
        _when_epochs(2, lambda run, _: os.kill(run.pid, signal.SIGTERM)),
    ),
)


# -- the table -----------------------------------------------------------------------------------------------------


_HEAD: Final = "| case | AU, nominal AU | verdict | exit code | kept |\n|---|---|---|---|---|\n"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def rows_of_page() -> dict[str, list[str]]:
    """Each case's cells of the table of the page."""
    rows = re.findall(r"^\| (.+) \|$", PAGE.read_text().partition(_MARK)[2], re.MULTILINE)
    return {cells[0]: cells for cells in (row.split(" | ") for row in rows[1:])}


def main(arguments: list[str]) -> int:
    """Run the cases, and print their table; 1 where one did not end as it must."""
    write, names = "--write" in arguments, [one for one in arguments if one != "--write"]
    made, wrong = rows_of_page() if write else {}, 0
    with run_s3_server() as server, open_store(server) as store:
        for case in CASES:
            if names and case.name not in names:
                continue
            try:
                seen = run_case(case, store)
            except pytest.skip.Exception as reason:
                sys.stderr.write(f"{case.name}: skipped: {reason}\n")
                continue
            made[case.name] = [case.name, seen.au, seen.verdict, str(seen.code), seen.kept]
            found = (seen.verdict, seen.code, seen.kept)
            if found != (case.verdict, case.code, case.kept) or not re.search(case.says, seen.said, re.MULTILINE):
                wrong += 1
                sys.stderr.write(f"{case.name}: {found}, not {(case.verdict, case.code, case.kept)}\n{seen.said}\n")
            sys.stdout.write(_row(made[case.name]))
    if write:
        rows = [_row(made[case.name]) for case in CASES if case.name in made]
        PAGE.write_text(PAGE.read_text().partition(_MARK)[0] + _MARK + _HEAD + "".join(rows))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
