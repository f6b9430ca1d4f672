"""What was begun before a fork goes on in the child, or says why it can not; nothing there waits for the parent's threads."""

from __future__ import annotations

import copy
import fcntl
import importlib
import logging
import os
import pickle
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patience import PATIENCE
from stoker import (
    LMStream,
    MDSWriter,
    ReadOptions,
    StreamingDataLoader,
    StreamingDataset,
    StreamingParquetLoader,
    StreamingShardLoader,
)
from stoker.concurrency import forks
from stoker.errors import StokerError
from stoker.lazy import cached_property
from stoker.loaders.shard_loader import Adaptive, StreamingConfig
from stoker.writing.parquet_writer import ParquetWriter
from support import make_dataset, run_script

pytestmark = [pytest.mark.processes]

_SAMPLES = 300


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 samples in several shards, with a column of tokens beside them as Parquet."""
    folder = tmp_path_factory.mktemp("data")
    make_dataset(folder / "mds", _SAMPLES, size_limit=2000)
    with ParquetWriter({"tokens": "ndarray:int32"}, str(folder / "tokens"), size_limit=4000) as out:
        for number in range(_SAMPLES):
            out.write({"tokens": np.arange(number, number + 20, dtype=np.int32)})
    return folder


def in_child(action: Callable[[], Any]) -> Any:
    """What an action returns, or the error that it raises, in a process forked from this one."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            signal.alarm(60)  # the default action ends a child that waits for ever
            try:
                told = repr(action())
            except StokerError as error:
                told = f"{type(error).__name__}: {error}"
            os.write(theirs, told.encode())
            status = 0
        finally:
            os._exit(status)
    os.close(theirs)
    with os.fdopen(ours, "rb") as file:
        told = file.read().decode()
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, "the child waited for ever, or failed"
    return told


def _id(item: Any) -> Any:
    return np.asarray(item["id"]).tolist()


def _slow(sample: Any) -> Any:
    threading.Event().wait(0.002)
    return sample


def _samples(data: Path) -> Iterator[Any]:
    return map(_id, StreamingDataset(local=data / "mds", transform=_slow, read=ReadOptions(read_threads=4)))


def _batches(data: Path) -> Iterator[Any]:
    return map(_id, StreamingDataset(local=data / "mds", read=ReadOptions(read_threads=4)).batches(8))


def _memory(data: Path) -> Iterator[Any]:
    folder = (data / "mds").as_uri()
    return map(_id, StreamingDataset(remote=folder, read=ReadOptions(cache="memory", read_threads=2)).batches(8))


def _lockstep(data: Path) -> Iterator[Any]:
    dataset = StreamingDataset(local=data / "mds", transform=_slow)
    return map(_id, StreamingShardLoader(dataset, StreamingConfig(prefetch_buffer_size=64)))


def _lockstep_batches(data: Path) -> Iterator[Any]:
    dataset = StreamingDataset(local=data / "mds", transform=_slow)
    return map(_id, StreamingShardLoader(dataset, StreamingConfig(prefetch_buffer_size=64, batch_size=8)))


def _planned(data: Path) -> Iterator[Any]:
    dataset = StreamingDataset(local=data / "mds", transform=_slow)
    return map(_id, StreamingShardLoader(dataset, StreamingConfig(prefetch_buffer_size=64, global_batch_size=8)))


def _parquet(data: Path) -> Iterator[Any]:
    loader = StreamingParquetLoader(str(data / "tokens"), batch_size=4, seq_len=16, read=ReadOptions(read_threads=2))
    return (batch.input_ids.tolist() for batch in loader)


def _stream(data: Path) -> Iterator[Any]:
    dataset = StreamingDataset(
        remote=str(data / "tokens"), format="parquet", batch_size=8, read=ReadOptions(read_threads=2)
    )
    return (batch.input_ids.tolist() for batch in LMStream(dataset, "tokens", 4, 16))


def _tokenized(texts: list[str]) -> list[list[int]]:
    threading.Event().wait(0.01)
    return [list(text.encode()) for text in texts]


def _texts(data: Path) -> Iterator[Any]:
    dataset = StreamingDataset(local=data / "mds", batch_size=8, read=ReadOptions(read_threads=2))
    return (batch.input_ids.tolist() for batch in LMStream(dataset, "text", 4, 16, tokenizer=_tokenized))


def _loader(data: Path) -> Iterator[Any]:
    return map(
        _id, StreamingDataLoader(StreamingDataset(local=data / "mds", read=ReadOptions(read_threads=2), batch_size=8))
    )


@pytest.mark.parametrize(
    "begin",
    [_samples, _batches, _memory, _lockstep, _lockstep_batches, _planned, _parquet, _stream, _texts, _loader],
)
def test_an_iteration_continues_in_a_child_with_what_comes_next_and_in_the_parent_too(
    data: Path, begin: Callable[[Path], Iterator[Any]]
) -> None:
    whole = list(begin(data))
    iterator = begin(data)
    first = list(islice(iterator, 5))
    rest = in_child(lambda: list(iterator))
    assert rest == repr(whole[5:])
    assert first + list(iterator) == whole


def test_a_child_that_is_forked_while_threads_hold_locks_waits_for_none_of_them(data: Path) -> None:
    dataset = StreamingDataset(local=data / "mds", transform=_slow)
    loader = StreamingShardLoader(dataset, StreamingConfig(prefetch_buffer_size=16))
    whole = list(map(_id, loader))
    loader.reset()
    given = []
    for _ in range(20):
        given.append(_id(loader.next()))
        assert in_child(lambda: _id(loader.next())) == repr(whole[len(given)])
    loader.close()


def _mds(data: Path) -> StreamingDataset:
    return StreamingDataset(local=data / "mds")


def _cached(data: Path) -> StreamingDataset:
    return StreamingDataset(remote=(data / "mds").as_uri(), local=data / "cache")


def _in_memory(data: Path) -> StreamingDataset:
    return StreamingDataset(remote=(data / "mds").as_uri(), read=ReadOptions(cache="memory"))


def _rows(data: Path) -> StreamingDataset:
    return StreamingDataset(data / "tokens", read=ReadOptions(read_threads=2))


def _token_rows(data: Path) -> StreamingParquetLoader:
    return StreamingParquetLoader(str(data / "tokens"), batch_size=4, seq_len=16)


def _locks_of(root: Any) -> list[Any]:
    """The locks of an object, and of all objects of stoker's that it leads to."""
    found: list[Any] = []
    seen: dict[int, Any] = {}
    todo = [root]
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen[id(one)] = one
        if isinstance(one, type(threading.Lock()) | type(threading.RLock())):
            found.append(one)
        elif isinstance(one, dict):
            todo += one.values()
        elif isinstance(one, list | tuple):
            todo += one
        elif type(one).__module__.startswith(("stoker.", "threading")):
            todo += getattr(one, "__dict__", {}).values()
    return found


@pytest.mark.parametrize("begin", [_mds, _cached, _in_memory, _rows, _token_rows])
@pytest.mark.parametrize("read_before", [False, True])
def test_a_child_reads_while_a_thread_of_the_parent_holds_every_lock(
    tmp_path: Path, data: Path, begin: Callable[[Path], Any], read_before: bool
) -> None:
    for name in ("mds", "tokens"):
        (tmp_path / name).symlink_to(data / name)
    loader = begin(tmp_path)
    if read_before:
        next(iter(loader))
    locks = _locks_of(loader)
    assert locks
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        for lock in locks:
            lock.acquire(timeout=0.1)  # one that waits for this thread's others is left out
        held.set()
        over.wait(PATIENCE)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    try:
        assert held.wait(PATIENCE)
        assert int(in_child(lambda: sum(1 for _ in loader))) > 10
    finally:
        over.set()
        for lock in locks:
            with suppress(RuntimeError):
                lock.release()


def test_a_coordinated_loader_says_in_a_child_that_the_parent_takes_part(data: Path, tmp_path: Path) -> None:
    dataset = StreamingDataset(local=data / "mds")
    config = StreamingConfig(1, 0, Adaptive(), coordinator=f"sqlite:///{tmp_path}/run.db", prefetch_buffer_size=16)
    with StreamingShardLoader(dataset, config) as loader:
        given = [_id(item) for item in islice(loader, 5)]
        for action in (
            loader.next,
            loader.commit,
            loader.progress,
            loader.get_checkpoint,
            loader.prefetch,
            loader.reset,
        ):
            assert in_child(action).startswith(
                "StateError: this StreamingShardLoader takes part in its run as rank 0"
            ), action
        assert in_child(loader.close) == "None"
        given += [_id(item) for item in iter(loader.next, None)]
        assert sorted(given) == list(range(_SAMPLES))  # the child gave nothing back of what the parent had


@pytest.mark.parametrize("make", [MDSWriter, ParquetWriter])
def test_a_writer_belongs_to_its_process(tmp_path: Path, make: Callable[..., Any]) -> None:
    out = make({"id": "int"}, str(tmp_path / "out"), size_limit=200)
    for number in range(100):
        out.write({"id": number})
    for action in (lambda: out.write({"id": 1}), lambda: out.write_batch({"id": [1]}), out.finish):
        assert in_child(action).startswith(
            "ConfigError: this writer is that of the process from which this one was forked"
        )
    assert in_child(out.abort) == "None"
    for number in range(100, 200):
        out.write({"id": number})
    out.finish()
    kind: dict[str, Any] = {} if make is MDSWriter else {"format": "parquet"}
    assert [int(sample["id"]) for sample in StreamingDataset(remote=str(tmp_path / "out"), **kind)] == list(range(200))


@pytest.mark.parametrize("persistent", [False, True])
def test_the_workers_of_a_dataloader_keep_serving_the_parent(data: Path, persistent: bool) -> None:
    dataset = StreamingDataset(local=data / "mds", batch_size=8)
    loader = StreamingDataLoader(dataset, num_workers=2, persistent_workers=persistent)
    iterator = iter(loader)
    given = [_id(batch) for batch in islice(iterator, 5)]

    def go_on() -> Any:
        try:
            return next(iterator)
        finally:
            iterator.close()  # type: ignore[attr-defined]

    assert in_child(go_on).startswith("StateError: the DataLoader workers of this iteration serve the process")
    given += [_id(batch) for batch in iterator]
    assert sorted(number for batch in given for number in batch) == list(range(_SAMPLES))


# -- imports ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def slow_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module whose import waits, and then imports another one."""
    (tmp_path / "slow_outer.py").write_text(
        "import time\ntime.sleep(0.3)\nimport slow_inner\nVALUE = slow_inner.VALUE\n"
    )
    (tmp_path / "slow_inner.py").write_text("import time\ntime.sleep(0.3)\nVALUE = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "slow_outer"
    for name in ("slow_outer", "slow_inner"):
        sys.modules.pop(name, None)


def test_a_child_imports_what_a_thread_of_its_parent_was_importing(slow_module: str) -> None:
    importing = threading.Thread(target=importlib.import_module, args=(slow_module,))
    importing.start()
    while slow_module not in sys.modules:
        threading.Event().wait(0.01)
    assert in_child(lambda: importlib.import_module(slow_module).VALUE) == "7"
    importing.join()
    # Threads of both import what they like afterwards: nobody holds Python's lock of imports any more.
    for where in (in_child, _called):
        assert where(lambda: _in_thread(lambda: importlib.import_module("json.tool").__name__)) in (
            "json.tool",
            "'json.tool'",
        )


@pytest.mark.timeout(20)  # less than the half minute after which a fork is made all the same
def test_a_module_that_forks_while_it_is_imported_does_not_wait_for_threads_that_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "forking_module.py").write_text(
        "import os, threading, time\n"
        "waits = threading.Thread(target=lambda: __import__('forking_module'), daemon=True)\n"
        "waits.start()\n"
        "time.sleep(0.1)\n"
        "pid = os.fork()\n"
        "if not pid:\n"
        "    os._exit(0)\n"
        "STATUS = os.waitpid(pid, 0)[1]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("forking_module")
    sys.modules.pop("forking_module")
    module.waits.join()
    assert module.STATUS == 0


@contextmanager
def _holding_lock_of_logging(after: float, then: Callable[[], object]) -> Iterator[None]:
    """A thread holds the lock that ``logging`` takes before a fork, for so many seconds, and then does something under it."""
    held = threading.Event()

    def hold() -> None:
        logging._acquireLock()  # type: ignore[attr-defined]
        try:
            held.set()
            threading.Event().wait(after)
            then()
        finally:
            logging._releaseLock()  # type: ignore[attr-defined]

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    held.wait()
    yield
    thread.join(PATIENCE)
    assert not thread.is_alive()


@pytest.mark.skipif(not hasattr(logging, "_acquireLock"), reason="logging names its lock otherwise since Python 3.13")
def test_a_thread_imports_while_it_has_a_lock_that_a_fork_waits_for(slow_module: str) -> None:
    # As logging.config does, and h5py where it reads from an object.
    with _holding_lock_of_logging(0.3, lambda: importlib.import_module(slow_module)):
        assert in_child(lambda: importlib.import_module(slow_module).VALUE) == "7"


@pytest.mark.skipif(not hasattr(logging, "_acquireLock"), reason="logging names its lock otherwise since Python 3.13")
def test_what_is_imported_in_the_moment_before_a_fork_is_imported_anew_in_the_child(slow_module: str) -> None:
    importing = threading.Thread(target=importlib.import_module, args=(slow_module,))

    def begin() -> None:
        importing.start()
        while slow_module not in sys.modules:
            threading.Event().wait(0.01)

    with _holding_lock_of_logging(0.3, begin):
        assert in_child(lambda: importlib.import_module(slow_module).VALUE) == "7"
    importing.join()
    assert sys.modules[slow_module].VALUE == 7


def test_a_program_that_is_a_module_is_waited_for_once_and_does_not_run_again_in_a_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "_PATIENCE", 0.2)
    (tmp_path / "long_program.py").write_text("import threading\nVALUE = 7\nover = threading.Event()\nover.wait(60)\n")
    monkeypatch.syspath_prepend(tmp_path)
    program = threading.Thread(target=importlib.import_module, args=("long_program",))
    program.start()
    while not hasattr(sys.modules.get("long_program"), "over"):
        threading.Event().wait(0.01)
    try:
        for _ in range(2):
            assert in_child(lambda: importlib.import_module("long_program").VALUE) == "7"
            monkeypatch.setattr(forks, "_PATIENCE", 1e9)  # nothing is waited for from now on
    finally:
        sys.modules["long_program"].over.set()
        program.join()
        sys.modules.pop("long_program")


_IMPORTING_H5PY = """
import io, json, os, signal, sys, threading, time
from stoker.concurrency import forks
def use():
    import h5py
    with h5py._objects.phil:
        time.sleep(0.5)
thread = threading.Thread(target=use)
thread.start()
while "MODULE" not in sys.modules:
    pass
forks._PATIENCE = 1e9
pid = os.fork()
if not pid:
    signal.alarm(60)
    import h5py
    h5py.File(io.BytesIO(), "w").close()
    os._exit(0)
thread.join()
print(json.dumps(os.waitpid(pid, 0)[1]), flush=True)
from h5py._objects import phil
free = []
def take():
    with phil:
        free.append(True)
other = threading.Thread(target=take, daemon=True)
other.start()
other.join(30)
print(json.dumps(free == [True]), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("module", ["h5py", "h5py._objects"])
def test_a_fork_in_the_midst_of_the_import_of_h5py(module: str) -> None:
    # Later, h5py takes its lock before the fork; sooner, stoker does. Meanwhile the thread has it.
    assert run_script(["-c", _IMPORTING_H5PY.replace("MODULE", module)]) == [0, True]


_LOGGING_IN_H5PY = """
IMPORTS
import io, json, logging, os, signal, threading, time
signal.alarm(60)
logging.basicConfig()
data, reads = io.BytesIO(), threading.Event()
with h5py.File(data, "w") as file:
    file["x"] = [1, 2]
class Told(io.BytesIO):
    def readinto(self, buffer):
        if threading.current_thread() is thread:
            reads.set()
            time.sleep(0.3)
            logging.warning("a read")
        return super().readinto(buffer)
thread = threading.Thread(target=lambda: file["x"][:])
file = h5py.File(Told(data.getvalue()), "r")
thread.start()
reads.wait()
pid = os.fork()
if not pid:
    signal.alarm(60)
    logging.warning("the child")
    h5py.File(data, "r").close()
    os._exit(0)
print(json.dumps(os.waitpid(pid, 0)[1]))
thread.join()
file.close()
"""


@pytest.mark.parametrize("imports", ["import h5py, stoker.concurrency.forks", "import stoker.concurrency.forks, h5py"])
def test_a_fork_while_a_file_that_h5py_reads_from_writes_a_line_of_log(imports: str) -> None:
    # What is imported later has its locks before the fork first: that of h5py comes before those of logging in any case.
    assert run_script(["-c", _LOGGING_IN_H5PY.replace("IMPORTS", imports)]) == [0]


_H5PY_AT_EXIT = """
import threading, time
from stoker.concurrency.threads import Threads
from stoker.formats.arrays.hdf5_skeleton import load_h5py
pool = Threads(1, "test")
begun = threading.Event()
pool.submit(lambda: (begun.set(), threading.main_thread().join(0.2), time.sleep(0.3), load_h5py()))
begun.wait()
"""


def test_an_exit_while_a_thread_imports_h5py_is_no_crash() -> None:
    assert run_script(["-c", _H5PY_AT_EXIT]) == []


_HDF5_OPEN_IN_PARENT = """
import io, json, os, sys, threading
from stoker.formats.arrays.hdf5_skeleton import load_h5py
h5py, data = load_h5py(), io.BytesIO()
with h5py.File(data, "w") as file:
    file["x"] = [1, 2]
opened, over = threading.Event(), threading.Event()
def hold():
    with h5py.File(data, "r") as file:
        values = file["x"]
        opened.set()
        over.wait(PATIENCE)
thread = threading.Thread(target=hold)
thread.start()
opened.wait()
pid = os.fork()
if not pid:
    sys.exit(0)
over.set()
thread.join()
print(json.dumps(os.waitpid(pid, 0)[1]))
"""


def test_a_child_ends_while_a_thread_of_its_parent_has_an_hdf5_file_open() -> None:
    assert run_script(["-c", _HDF5_OPEN_IN_PARENT]) == [0]


_FORK_WHILE_HDF5_IS_READ = """
import io, json, os, sys, threading, time
from stoker.formats.arrays.hdf5_skeleton import hdf5_file, load_h5py
h5py, data = load_h5py(), io.BytesIO()
with h5py.File(data, "w") as file:
    file["x"] = [1, 2]
closed, opened, init = [], threading.Event(), h5py.Group.__init__
def slow(self, *args):
    opened.set()
    time.sleep(0.3)  # the file is open, and HDF5 still has the properties with which it was opened
    init(self, *args)
h5py.Group.__init__ = slow
def use():
    with OPEN(data) as file:
        file["x"][:]
        closed.append(False)
    closed[0] = True
thread = threading.Thread(target=use)
thread.start()
opened.wait()
pid = os.fork()
if not pid:
    sys.exit(0 if closed or OPEN is h5py.File else 3)
print(json.dumps(os.waitpid(pid, 0)[1]))
thread.join()
"""


@pytest.mark.parametrize("how", ["hdf5_file", "h5py.File"])
def test_a_child_ends_that_was_forked_while_a_thread_opened_an_hdf5_file(how: str) -> None:
    # The fork waits for files that stoker opens. Those of users are ended in the child.
    assert run_script(["-c", _FORK_WHILE_HDF5_IS_READ.replace("OPEN", how)]) == [0]


def test_a_child_logs_while_a_thread_of_its_parent_writes_a_line(tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    stream = os.fdopen(theirs, "w")
    handler, log = logging.StreamHandler(stream), logging.getLogger("test_forks")
    log.addHandler(handler)
    size = fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, 4096)
    thread = threading.Thread(target=log.error, args=("x" * (size + 5000),))  # waits until the pipe is read
    thread.start()

    def read() -> None:
        threading.Event().wait(0.3)
        left = size + 5001
        while left:
            left -= len(os.read(ours, left))

    reader = threading.Thread(target=read)
    while not select.select([ours], [], [], 0)[0]:
        threading.Event().wait(0.01)
    reader.start()
    try:
        assert in_child(lambda: log.error("short")) == "None"
    finally:
        log.removeHandler(handler)
        thread.join(PATIENCE)
        reader.join(PATIENCE)
        stream.close()
        os.close(ours)


# -- what is computed once -------------------------------------------------------------------------------------------------


def test_a_child_computes_what_a_thread_of_its_parent_was_computing() -> None:
    begun, over = threading.Event(), threading.Event()

    class One:
        def __init__(self, waits: bool) -> None:
            self._waits = waits

        @cached_property
        def value(self) -> int:
            if self._waits:
                begun.set()
                over.wait(PATIENCE)
            return 7

    thread = threading.Thread(target=lambda: One(True).value)
    thread.start()
    begun.wait()
    try:
        assert in_child(lambda: One(False).value) == "7"
    finally:
        over.set()
        thread.join()


class _Work(forks.ProcessLocal):
    """What threads of one process do."""

    def __init__(self, first: int, *, step: int = 1) -> None:
        self.lock = threading.Lock()
        self.numbers = [first, first + step]


def test_a_lock_of_another_thread_is_free_in_a_child_and_in_a_copy() -> None:
    lock, taken, over = forks.ProcessLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            over.wait(PATIENCE)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert taken.wait(PATIENCE)
        assert not lock.acquire(blocking=False)
        assert in_child(lambda: lock.acquire(blocking=False)) == "True"
        assert pickle.loads(pickle.dumps(lock)).acquire(blocking=False)
    finally:
        over.set()
        thread.join()


def test_a_thread_that_forks_while_it_has_a_lock_has_it_in_the_child_too() -> None:
    lock = forks.ProcessLock()

    def work() -> list[bool]:
        free = [_in_thread(lambda: lock.acquire(blocking=False))]
        lock.release()
        return [*free, _in_thread(lambda: lock.acquire(blocking=False))]

    with lock:
        assert in_child(work) == "[False, True]"


def test_what_one_process_has_is_made_anew_in_a_child_and_in_a_copy() -> None:
    work = _Work(3, step=4)
    work.numbers.append(9)
    with work.lock:
        assert in_child(lambda: (work.numbers, work.lock.acquire(blocking=False))) == "([3, 7], True)"
    copies = [pickle.loads(pickle.dumps(work)), copy.deepcopy(work)]
    for copied in copies:
        assert copied.numbers == [3, 7]
        copied.numbers.clear()
    assert in_child(lambda: [copied.numbers for copied in copies]) == "[[3, 7], [3, 7]]"
    assert work.numbers == [3, 7, 9]


def test_a_file_of_one_process_is_closed_in_a_child_alone() -> None:
    files = [forks.ProcessFile(os.open(os.devnull, os.O_RDONLY))]
    number = files[0].number

    def look() -> tuple[int, bool, bool]:
        closed = not os.path.exists(f"/proc/self/fd/{number}")
        other = os.open(os.devnull, os.O_RDONLY)  # which has the number now
        files[0].close()
        return files[0].number, closed, os.path.exists(f"/proc/self/fd/{other}")

    assert in_child(look) == "(-1, True, True)"
    os.fstat(number)
    files.clear()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(number)


def test_an_object_that_can_not_be_reset_keeps_no_other_from_it() -> None:
    class One:
        resets = 0

        def after_fork(self) -> None:
            One.resets += 1
            raise ValueError("no")

    several = [One() for _ in range(3)]
    for one in several:
        forks.reset_in_children(one)
    assert in_child(lambda: One.resets) == "3"
    del several


def _called(action: Callable[[], Any]) -> Any:
    return action()


def _in_thread(action: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(action).result(timeout=PATIENCE)
