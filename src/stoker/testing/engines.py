"""Tests of a coordination engine: records change by compare-and-set alone, and what was acknowledged is seen by all."""

from __future__ import annotations

import secrets
import threading
from concurrent.futures import ThreadPoolExecutor

from stoker.coordination.engines.store import CoordinationStore, Stored
from stoker.testing.values import undefined


class EngineTests:
    """Tests of an engine that keeps the records of leased work. A subclass says how to open it, in :meth:`open`.

    Records that the tests write stay, under keys of their own.

    >>> from stoker.coordination import open_store
    >>> class TestMemory(EngineTests):
    ...     def open(self):
    ...         return open_store("memory://tests")
    >>> TestMemory().test_a_record_is_created_once()
    """

    def open(self) -> CoordinationStore:
        """The engine, opened; each call opens the same records, as another worker would."""
        raise undefined(self, "open(), which opens the engine")

    def test_a_record_is_created_once(self) -> None:
        store, key = self.open(), _fresh()
        version = store.create(key, b"one")
        assert version is not None, "not created"
        assert 0 < version < 2**63, f"a version lies in [1, 2**63), got {version}"
        assert store.create(key, b"two") is None, "created twice"
        assert store.get([key]) == [Stored(b"one", version)]

    def test_a_record_is_changed_by_its_version_alone(self) -> None:
        store, key = self.open(), _fresh()
        assert store.swap(key, b"x", 7) is None, "changed a record that does not exist"
        first = _version(store.create(key, b"one"))
        second = _version(store.swap(key, b"two", first))
        assert second != first, "the version stayed"
        assert store.swap(key, b"three", first) is None, "changed by an old version"
        assert store.get([key]) == [Stored(b"two", second)]

    def test_a_record_is_removed_by_its_version_alone(self) -> None:
        store, key = self.open(), _fresh()
        first = _version(store.create(key, b"one"))
        second = _version(store.swap(key, b"two", first))
        assert not store.delete(key, first), "removed by an old version"
        assert store.delete(key, second), "not removed"
        assert store.get([key]) == [None]
        assert not store.delete(key, second), "removed twice"

    def test_a_version_never_comes_again(self) -> None:
        store, key = self.open(), _fresh()
        seen: list[int] = []
        for _ in range(20):
            version = _version(store.create(key, b"same"))
            changed = _version(store.swap(key, b"same", version))
            seen += [version, changed]
            store.delete(key, changed)
        assert len(set(seen)) == len(seen), "a version came twice"
        store.create(key, b"last")
        assert all(store.swap(key, b"x", version) is None for version in seen), "an old version was taken for a new one"

    def test_records_come_in_the_requested_order(self) -> None:
        store, base = self.open(), _fresh()
        for name in "abc":
            store.create(base + name, name.encode())
        found = store.get([base + name for name in ("c", "x", "a", "b", "c")])
        assert [entry and entry.value for entry in found] == [b"c", None, b"a", b"b", b"c"]
        assert store.get([]) == []
        many = [base + name for name in ("a", "x")] * 700
        assert [entry is not None for entry in store.get(many)] == [True, False] * 700, "many at once"

    def test_lists_are_sorted_and_come_in_parts(self) -> None:
        store, base = self.open(), _fresh()
        names = sorted([*(f"{k:03d}" for k in range(25)), "%", "_", "é", "z", "A", "日"])
        for name in reversed(names):
            store.create(f"{base}l/{name}", name.encode())
        store.create(f"{base}m", b"another")
        store.create(f"{base}l", b"another")
        keys = [f"{base}l/{name}" for name in names]
        assert [key for key, _ in store.scan(f"{base}l/")] == keys
        got: list[str] = []
        while part := store.scan(f"{base}l/", after=got[-1] if got else "", limit=7):
            assert len(part) <= 7, "more than asked for"
            assert all(key.rpartition("/")[2].encode() == entry.value for key, entry in part), "another key's value"
            got += [key for key, _ in part]
        assert got == keys, "in parts: not all, or not sorted"
        assert store.scan(f"{base}l/%%") == [], "the prefix was taken for a pattern"

    def test_values_are_any_bytes(self) -> None:
        store, base = self.open(), _fresh()
        for number, value in enumerate([b"", b"\0" * 9, bytes(range(256)), secrets.token_bytes(300_000)]):
            key = f"{base}{number}"
            version = _version(store.create(key, value))
            assert store.get([key]) == [Stored(value, version)], f"value {number}"
            changed = _version(store.swap(key, value[::-1], version))
            assert store.get([key]) == [Stored(value[::-1], changed)], f"value {number}, changed"

    def test_what_is_acknowledged_is_seen_by_all(self) -> None:
        one, other, key = self.open(), self.open(), _fresh()
        version = _version(one.create(key, b"0"))
        for number in range(1, 50):
            (entry,) = other.get([key])
            assert entry == Stored(b"%d" % (number - 1), version), f"an old value: {entry}"
            version = _version(one.swap(key, b"%d" % number, version))
            one, other = other, one
        one.close()
        assert self.open().get([key]) == [Stored(b"49", version)], "lost when a connection was closed"

    def test_of_many_at_once_one_wins(self) -> None:
        base, threads, rounds = _fresh(), 4, 40
        won: list[int] = []
        start = threading.Barrier(threads)

        def work(_: int) -> None:
            try:
                store = self.open()
                start.wait(60)
                won.extend([number for number in range(rounds) if store.create(f"{base}{number}", b"") is not None])
                for _ in range(rounds):
                    while not _add_one(store, f"{base}sum"):
                        pass
            except BaseException:
                start.abort()
                raise

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(threads)))
        assert sorted(won) == list(range(rounds)), "a record was created by several at once, or by none"
        (entry,) = self.open().get([f"{base}sum"])
        assert entry is not None
        assert int(entry.value) == threads * rounds, "additions were lost"


def _fresh() -> str:
    return f"conformance-{secrets.token_hex(8)}/"


def _version(version: int | None) -> int:
    assert version is not None, "a write to a record of this version was refused"
    return version


def _add_one(store: CoordinationStore, key: str) -> bool:
    (entry,) = store.get([key])
    if entry is None:
        return store.create(key, b"1") is not None
    return store.swap(key, b"%d" % (int(entry.value) + 1), entry.version) is not None
