"""What people get to see holds no secret of a URL or of options, and nothing that moves their terminal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker import StreamingConfig, StreamingDataset
from stoker.cli import main
from stoker.display import escape, redact_url
from stoker.errors import StokerError
from support import write_samples

_HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b2J\u202egnp\u2066\r"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:SECRET@h:6379/0", "redis://user:***@h:6379/0"),
        ("redis://:SECRET@h", "redis://:***@h"),
        ("https://SECRET@h/x", "https://***@h/x"),
        ("https://h/x?X-Amz-Signature=SECRET#a", "https://h/x?***"),
        ("az://c/x?sig=SECRET", "az://c/x?***"),
        ("abfs://container@account/x", "abfs://container@account/x"),
        ("s3://b/x", "s3://b/x"),
        ("/path/a?b", "/path/a?b"),
        ("a@b:c", "a@b:c"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert redact_url(url) == shown


@given(st.text())
def test_escaped_text_is_printable_and_printable_text_stays(text: str) -> None:
    assert escape(text).isprintable()
    assert escape(escape(text)) == escape(text)
    if text.isprintable():
        assert escape(text) == text


def test_no_repr_holds_a_secret() -> None:
    config = StreamingConfig(
        coordinator="redis://user:SECRET@host:6379/0",
        dynamic_balancing=True,
        checkpoint_url="https://host/x?sig=SECRET",
        storage_options={"secret_access_key": "SECRET"},
    )
    assert "redis://user:***@host:6379/0" in repr(config)
    assert "SECRET" not in repr(config)


_SIGNED = [
    "az://container/data?sv=2022&sig=SECRET",
    "s3://bucket/data?X-Amz-Signature=SECRET",
    "https://host/data?X-Amz-Signature=SECRET",
    "https://user:SECRET@host/data",
    "ftp://user:SECRET@host/data",
    "s3://?token=SECRET",
    "az://container/../x?sig=SECRET",
]


@pytest.mark.parametrize("url", _SIGNED)
def test_a_url_with_a_secret_is_refused_and_not_shown(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(StokerError) as caught:
        StreamingDataset(remote=url)
    assert "SECRET" not in str(caught.value)
    for command in (["inspect", url], ["verify", url], ["index", url], ["convert", url, "nowhere"]):
        assert _status(command) != 0
        told = capfd.readouterr()
        assert "SECRET" not in told.out + told.err


def _status(command: list[str]) -> int:
    try:
        return main(command)
    except SystemExit as error:  # of argparse
        return int(error.code or 0)


def _in_terminal(command: list[str], cwd: Path) -> str:
    """What a command prints where stdout is a terminal, and on stderr, where a terminal would get a bar too."""
    master, slave = pty.openpty()
    line = [sys.executable, "-m", "stoker", *command]
    with subprocess.Popen(line, cwd=cwd, stdout=slave, stderr=subprocess.PIPE) as process:
        os.close(slave)
        told = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while piece := os.read(master, 65536):
                told += piece
        assert process.stderr is not None
        told += process.stderr.read()
    os.close(master)
    return told.decode("utf-8", "surrogateescape")


def _check(told: str) -> None:
    told = re.sub(
        r"\x1b\[[0-9;]*m|\r?\n", "", told
    )  # rich's own styles, of which the names here have none, and line ends
    assert not [char for char in told if not char.isprintable()], ascii(told)


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A dataset whose directory, columns, shard names and other files have names that would move a terminal."""
    folder = tmp_path / f"data{_HOSTILE}"
    write_samples(str(folder), ({f"a{_HOSTILE}": f"{number}{_HOSTILE}"} for number in range(3)))
    (folder / f"strange{_HOSTILE}\udc9b\nforged line").write_bytes(b"x")
    return folder


@pytest.mark.processes
def test_commands_print_nothing_that_moves_a_terminal(hostile: Path) -> None:
    for command in (["inspect", hostile.name], ["verify", hostile.name], ["index", hostile.name]):
        told = _in_terminal(command, hostile.parent)
        assert "\\x1b]0;owned" in told
        _check(told)
    index = json.loads((hostile / "index.json").read_bytes())
    index["shards"][0]["raw_data"]["basename"] = f"shard{_HOSTILE}"
    (hostile / "index.json").write_text(json.dumps(index))
    for command in (["inspect", hostile.name], ["verify", hostile.name], ["convert", hostile.name, "out"]):
        _check(_in_terminal(command, hostile.parent))
    _check(_in_terminal(["inspect", f"no{_HOSTILE}such"], hostile.parent))


@pytest.mark.processes
def test_what_is_not_a_terminal_gets_no_escapes_either(hostile: Path) -> None:
    for command in (["inspect", str(hostile)], ["verify", str(hostile)], ["inspect", f"no{_HOSTILE}such"]):
        found = subprocess.run([sys.executable, "-m", "stoker", *command], capture_output=True, check=False)
        told = (found.stdout + found.stderr).decode().replace("\n", "")
        assert told.isprintable(), ascii(told)
        assert "forged line" not in found.stdout.decode().splitlines()
