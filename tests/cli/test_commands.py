"""``stoker inspect``, ``verify``, ``index`` and ``cache``: what they print, exit codes, Ctrl-C, terminals."""

from __future__ import annotations

import argparse
import errno
import hashlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from command_line import check_options, check_usage, stoker
from packed_cases import tiny_image
from patience import PATIENCE
from stoker import MDSWriter, StreamingDataset, __version__
from stoker.cli import COMMANDS, GROUP, OF_BENCH, main
from stoker.cli.arguments import with_options
from stoker.cli.inspect import half_blocks
from stoker.lazy import INSTALL_BENCH
from stoker.tokens import Ragged
from stoker.writers import MegatronWriter
from support import cache_of, environ, make_dataset

SAMPLES = 300


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return make_dataset(tmp_path / "data", SAMPLES, hashes=["sha1", "xxh64"])


def as_json(capsys: pytest.CaptureFixture[str], *arguments: Any, code: int = 0) -> Any:
    return json.loads(stoker(capsys, *arguments, "--json", code=code))


def start(*arguments: Any, **streams: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "stoker", *map(str, arguments)],
        env=environ(TERM="xterm-256color", COLORTERM="truecolor", COLUMNS="120"),
        text=True,
        start_new_session=True,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams},
    )


def test_verify_ends_with_3_where_something_is_broken(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no problems" in stoker(capsys, "verify", data)
    found = as_json(capsys, "verify", data, "--deep")
    assert found.keys() == {
        *("ok", "url", "format", "level", "shards", "samples", "bytes", "hashed", "problems", "strange"),
        *("notes", "repaired", "stopped", "seconds"),
    }
    assert (found["ok"], found["samples"], found["level"], found["format"]) == (True, SAMPLES, "deep", "mds")
    victim = data / "shard.00002.mds"
    victim.write_bytes(victim.read_bytes()[:-1])
    said = stoker(capsys, "verify", data, code=3)
    assert said.startswith(f"size: shard 2: {victim} has ")
    found = as_json(capsys, "verify", data, code=3)
    assert [problem.keys() for problem in found["problems"]] == [
        {"kind", "where", "message", "key", "shard", "row", "sample", "column"}
    ]
    assert (found["problems"][0]["shard"], found["problems"][0]["key"]) == (2, "shard.00002.mds")
    assert stoker(capsys, "verify", data / "nowhere", code=1).startswith("stoker verify: ")
    assert "unrecognized" in stoker(capsys, "verify", data, "--nonsense", code=2)
    assert "not allowed" in stoker(capsys, "verify", data, "--deep", "--quick", code=2)


def test_verify_repairs_indexes_and_caches(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = tmp_path / "cache"
    for _ in StreamingDataset(remote=str(data), local=cache):
        pass
    (cache_of(cache) / "shard.00001.mds").write_bytes(b"damaged")
    stoker(capsys, "verify", data, "--local", cache, code=3)
    assert "repaired: " in stoker(capsys, "verify", data, "--local", cache, "--repair")
    stoker(capsys, "verify", data, "--local", cache)
    (data / "index.json").unlink()
    assert "--repair" in stoker(capsys, "verify", data, code=3)
    assert "rebuilt" in stoker(capsys, "verify", data, "--repair")
    stoker(capsys, "verify", data)


def test_inspect_tells_the_schema_and_shows_samples(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = stoker(capsys, "inspect", data, "--samples", 2)
    for text in ("ndarray:int32:6", "(6,)", "sha1, xxh64", f"{SAMPLES}", "number 1", "sample 1"):
        assert text in said
    assert "sample 2" not in said
    found = as_json(capsys, "inspect", data, "--samples", 1)
    assert found["columns"][2] == {"name": "row", "type": "ndarray:int32:6", "shape": [6]}
    assert (found["samples"], found["indexed"], found["hashes"]) == (SAMPLES, True, ["sha1", "xxh64"])
    assert found["preview"][0]["row"]["shape"] == [6]
    assert stoker(capsys, "inspect", data / "nowhere", code=1).startswith("stoker inspect: ")


def test_inspect_tells_of_tokens_in_any_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents = [np.zeros(length, np.uint16) for length in (3, 10, 40)]
    with MDSWriter({"tokens": "ndarray:uint16"}, tmp_path / "mds") as writer:
        writer.write_batch({"tokens": documents})
    with MegatronWriter(tmp_path / "megatron" / "a.bin", "uint16") as out:
        out.write(Ragged.from_arrays(documents))
    (tmp_path / "raw").mkdir()
    np.concatenate(documents).tofile(tmp_path / "raw" / "b.bin")
    words = ("--tokens", "--sequence-length", 20, "--sequence-length", 50)
    for name in ("mds", "megatron", "megatron/a.bin", "megatron/a.idx"):
        said = " ".join(stoker(capsys, "inspect", tmp_path / name, *words).split())
        assert "documents 3 tokens 53 of uint16 lengths min 3, 5 % 3, 50 % 10, 95 % 40, 99 % 40, max 40, of all" in said
        assert "20 pack 3 11.67% 0 1 20 pad 3 45.00% 0 1 20 truncate 3 45.00% 20 1" in said
        found = as_json(capsys, "inspect", tmp_path / name, *words)
        packed = {"layout": "pack", "sequence_length": 20, "rows": 3, "padding": 7, "cut": 0, "longer": 1}
        assert (found["documents"], found["layouts"][1]) == (3, packed)
    for name in ("raw", "raw/b.bin"):
        said = " ".join(stoker(capsys, "inspect", tmp_path / name, *words, "--token-dtype", "uint16").split())
        assert "documents not told by the files tokens 53 of uint16" in said
        assert "say which integers these are, as in --token-dtype" in stoker(
            capsys, "inspect", tmp_path / name, *words, code=1
        )


def test_index_is_made_and_merged(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = json.loads((data / "index.json").read_text())
    assert "exists" in stoker(capsys, "index", data, code=1)
    (data / "index.json").unlink()
    assert f"{SAMPLES} samples" in stoker(capsys, "index", data)
    assert json.loads((data / "index.json").read_text()) == before
    root = tmp_path / "root"
    for name in ("a", "b"):
        make_dataset(root / name, 50)
    found = as_json(capsys, "index", "--merge", root / "b", root / "a", "-o", root)
    assert found["samples"] == 100
    assert len(list(StreamingDataset(local=root))) == 100
    (root / "index.json").unlink()
    assert as_json(capsys, "index", "--merge", root)["kept"] == f"{root}/index.json"
    assert "-o URL" in stoker(capsys, "index", "--merge", root / "a", root / "b", code=1)


def test_index_of_others_files_is_kept_next_to_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import numpy as np

    np.save(tmp_path / "a.npy", np.arange(10))
    found = as_json(capsys, "index", tmp_path)
    assert (found["format"], found["samples"], found["kept"]) == ("npy", 10, f"{tmp_path}/.stoker")
    assert [path.suffix for path in (tmp_path / ".stoker").iterdir()] == [".facts"]


def test_cache_lists_prunes_and_clears(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = tmp_path / "cache"
    for _ in StreamingDataset(remote=str(data), local=cache):
        pass
    (found,) = as_json(capsys, "cache", "list", cache)
    assert (found["origin"], found["files"]) == (str(data), len(list(cache.rglob("*.mds"))))
    assert f"  {data}  " in stoker(capsys, "cache", "list", cache)
    assert "--older-than" in stoker(capsys, "cache", "prune", cache, code=1)
    assert as_json(capsys, "cache", "prune", cache, "--older-than", "1h")["files"] == 0
    done = as_json(capsys, "cache", "prune", cache, "--to", "8kb")
    assert 0 < done["left_bytes"] <= 8192
    assert "would be removed" in stoker(capsys, "cache", "clear", cache, "--dry-run")
    assert list(cache.rglob("*.mds"))
    stoker(capsys, "cache", "clear", cache)
    assert not list(cache.rglob("*.mds"))
    assert "like 30d" in stoker(capsys, "cache", "prune", cache, "--older-than", "soon", code=2)


@pytest.mark.processes
def test_help_names_every_command_and_loads_none() -> None:
    script = (
        "import sys\nfrom stoker.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('numpy', 'pyarrow', 'rich', 'torch') if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert all(f"    {name} " in done.stdout for name in (*COMMANDS, *OF_BENCH))


@pytest.mark.parametrize("name", OF_BENCH)
def test_commands_of_the_other_package_say_so(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: EntryPoints())
    said = stoker(capsys, name, "x", code=1)
    assert said.endswith(f"is of the package stoker-bench, which is not installed: {INSTALL_BENCH}\n")
    said = " ".join(stoker(capsys, "--help").split())
    assert f"{OF_BENCH[name]} (needs stoker-bench)" in said
    assert f"stoker-bench is not installed: {INSTALL_BENCH}" in said


def test_another_package_brings_a_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    own = EntryPoint("mine", "my_command", GROUP)
    broken = EntryPoint("broken", "no.such.module", GROUP)
    entries = [own, own, broken, EntryPoint("empty", "json", GROUP)]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: EntryPoints(entries))
    module = ModuleType("my_command")
    vars(module)["add"] = lambda commands: commands.add_parser("mine").add_argument("word")
    vars(module)["run"] = lambda chosen: print(chosen.word)
    monkeypatch.setitem(sys.modules, "my_command", module)
    assert stoker(capsys, "mine", "done") == "done\n"
    assert "mine " in stoker(capsys, "--help")
    assert "no.such.module" in stoker(capsys, "broken", code=1)
    assert "has no add and run" in stoker(capsys, "empty", code=1)
    entries.append(EntryPoint("mine", "other_command", GROUP))
    assert "two packages name 'mine' in 'stoker.commands'" in stoker(capsys, "mine", code=1)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert stoker(capsys, name, "--help").startswith(f"usage: stoker {name} ")


def test_pictures_are_half_blocks() -> None:
    from PIL import Image

    image = Image.new("RGB", (100, 50), (255, 0, 0))
    text = half_blocks(image, 20)
    lines = text.plain.splitlines()
    assert [len(line) for line in lines] == [20] * 5
    assert set(text.plain) == {"\u2580", "\n"}
    assert str(text.spans[0].style) == "rgb(255,0,0) on rgb(255,0,0)"


def on_terminal(*arguments: Any) -> str:
    """What a command writes on a terminal."""
    leader, follower = pty.openpty()
    process = start(*arguments, stdout=follower, stderr=follower)
    os.close(follower)
    said = b""
    while True:
        try:
            piece = os.read(leader, 1 << 16)
        except OSError as error:  # all that had it open have ended
            if error.errno != errno.EIO:
                raise
            break
        if not piece:
            break
        said += piece
    os.close(leader)
    assert process.wait(PATIENCE) == 0, said
    return said.decode()


@pytest.mark.processes
def test_a_terminal_gets_pictures_and_progress_and_others_do_not(data: Path, tmp_path: Path) -> None:
    with MDSWriter({"image": "png"}, tmp_path / "images") as writer:
        writer.write({"image": tiny_image(1, "png")})
    assert "\u2580" in on_terminal("inspect", tmp_path / "images", "--pictures")
    assert "\u2580" not in on_terminal("inspect", tmp_path / "images")
    said = on_terminal("verify", data)
    assert "verifying" in said
    assert "B/s" in said
    assert "verifying" not in on_terminal("verify", data, "--json")
    out, err = start("verify", data).communicate(timeout=PATIENCE)
    assert "no problems" in out
    assert err == ""


@pytest.mark.processes
@pytest.mark.usefixtures("no_debris")
def test_ctrl_c_ends_with_130_one_line_and_nothing_left(tmp_path: Path) -> None:
    # Files with holes take no disk, and long to hash.
    size = 128 << 20
    make_dataset(tmp_path, 3, hashes=["sha3_512"])
    entry = json.loads((tmp_path / "index.json").read_text())["shards"][0]
    shards = []
    for number in range(60):
        name = f"shard.{number:05}.mds"
        with (tmp_path / name).open("ab") as file:
            file.truncate(size)
        wrong = {"sha3_512": hashlib.sha3_512(b"").hexdigest()}
        shards.append({**entry, "raw_data": {"basename": name, "bytes": size, "hashes": wrong}})
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    process = start("verify", tmp_path, "--threads", 2)
    maps = Path(f"/proc/{process.pid}/maps")
    end = time.monotonic() + PATIENCE
    while "shard.0000" not in maps.read_text():
        assert time.monotonic() < end, "it never began"
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert out == ""
    assert err == "stoker verify: interrupted; nothing was changed\n"


def test_settings_are_of_commands_that_have_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["verify", str(tmp_path), "--json", "a.b=c"])
    assert "unrecognized arguments: a.b=c" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_help_and_a_wrong_flag_show_the_usage_of_the_command_itself(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check_usage(name, capsys)


@pytest.mark.parametrize(
    ("name", "library", "own"),
    [
        ("convert", ["stoker.conversion:convert", "stoker:BadSamples"], {"json", "bad_samples"}),
        (
            "inspect",
            ["stoker.inspection:inspect", "stoker.inspection:inspect_tokens", "stoker.tokens:DatasetSource"],
            {"json", "pictures", "tokens"},
        ),
        ("tokenize", ["stoker.tokens.tokenize.tokenize:tokenize"], {"json"}),
        ("verify", ["stoker.inspection:verify"], {"json"}),
    ],
)
def test_each_option_is_an_argument_of_the_library(name: str, library: list[str], own: set[str]) -> None:
    check_options(name, library, own)


def test_missing_words_name_what_is_needed_and_the_choices(capsys: pytest.CaptureFixture[str]) -> None:
    assert "arguments are required: {list,prune,clear}" in stoker(capsys, "cache", code=2)


def test_errors_name_options_for_the_arguments_of_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(
        json.dumps({"version": "1.0", "model": {"type": "WordLevel", "vocab": {"the": 0}, "unk_token": "the"}})
    )
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    (tmp_path / "a.jsonl").write_text('{"a": "the", "b": null}\n{"a": "the", "b": "the"}\n')
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "tokens-00000.parquet").write_text("x")

    def tokenize(source: str, target: str = "out") -> str:
        return stoker(
            capsys, "tokenize", tmp_path / source, tmp_path / target, "--tokenizer", tokenizer, "--processes", 1, code=1
        )

    assert "strict=False" in (said := tokenize("a.txt"))
    assert said.endswith("(on the command line: --replace-bad-bytes for strict=False)\n")
    (tmp_path / "a.txt").write_text("the")
    assert tokenize("a.txt", "full").endswith("(on the command line: --exist-ok for exist_ok=True)\n")
    (tmp_path / "b.jsonl").write_text('{"a": "the", "b": "the"}\n')
    assert tokenize("b.jsonl").endswith("with column= (on the command line: --column NAME for column=)\n")
    said = stoker(capsys, "convert", tmp_path / "a.jsonl", tmp_path / "mds", "--columns", "b=str", code=1)
    assert "--fill NAME=VALUE for fill=" in said
    assert "--drop-nulls for drop_nulls=True" in said
    (tmp_path / "two").mkdir()
    for name in ("a.npz", "b.jsonl"):
        (tmp_path / "two" / name).write_text('{"a": 1}')
    said = stoker(capsys, "inspect", tmp_path / "two", code=1)
    assert "(on the command line: --format" in said


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("start again with resume=False (--restart)", ""),
        ("resume=False", "--restart for resume=False"),
        ("pass exist_ok=True or exist_ok=True", "--exist-ok for exist_ok=True"),
        ("begin without exist_ok=False", ""),
        ("http://a/b?column=5&column=6 a.column=7 --column=8 nothing=9", ""),
        ("settings=1, format_options={1: 2}", "--format-option NAME=VALUE for format_options="),
    ],
)
def test_only_arguments_that_the_command_has_are_translated(message: str, options: str) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--exist-ok", action="store_true")
    parser.add_argument("--column", metavar="NAME")
    parser.add_argument("--format-option", metavar="NAME=VALUE")
    parser.add_argument("settings")
    said = with_options(message, parser, {"resume=False": "--restart"})
    assert said == message + (f" (on the command line: {options})" if options else "")


def test_versions_and_unknown_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert stoker(capsys, "--version") == f"stoker {__version__}\n"
    assert "command 'inspct' is unknown; did you mean 'inspect'? known: bench, " in stoker(
        capsys, "inspct", "x", code=2
    )
