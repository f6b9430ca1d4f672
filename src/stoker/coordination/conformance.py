"""What every engine must do, as checks that anybody can run against an engine of their own.

    from stoker.coordination.conformance import CHECKS
    for check in CHECKS:
        check(lambda: MyStore(...))   # each call opens the same records

A check raises AssertionError with what was not so. It leaves records behind under keys of its own.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import TypeAlias

from stoker.coordination.engines.store import CoordinationStore, Stored

__all__ = ["CHECKS", "Opener"]

Opener: TypeAlias = Callable[[], CoordinationStore]


def _expect(true: bool, what: str) -> None:
    if not true:
        raise AssertionError(what)


def _fresh() -> str:
    return f"conformance-{secrets.token_hex(8)}/"


def a_record_is_created_once(open_: Opener) -> None:
    store, key = open_(), _fresh()
    version = store.create(key, b"one")
    _expect(version is not None and 0 < version < 2**63, f"version {version}")
    _expect(store.create(key, b"two") is None, "created twice")
    _expect(store.get([key]) == [Stored(b"one", version or 0)], "not what was created")


def a_record_is_changed_by_its_version_alone(open_: Opener) -> None:
    store, key = open_(), _fresh()
    _expect(store.swap(key, b"x", 7) is None, "changed what is not there")
    first = store.create(key, b"one") or 0
    second = store.swap(key, b"two", first)
    _expect(second is not None and second != first, "not changed")
    _expect(store.swap(key, b"three", first) is None, "changed by an old version")
    _expect(store.get([key]) == [Stored(b"two", second or 0)], "not what was written")


def a_record_is_removed_by_its_version_alone(open_: Opener) -> None:
    store, key = open_(), _fresh()
    first = store.create(key, b"one") or 0
    second = store.swap(key, b"two", first) or 0
    _expect(not store.delete(key, first), "removed by an old version")
    _expect(store.delete(key, second), "not removed")
    _expect(store.get([key]) == [None], "still there")
    _expect(not store.delete(key, second), "removed twice")


def a_version_never_comes_again(open_: Opener) -> None:
    store, key = open_(), _fresh()
    seen: set[int] = set()
    for _ in range(20):
        version = store.create(key, b"same") or 0
        _expect(version not in seen, "a version came twice")
        seen.add(version)
        version = store.swap(key, b"same", version) or 0
        _expect(version not in seen, "a version came twice")
        seen.add(version)
        store.delete(key, version)
    store.create(key, b"last")
    _expect(all(store.swap(key, b"x", version) is None for version in seen), "an old version was taken for a new one")


def records_come_in_the_order_asked(open_: Opener) -> None:
    store, base = open_(), _fresh()
    for name in "abc":
        store.create(base + name, name.encode())
    keys = [base + name for name in ("c", "x", "a", "b", "c")]
    found = [None if entry is None else entry.value for entry in store.get(keys)]
    _expect(found == [b"c", None, b"a", b"b", b"c"], f"got {found}")
    _expect(store.get([]) == [], "nothing asked for, something got")
    many = [base + name for name in ("a", "x")] * 700
    _expect([entry is not None for entry in store.get(many)] == [True, False] * 700, "many at once")


def lists_are_sorted_and_come_in_parts(open_: Opener) -> None:
    store, base = open_(), _fresh()
    names = sorted([*(f"{k:03d}" for k in range(25)), "%", "_", "é", "z", "A", "日"])
    for name in reversed(names):
        store.create(f"{base}l/{name}", name.encode())
    store.create(f"{base}m", b"another")
    store.create(f"{base}l", b"another")
    _expect(
        [key for key, _ in store.scan(f"{base}l/")] == [f"{base}l/{name}" for name in names], "not all, or not sorted"
    )
    got: list[str] = []
    while True:
        part = store.scan(f"{base}l/", after=got[-1] if got else "", limit=7)
        _expect(len(part) <= 7, "more than asked for")
        if not part:
            break
        _expect(all(key.rpartition("/")[2].encode() == entry.value for key, entry in part), "another's value")
        got += [key for key, _ in part]
    _expect(got == [f"{base}l/{name}" for name in names], "in parts: not all, or not sorted")
    _expect(store.scan(f"{base}l/%%") == [], "the prefix was taken for a pattern")


def values_are_any_bytes(open_: Opener) -> None:
    store, base = open_(), _fresh()
    values = [b"", b"\0" * 9, bytes(range(256)), secrets.token_bytes(300_000)]
    for number, value in enumerate(values):
        version = store.create(f"{base}{number}", value) or 0
        _expect(store.get([f"{base}{number}"]) == [Stored(value, version)], f"value {number}")
        after = store.swap(f"{base}{number}", value[::-1], version) or 0
        _expect(store.get([f"{base}{number}"]) == [Stored(value[::-1], after)], f"value {number}, changed")


def what_is_acknowledged_is_seen_by_all(open_: Opener) -> None:
    one, other, key = open_(), open_(), _fresh()
    version = one.create(key, b"0") or 0
    for number in range(1, 50):
        entry = other.get([key])[0]
        _expect(entry == Stored(b"%d" % (number - 1), version), f"an old value: {entry}")
        version = one.swap(key, b"%d" % number, version) or 0
        one, other = other, one
    one.close()
    _expect(open_().get([key]) == [Stored(b"49", version)], "lost when a connection was closed")


def of_many_at_once_one_wins(open_: Opener) -> None:
    base, threads, rounds = _fresh(), 4, 40
    won: list[int] = []
    failures: list[BaseException] = []
    start = threading.Barrier(threads)

    def work() -> None:
        try:
            store = open_()
            start.wait(60)
            won.extend([number for number in range(rounds) if store.create(f"{base}{number}", b"") is not None])
            for _ in range(rounds):
                while True:
                    entry = store.get([f"{base}sum"])[0]
                    if entry is None:
                        if store.create(f"{base}sum", b"1") is not None:
                            break
                    elif store.swap(f"{base}sum", b"%d" % (int(entry.value) + 1), entry.version) is not None:
                        break
        except BaseException as error:  # noqa: BLE001 - raised below, in the caller's thread
            failures.append(error)
            start.abort()

    running = [threading.Thread(target=work) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if failures:
        raise failures[0]
    _expect(sorted(won) == list(range(rounds)), "a record was created by several at once, or by none")
    entry = open_().get([f"{base}sum"])[0]
    _expect(entry is not None and int(entry.value) == threads * rounds, f"additions were lost: {entry}")


CHECKS: tuple[Callable[[Opener], None], ...] = (
    a_record_is_created_once,
    a_record_is_changed_by_its_version_alone,
    a_record_is_removed_by_its_version_alone,
    a_version_never_comes_again,
    records_come_in_the_order_asked,
    lists_are_sorted_and_come_in_parts,
    values_are_any_bytes,
    what_is_acknowledged_is_seen_by_all,
    of_many_at_once_one_wins,
)
