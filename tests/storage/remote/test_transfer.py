"""Several endpoints, objects that come and go in parts, and patience, by ``storage_options``."""

from __future__ import annotations

import hashlib
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from object_client_checks import CUT_RANGES, check_cut_range

from s3server import Bucket, CountingProxy
from stoker.errors import ConfigError, StorageError, StorageTimeoutError
from stoker.storage import RetryPolicy, open_store
from stoker.storage.transfer import LEAST_PART

PARTS = {"part_size": "1MB", "part_requests": 3}
SIZES = (0, 1, LEAST_PART - 1, LEAST_PART, LEAST_PART + 1, 3 * LEAST_PART, 7 * LEAST_PART + 12_345)


def options(bucket: Bucket, **more: Any) -> dict[str, Any]:
    rest = {name: value for name, value in bucket.storage_options.items() if name != "endpoint"}
    return {**rest, "endpoint": bucket.server.endpoint, **more}


def over(bucket: Bucket, proxies: list[CountingProxy], **more: Any) -> dict[str, Any]:
    found = options(bucket, endpoints=[one.endpoint for one in proxies], **more)
    return {name: value for name, value in found.items() if name != "endpoint"}


@pytest.mark.s3
def test_objects_in_parts_are_the_same_objects(bucket: Bucket, tmp_path: Path) -> None:
    store, witness = open_store(bucket.url, options(bucket, **PARTS)), bucket.server.client()
    for size in SIZES:
        data = random.Random(size).randbytes(size)
        witness.put_object(Bucket=bucket.name, Key="a", Body=data)
        digest = hashlib.sha1(data).hexdigest()
        read, info = store.read("a", max_bytes=size)
        assert (read, info.size) == (data, size)
        into = bytearray(size)
        told = store.read_into("a", memoryview(into), new_hash=hashlib.sha1)
        assert (bytes(into), told.size, told.digest, told.version) == (data, size, digest, info.version)
        told = store.download("a", tmp_path / "file", new_hash=hashlib.sha1)
        assert ((tmp_path / "file").read_bytes(), told.digest) == (data, digest)
        if size > 2:
            piece = bytearray(size - 2)
            store.read_into("a", memoryview(piece), start=1, version=info.version)
            assert piece == data[1:-1] == store.get_ranges("a", [1], [size - 1], version=info.version)[0]
            (tmp_path / "part").write_bytes(b"0123456789")
            store.download_range("a", tmp_path / "part", 1, size - 1, at=4, version=info.version)
            assert (tmp_path / "part").read_bytes()[: size + 2] == b"0123" + data[1:-1]
        other = bytearray(size + LEAST_PART)
        assert store.read_into("a", memoryview(other)).size == size
        assert not any(other)  # nothing is read of an object of another size
    with pytest.raises(StorageError, match="at most"):
        store.get("a", max_bytes=SIZES[-1] - 1)


@pytest.mark.s3
def test_parts_of_an_object_that_was_written_meanwhile_are_an_error(bucket: Bucket, tmp_path: Path) -> None:
    store = open_store(bucket.url, options(bucket, **PARTS))
    store.put("a", bytes(SIZES[-1]))
    old = store.head("a").version
    store.put("a", b"1" * SIZES[-1])
    into = memoryview(bytearray(SIZES[-1]))
    for act in (
        lambda: store.read_into("a", into, version=old),
        lambda: store.read_into("a", into, start=0, version=old),
        lambda: store.get_ranges("a", [0], [SIZES[-1]], version=old),
        lambda: store.download_range("a", tmp_path / "file", 0, SIZES[-1], version=old),
    ):
        with pytest.raises(StorageError):
            act()


@pytest.mark.s3
def test_requests_go_to_endpoints_in_turn_and_carry_parts(bucket: Bucket, proxies: list[CountingProxy]) -> None:
    store = open_store(bucket.url, over(bucket, proxies, part_size="5MB"))
    data = random.Random(1).randbytes(21 << 20)
    store.put("a", data)
    uploads = [line for one in proxies for line in one.requests if b"partNumber=" in line]
    assert len(uploads) == 5
    for one in proxies:
        one.requests.clear()
    assert store.get("a", max_bytes=len(data)) == data
    assert sorted(len(one.requests) for one in proxies) == [2, 3]  # 5 parts
    proxies[0].requests.clear()
    other = open_store(bucket.url, over(bucket, proxies, endpoint_number=3))
    assert other.get("a", max_bytes=len(data)) == data
    assert not proxies[0].requests
    assert other.endpoint() == store.endpoint() == " ".join(sorted(one.endpoint for one in proxies))


@pytest.mark.s3
def test_a_request_goes_to_another_endpoint_where_one_is_down(bucket: Bucket, proxies: list[CountingProxy]) -> None:
    store = open_store(bucket.url, over(bucket, proxies), retry=RetryPolicy(base_delay=0.01))
    store.put("a", b"1")
    proxies[1].close()
    assert [open_store(bucket.url, over(bucket, proxies)).get("a", max_bytes=1) for _ in range(4)] == [b"1"] * 4
    down = over(bucket, proxies, endpoint_number="1", patience="0.1")
    with pytest.raises(
        StorageTimeoutError, match=rf"gave up after .* attempts.* {proxies[1].endpoint}, which was asked last"
    ):
        open_store(bucket.url, down, retry=RetryPolicy(base_delay=0.01)).get("a", max_bytes=1)
    # Also where other threads take turns meanwhile: a second attempt is always at the other endpoint.
    twice = open_store(bucket.url, over(bucket, proxies, patience="9"), retry=RetryPolicy(base_delay=0.01))
    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(lambda _: twice.get("a", max_bytes=1), range(64))) == {b"1"}


@pytest.mark.processes
@pytest.mark.parametrize("told", CUT_RANGES)
def test_a_range_that_comes_cut_or_shifted_is_asked_for_again_and_said(
    told: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_cut_range("obstore", told, tmp_path, caplog, monkeypatch)


@pytest.mark.parametrize(
    ("url", "given", "said"),
    [
        ("s3://b", {"endpoints": []}, "expected URLs of servers"),
        ("s3://b", {"endpoints": "host:9000"}, "is not a URL"),
        ("s3://b", {"endpoints": "http://me:word@a"}, "credentials do not belong in a URL"),
        ("s3://b", {"endpoints": "http://a,http://a/"}, "names a server twice"),
        ("s3://b", {"endpoints": "http://a", "endpoint_url": "http://b"}, "give one of them"),
        ("s3://b", {"endpoint_number": 1}, "which is not given"),
        ("s3://b", {"part_size": "100kb"}, "at least 1 MiB"),
        ("s3://b", {"part_requests": 0}, "at least 1"),
        ("s3://b", {"patience": "much"}, "expected seconds"),
        ("gs://b", {"endpoints": "http://a"}, r"\['endpoints'\] mean nothing for gs://b"),
        ("hf://datasets/a/b", {"part_size": "8MB"}, "mean nothing for hf://"),
        ("/tmp/x", {"patience": 3}, "mean nothing for /tmp/x"),
    ],
)
def test_settings_that_make_no_sense_are_refused(url: str, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        open_store(url, given)
