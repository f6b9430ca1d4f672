from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import ConfigError
from stoker.storage import check_key, is_local, join_url, open_store
from stoker.storage.url import UNSENDABLE, parse_url

_SEGMENT = st.text(st.characters(blacklist_characters="/\0", blacklist_categories=["Cs"]), min_size=1).filter(
    lambda text: text not in (".", "..")
)
_KEYS = st.lists(_SEGMENT, min_size=1, max_size=4).map("/".join)


@pytest.mark.parametrize(
    ("url", "kind", "root", "prefix", "normalised"),
    [
        ("s3://b", "s3", "s3://b", "", "s3://b"),
        ("s3://b/", "s3", "s3://b", "", "s3://b"),
        ("S3://B/x//y/", "s3", "s3://B", "x/y", "s3://B/x/y"),
        ("s3a://b/x", "s3", "s3://b", "x", "s3://b/x"),
        ("s3://b/a?b#c%20d", "s3", "s3://b", "a?b#c%20d", "s3://b/a?b#c%20d"),
        ("gs://b/x", "gs", "gs://b", "x", "gs://b/x"),
        ("az://c/x", "azure", "az://c", "x", "az://c/x"),
        ("abfss://c@acc.dfs.core.windows.net/x", "azure", "abfss://c@acc.dfs.core.windows.net", "x", None),
        ("https://h:8443/a/b/", "http", "https://h:8443", "a/b", "https://h:8443/a/b"),
        ("memory://m/x", "memory", "memory://m", "x", "memory://m/x"),
        ("file:///a/b%20c/", "file", "", "/a/b c", "/a/b c"),
        ("/a//b/../c/", "file", "", "/a/c", "/a/c"),
    ],
)
def test_urls_are_parsed(url: str, kind: str, root: str, prefix: str, normalised: str | None) -> None:
    location = parse_url(url)
    assert (location.kind, location.root, location.prefix) == (kind, root, prefix)
    assert location.url == (normalised or url)


def test_plain_paths_are_absolute_and_home_is_expanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    assert parse_url("data").url == str(tmp_path / "data")
    assert parse_url(Path("data")).url == str(tmp_path / "data")
    assert parse_url("~/x").url == "/home/someone/x"
    assert is_local("~/x") == Path("/home/someone/x")
    assert is_local("file:///x") == Path("/x")
    assert is_local("s3://b/x") is None


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "non-empty"),
        ("a\0b", "NUL"),
        ("ftp://h/x", "s3://"),
        ("s3://", "no bucket"),
        ("gs:///x", "no bucket"),
        ("s3://b/a/../c", ".."),
        ("file://host/x", "three slashes"),
        ("https://h/x?sig=SECRET", "query"),
        ("https://user:SECRET@h/x", "credentials"),
        ("s3://key:SECRET@b/x", "credentials"),
        ("abfs://user:SECRET@c/x", "credentials"),
        ("oci://user:SECRET@c/x", "unknown scheme"),
        ("gcs://b/x", "did you mean 'gs'?"),
        ("pipe:aws s3 cp s3://b/x.tar -", "Give the URL that it reads"),
        ("https://huggingface.co/datasets/o/n", "write 'hf://datasets/o/n'"),
        ("https://huggingface.co/datasets/o/n/viewer/en/train", "write 'hf://datasets/o/n'"),
        ("https://hf.co/datasets/o/n/tree/v1/data", "write 'hf://datasets/o/n@v1/data'"),
        ("https://huggingface.co/datasets/o/n/resolve/main/a.tar", "write 'hf://datasets/o/n/a.tar'"),
        ("https://huggingface.co/datasets/o/n?row=1", "write 'hf://datasets/o/n'"),
        ("https://huggingface.co/datasets/imdb", "write 'hf://datasets/<owner>/imdb', with the owner's name"),
        ("https://huggingface.co/datasets/imdb/tree/v1/x", "write 'hf://datasets/<owner>/imdb@v1/x', with"),
    ],
)
def test_bad_urls_are_refused_without_their_secrets(url: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_url(url)
    assert says in str(caught.value)
    assert "SECRET" not in str(caught.value)


@given(_KEYS)
def test_keys_inside_the_root_pass_and_join_under_it(key: str) -> None:
    assert check_key(key) == key
    for base in ("s3://b", "s3://b/x", "s3://b/x/"):
        assert join_url(base, key) == f"{base.rstrip('/')}/{key}"
        if UNSENDABLE.search(key):
            with pytest.raises(ConfigError, match="control characters"):
                parse_url(join_url(base, key))
        else:
            assert parse_url(join_url(base, key)).prefix == (f"x/{key}" if "x" in base else key)


@given(_KEYS, st.sampled_from(["..", ".", ""]), st.integers(0, 4))
def test_keys_that_leave_the_root_are_refused(key: str, bad: str, where: int) -> None:
    segments = key.split("/")
    segments.insert(min(where, len(segments)), bad)
    with pytest.raises(ConfigError):
        check_key("/".join(segments))


@pytest.mark.parametrize("key", ["", "/a", "a\0", "a/", None, b"a", 3])
def test_keys_that_are_none_are_refused(key: object) -> None:
    with pytest.raises(ConfigError):
        check_key(key)  # type: ignore[arg-type]


def test_join_skips_empty_parts_and_keeps_the_spelling_of_the_base() -> None:
    assert join_url("data", "", "train", "a/b/") == "data/train/a/b"
    assert join_url(Path("/x"), "y") == "/x/y"
    assert join_url("s3://b/") == "s3://b/"
    for part in ("/a", "../a", "a/../b"):
        with pytest.raises(ConfigError):
            join_url("data", part)


def test_a_store_shows_its_url_and_no_secrets() -> None:
    store = open_store("s3://b/x/", {"access_key_id": "KEY", "secret_access_key": "SECRET"})
    assert repr(store) == "Store('s3://b/x')"
    assert store.url_of("a/b") == "s3://b/x/a/b"
    assert store.url_of("") == "s3://b/x"


@pytest.mark.processes
def test_importing_storage_loads_neither_obstore_nor_numpy() -> None:
    code = "import sys, stoker.storage; print(sorted({'obstore', 'numpy', 'boto3'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout.strip() == "[]"
