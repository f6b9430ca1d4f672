"""DLIO's indexed binary files: records by offsets and sizes, which may name the same bytes several times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from format_table import indexed_binary

from stoker import ReadOptions, StreamingDataset, World
from stoker.catalog.detect import detect
from stoker.errors import ConfigError, CorruptDataError, ObjectNotFoundError
from stoker.tokens import MegatronWriter, Ragged

pytestmark = pytest.mark.usefixtures("own_cache")


def write(folder: Path, files: int = 2, **changed: bytes) -> list[bytes]:
    """Files as DLIO's generator writes them that are larger than its buffer of three records."""
    expected = []
    folder.mkdir(exist_ok=True)
    for number in range(files):
        records = [bytes([number, row]) * 8 for row in range(7)]
        found = indexed_binary(records, [row % 3 * 16 for row in range(7)]) | changed
        for end, data in found.items():
            (folder / f"img_{number}_of_{files}.indexed_binary{end}").write_bytes(data)
        expected += [records[row % 3] for row in range(7)]
    return expected


@pytest.mark.parametrize("options", [{}, {"local": True}, {"read": ReadOptions(views=True)}], ids=str)
def test_records_are_where_the_offsets_say(options: dict[str, Any], tmp_path: Path) -> None:
    expected = write(tmp_path / "data")
    if "local" in options:
        options = {"local": tmp_path / "cache"}
    dataset = StreamingDataset(remote=tmp_path / "data", **options)
    assert [bytes(sample["data"]) for sample in dataset] == expected
    assert [bytes(one) for one in dataset.read(np.array([9, 0, 5]))["data"]] == [expected[row] for row in (9, 0, 5)]


@pytest.mark.parametrize("end", ["", ".off.idx", ".sz.idx"])
def test_any_of_the_three_files_names_the_data(end: str, tmp_path: Path) -> None:
    expected = write(tmp_path / "data", 1)
    path = tmp_path / "data" / f"img_0_of_1.indexed_binary{end}"
    dataset = StreamingDataset(str(path), format="indexed_binary", shuffle=True)
    assert sorted(sample["data"] for sample in dataset) == sorted(expected)
    assert dataset[5]["data"] == expected[5]
    with pytest.raises(ConfigError, match=r"end with .*\.off\.idx, .*\.sz\.idx"):
        StreamingDataset(str(path.rename(tmp_path / "data" / "records.dat")), format="indexed_binary")


def test_a_file_whose_index_is_lost_is_an_error_that_names_it(tmp_path: Path) -> None:
    expected = write(tmp_path)
    (tmp_path / "img_1_of_2.indexed_binary.off.idx").unlink()
    given: tuple[dict[str, Any], ...] = ({}, {"format": "indexed_binary"})
    for options in given:
        with pytest.raises(
            ObjectNotFoundError, match=r"img_1_of_2\.indexed_binary.* has no img_1_of_2\.indexed_binary\.off"
        ):
            StreamingDataset(tmp_path, **options)
    chosen = StreamingDataset(f"{tmp_path}/*.off.idx", format="indexed_binary")
    assert [sample["data"] for sample in chosen] == expected[:7]
    (tmp_path / "img_0_of_2.indexed_binary.off.idx").unlink()
    with pytest.raises(ObjectNotFoundError, match="files of format='indexed_binary' have such names"):
        StreamingDataset(tmp_path)


def test_shuffled_records_are_continued_on_another_world(tmp_path: Path) -> None:
    expected = write(tmp_path)

    def opened(world: World) -> StreamingDataset:
        return StreamingDataset(tmp_path, shuffle=True, world=world)

    first = opened(World())
    seen = [sample["data"] for sample, _ in zip(first, range(4), strict=False)]
    state = first.state_dict(num_samples=4)
    for rank in range(2):
        other = opened(World(rank, 2, 2))
        other.load_state_dict(state)
        seen += [sample["data"] for sample in other]
    assert sorted(seen) == sorted(expected)


def test_the_format_is_told_from_megatron_s(tmp_path: Path) -> None:
    write(tmp_path / "dlio")
    assert detect(tmp_path / "dlio").format == "indexed_binary"
    assert detect(tmp_path / "dlio" / "img_0_of_2.indexed_binary.off.idx").format == "indexed_binary"
    (tmp_path / "megatron").mkdir()
    with MegatronWriter(tmp_path / "megatron" / "part", np.uint16) as documents:
        documents.write(Ragged.of([np.arange(3, dtype=np.uint16), np.arange(5, dtype=np.uint16)]))
    assert detect(tmp_path / "megatron").format == "megatron"
    for one in (tmp_path / "megatron").iterdir():
        one.rename(tmp_path / "dlio" / one.name)
    with pytest.raises(ConfigError, match="of several formats"):
        detect(tmp_path / "dlio")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {".off.idx": np.array([0, 16, 2**40, 0, 0, 0, 0], "<u8").tobytes()},
            r"record 2 of 16 bytes begins at byte \d+ of 112",
        ),
        (
            {".sz.idx": np.array([16, 16, 2**64 - 8, 0, 0, 0, 0], "<u8").tobytes()},
            r"record 2 of \d+ bytes begins at byte 32 of",
        ),
        ({".sz.idx": bytes(8 * 6)}, r"its .off.idx has 7 records, its .sz.idx 6, and 7 were indexed"),
        ({".off.idx": bytes(57)}, r"has 57 bytes, which are not the u64 offsets of"),
        ({".off.idx": b""}, r"has 0 bytes, which are not the u64 offsets of one or more records"),
        ({".sz.idx": bytes(57)}, r"its .sz.idx has 57 bytes, which are not a whole number of u64"),
    ],
)
def test_damaged_files_are_errors_that_say_where(changed: dict[str, bytes], said: str, tmp_path: Path) -> None:
    write(tmp_path / "data", 1, **changed)
    with pytest.raises(CorruptDataError, match=said):
        list(StreamingDataset(remote=tmp_path / "data"))
