"""The requests of a rank, answered by threads: the same operations on the same entries, however many threads there are."""

from __future__ import annotations

import itertools
import mmap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np

from stoker_bench.kv_cache.entries import EntryStore, PartBuffer, padded
from stoker_bench.kv_cache.requests import THERE, KvRequest, draw_requests
from stoker_bench.kv_cache.tiers import TIERS, KvEntry, Operation, TierTable
from stoker_bench.measure.call_times import CallTime, CallTimer, OperationTimes
from stoker_bench.settings.workload import KvCacheSettings, Workload

_NAP: Final = 0.1


def plan_request(
    request: KvRequest, settings: KvCacheSettings, token_bytes: int, table: TierTable
) -> tuple[list[Operation], int]:
    """Plan a request, which changes the table.

    Args:
        request: the next one, in the order of arrival.
        settings: of the stage.
        token_bytes: of the model, for each token of a context.
        table: the tiers, as the requests before have left them.

    Returns:
        Its operations, in their order, and the number of entries that it reads in vain: they were removed, or never written.

    Raises:
        ConfigError: its entry is larger than all of the storage.
    """
    made: list[Operation] = []
    wanted = list(request.earlier)
    own = request.number
    if settings.phase == "decode":
        wanted, entries = [], settings.users * THERE[0]
        own = min(int(request.pick * entries), entries - 1)
    found = [table.read(number) for number in wanted]
    made += [one for one in found if one is not None]
    if settings.phase != "decode":
        made += table.write(own, request.tokens * token_bytes)
    if settings.phase != "prefill" and request.decodes:
        answered = [table.read(own) for _ in range(request.decode_reads(settings.decode_batch))]
        made += [one for one in answered if one is not None]
        found += answered[:1]
    return made, found.count(None)


def _contexts_there(users: int) -> Iterator[KvRequest]:
    """Requests that write the entries which are there before the phase ``decode``."""
    per_user, tokens = THERE
    for number in range(users * per_user):
        yield KvRequest(number, 0.0, number // per_user, tokens, 0, (), decodes=False, pick=0.0)


class KvRun:
    """One repeat of the stage on one rank.

    A worker takes the next request and plans its operations; both are in the order of arrival, so that the operations of a
    seed are always the same ones. It then does them one after the other, each as soon as those before it on the same entry
    are done. An entry is written once so many of the entries that were to go before are gone that there is room for it.

    Args:
        workload: all settings.
        rank: this one.
        entries: the storage.
        capacity: bytes that it may hold.
        seed: of the entries' bytes.
        check: called often; raises where another rank has failed.
        abandon: set here when the run fails, so that nothing waits for entries under way.
    """

    def __init__(
        self,
        workload: Workload,
        rank: int,
        entries: EntryStore,
        capacity: int,
        seed: int,
        *,
        check: Callable[[], object],
        abandon: threading.Event,
    ) -> None:
        self._abandon = abandon
        self._settings, self._entries, self._seed, self._check = workload.kv_cache, entries, seed, check
        self._bytes = workload.model.kv_bytes
        self._table = TierTable(self._settings.accelerator_bytes, self._settings.memory_bytes, capacity)
        self._requests = draw_requests(self._settings, rank)
        self._planning, self._progress = threading.Lock(), threading.Lock()
        self._removed = threading.Condition(self._progress)
        self._leaving: dict[int, int] = {}
        """Bytes of entries that are still to be deleted, by the number of the operation."""
        self._gates: dict[KvEntry, list[tuple[int, threading.Event]]] = {}
        self._memory: dict[int, mmap.mmap] = {}
        self._workers = self._settings.threads
        self._writers = threading.Semaphore(self._settings.writers or self._workers)
        self._stop = threading.Event()
        self._failed: list[BaseException] = []
        self._began = self._ended = 0.0
        self._reset()

    def _reset(self) -> None:
        self._times = {(tier, kind): OperationTimes() for tier in TIERS for kind in ("read", "write")}
        self._seconds = OperationTimes()
        self._counts = dict.fromkeys(("requests", "generated_tokens", "misses", "moves", "deletes"), 0)

    def run(self) -> dict[str, Any]:
        """Answer requests until the time is over or there are no more; the measurements, for JSON.

        Raises:
            StokerError: of a worker, or another rank's failure.
        """
        buffers = [PartBuffer(self._settings.part_bytes, self._seed) for _ in range(self._workers)]
        if self._settings.phase == "decode":
            prefill = replace(self._settings, phase="prefill", paced=False)
            self._answer(buffers, _contexts_there(self._settings.users), prefill)
            self._reset()
        requests = itertools.islice(self._requests, self._settings.requests or None)
        self._began = time.perf_counter()
        self._answer(buffers, requests, self._settings, self._settings.seconds or None)
        tiers = {tier: {kind: self._times[tier, kind].as_dict() for kind in ("read", "write")} for tier in TIERS}
        return {
            "seconds": self._ended - self._began,
            "workers": self._workers,
            **self._counts,
            "hits": sum(done["read"]["count"] for done in tiers.values()),
            "request_seconds": self._seconds.as_dict()["latency"],
            "tiers": tiers,
            "held": {tier: self._table.used[tier] for tier in TIERS},
        }

    def _answer(
        self,
        buffers: list[PartBuffer],
        requests: Iterator[KvRequest],
        settings: KvCacheSettings,
        seconds: float | None = None,
    ) -> None:
        """Answer requests, with a thread for each buffer, until there are no more or the time is over."""
        self._stop.clear()
        threads = [
            threading.Thread(target=self._work, args=[buffer, requests, settings], daemon=True, name=f"kv-{number}")
            for number, buffer in enumerate(buffers)
        ]
        end = None if seconds is None else time.perf_counter() + seconds
        try:
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads) and not self._failed:
                self._check()
                left = _NAP if end is None else min(_NAP, end - time.perf_counter())
                if left <= 0:
                    break
                self._stop.wait(left)
        except BaseException:
            self._abandon.set()  # whole entries may take long
            raise
        finally:
            self._stop.set()
            for thread in threads:
                if thread.is_alive():  # an interrupt may have come before it ran
                    thread.join()
        if self._failed:
            raise self._failed[0]

    def _work(self, buffer: PartBuffer, requests: Iterator[KvRequest], settings: KvCacheSettings) -> None:
        timer = CallTimer()
        try:
            while not self._stop.is_set():
                with self._planning:
                    request = next(requests, None)
                    if request is None:
                        return
                    operations, misses = plan_request(request, settings, self._bytes, self._table)
                    with self._progress:
                        self._leaving |= {one.number: one.entry.size for one in operations if one.kind == "delete"}
                if settings.paced:
                    self._stop.wait(max(0.0, self._began + request.arrival - time.perf_counter()))
                begun = time.perf_counter_ns()
                if not all(self._do(operation, buffer, timer) for operation in operations):
                    return
                self._seconds.add(0, CallTime(time.perf_counter_ns() - begun))
                with self._progress:
                    self._counts["requests"] += 1
                    self._counts["generated_tokens"] += request.generate if request.decodes else 0
                    self._counts["misses"] += misses
        except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
            self._failed.append(error)
            self._abandon.set()
            self._stop.set()
        finally:
            self._ended = time.perf_counter()
            timer.close()

    def _do(self, operation: Operation, buffer: PartBuffer, timer: CallTimer) -> bool:
        """Do an operation, after those that must be done before it; whether the time was not over."""
        entry = operation.entry
        if not self._await(entry, operation.after) or not self._await_room(operation):
            return False
        match operation.kind:
            case "read":
                self._fetch(entry, operation, buffer, timer)
            case "write":
                with self._writers:
                    self._store(entry, operation, buffer, timer)
            case "move":
                with self._writers:
                    self._store(entry, operation, buffer, timer)
                self._memory.pop(entry.number, None)
                self._count("moves")
            case "delete":
                self._entries.delete(entry.number)
                self._count("deletes")
                with self._removed:
                    del self._leaving[operation.number]
                    self._removed.notify_all()
        with self._progress:
            entry.done += 1
            gates = self._gates.get(entry)
            if gates is not None:
                left = [(after, gate) for after, gate in gates if after > entry.done]
                for after, gate in gates:
                    if after <= entry.done:
                        gate.set()
                if left:
                    self._gates[entry] = left
                else:
                    del self._gates[entry]
        return True

    def _await(self, entry: KvEntry, after: int) -> bool:
        with self._progress:
            if entry.done >= after:
                return not self._stop.is_set()
            gate = threading.Event()
            self._gates.setdefault(entry, []).append((after, gate))
        while not gate.wait(_NAP):
            if self._stop.is_set():
                return False
        return not self._stop.is_set()

    def _await_room(self, operation: Operation) -> bool:
        """Wait until the storage has room; whether the time was not over.

        Only entries are waited for whose removal was planned before, so that no two operations wait for each other.
        """
        if operation.kind not in ("write", "move") or operation.to != "storage":
            return True
        with self._removed:
            while (
                sum(size for number, size in self._leaving.items() if number < operation.number) > operation.may_remain
            ):
                if self._stop.is_set():
                    return False
                self._removed.wait(_NAP)
        return True

    def _count(self, name: str) -> None:
        with self._progress:
            self._counts[name] += 1

    def _fetch(self, entry: KvEntry, operation: Operation, buffer: PartBuffer, timer: CallTimer) -> None:
        timer.begin()
        if operation.tier == "storage":
            self._entries.read(entry.number, entry.size, buffer, timer)
        elif operation.tier == "memory":
            held = np.frombuffer(self._memory[entry.number], np.uint8)
            for start in range(0, entry.size, len(buffer.bytes)):
                part = held[start : start + len(buffer.bytes)]
                timer.call(np.copyto, buffer.bytes[: len(part)], part)
        self._times[operation.tier, "read"].add(entry.size, timer.end())

    def _store(self, entry: KvEntry, operation: Operation, buffer: PartBuffer, timer: CallTimer) -> None:
        """Write an entry where it goes: a new one, or one that has to leave its tier."""
        held = self._memory.get(entry.number)
        timer.begin()
        if operation.to == "storage":
            view = None if held is None else memoryview(held)
            self._entries.write(entry.number, entry.size, buffer, timer, view)
        elif operation.to == "memory":
            self._memory[entry.number] = timer.call(self._in_memory, entry, buffer)
        self._times[operation.to, "write"].add(entry.size, timer.end())

    def _in_memory(self, entry: KvEntry, buffer: PartBuffer) -> mmap.mmap:
        memory = mmap.mmap(-1, max(1, padded(entry.size)))
        held = np.frombuffer(memory, np.uint8)
        for start in range(0, padded(entry.size), len(buffer.bytes)):
            part = held[start : start + len(buffer.bytes)]
            buffer.fill(entry.number, start, part)
        return memory
