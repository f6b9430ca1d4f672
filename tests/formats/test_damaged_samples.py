"""Damaged files of every format: what ``dataset[i]`` gives comes in its place, what it refuses is left out or replaced."""

from __future__ import annotations

import random
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from format_table import OTHERS, ROWS, WRITTEN, sample_of

from stoker import Adaptive, BadSamples, ReadOptions, StreamingConfig, StreamingDataset, StreamingShardLoader
from stoker.cluster import World
from stoker.errors import StokerError, TooManyBadSamplesError
from stoker.formats.registry import format_names

ROUNDS = 6


def written(name: str, folder: Path) -> dict[str, Any]:
    """Write a dataset; the arguments that read it."""
    if name in WRITTEN:
        case = WRITTEN[name]
        with case.make(dict(case.columns), folder, **case.options) as writer:
            for number in range(ROWS):
                writer.write(sample_of(number, case.columns))
        return {}
    others = OTHERS[name]
    for path, content in others.files(range(ROWS)).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return {"format": name, "format_options": others.options}


def damage(folder: Path, chance: random.Random) -> None:
    """Change bytes of a few files."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "index.json")
    for path in chance.sample(files, min(len(files), 3)):
        content = bytearray(path.read_bytes())
        for _ in range(chance.randrange(1, 4)):
            if content:
                content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(content)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if hasattr(one, "tobytes"):
        return bool(one.tobytes() == other.tobytes())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other or (one != one and other != other))


def expected(dataset: StreamingDataset) -> list[Any]:
    """Each sample by its id; ``None`` where that is an error."""
    found: list[Any] = []
    for number in range(dataset.size):
        try:
            sample = dataset[number]
            for value in sample.values():
                if hasattr(value, "load"):
                    value.load()
            found.append(sample)
        except (StokerError, OSError, SyntaxError, ValueError):
            found.append(None)
    return found


NAMES = sorted({*WRITTEN, *OTHERS})
UNSEEN = {"files", "megatron"}
"""Formats of which any bytes are samples: of what is damaged, only that is seen which tells where samples are."""


def test_all_formats_are_damaged_here() -> None:
    assert set(NAMES) == set(format_names()) - {"synthetic"}  # of which nothing is stored


@pytest.mark.parametrize("name", NAMES)
def test_good_samples_of_damaged_files_come_once(name: str, tmp_path: Path) -> None:
    met = 0
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        arguments = written(name, folder)
        damage(folder, random.Random(f"{name} {number}"))
        arguments["batch_size"] = 7
        try:
            wanted = expected(StreamingDataset(folder, **arguments))
        except StokerError:  # what says which samples there are is damaged
            continue
        good = [sample for sample in wanted if sample is not None]
        lost = len(wanted) - len(good)
        bad = BadSamples("skip", max_share=None, max_bad=lost)
        met += lost

        opened = partial(StreamingDataset, folder, on_bad_sample=bad, **arguments)
        dataset = opened()
        found = list(dataset)
        assert len(found) == len(good)
        assert all(map(same, found, good))
        assert dataset.stats().bad_samples == lost
        lengths = [len(next(iter(batch.values()))) for batch in opened().batches()]
        assert sum(lengths) == len(good)
        steps = [wanted[first : first + 7] for first in range(0, len(wanted), 7)]
        assert lengths == [sum(sample is not None for sample in step) for step in steps]
        if good:
            replaced = list(opened(on_bad_sample=BadSamples("replace", max_share=None)))
            assert len(replaced) == len(wanted)
            for sample, original in zip(replaced, wanted, strict=True):
                assert any(same(sample, one) for one in good) if original is None else same(sample, original)
        if lost and met == lost:  # the first round with some
            with pytest.raises(TooManyBadSamplesError):
                list(opened(on_bad_sample=BadSamples("skip", max_share=None, max_bad=lost - 1)))
            check_ranks_and_resume(opened, wanted)
            check_shard_loader(opened, wanted, f"memory://{folder}")
    assert bool(met) != (name in UNSEEN)


def check_ranks_and_resume(opened: Any, wanted: list[Any]) -> None:
    """Ranks take equally many steps and deliver all good samples once, shuffled, also where each resumes after some steps."""
    settings: dict[str, Any] = {"shuffle": True, "remainder": "drop", "read": ReadOptions(ids="its id")}
    for rank in range(2):
        world = World(rank, 2, 2)
        first = opened(world=world, **settings)
        steps = [first.ids_of(step, rank).tolist() for step in range(len(wanted) // 14)]
        taken = [batch["its id"].tolist() for batch in islice(first.batches(), 2)]
        again = opened(world=world, **settings)
        again.load_state_dict(first.state_dict())
        found = [*taken, *(batch["its id"].tolist() for batch in again.batches())]
        assert found == [[number for number in step if wanted[number] is not None] for step in steps]


def check_shard_loader(opened: Any, wanted: list[Any], engine: str) -> None:
    """Workers of all kinds deliver all good samples once, in their places, and resume."""
    for settings in ({}, {"global_batch_size": 14}, {"partition": Adaptive(), "coordinator": engine}):
        config = StreamingConfig(checkpoint_interval=None, prefetch_buffer_size=16, **settings)
        with StreamingShardLoader(opened(batch_size=1), config) as loader:
            if "global_batch_size" in settings:
                lengths = [len(next(iter(batch.values()))) for batch in loader]
                steps = [wanted[first : first + 14] for first in range(0, len(wanted) // 14 * 14, 14)]
                assert lengths == [sum(sample is not None for sample in step) for step in steps]
                continue
            found: dict[int, Any] = {}
            while (sample := loader.next()) is not None:
                found[loader.last_positions()[0] if "coordinator" in settings else len(found)] = sample
            bad = loader.stats().bad_samples
        good = {number: sample for number, sample in enumerate(wanted) if sample is not None}
        assert bad == len(wanted) - len(good)
        assert len(found) == len(good)
        if "coordinator" in settings:
            assert all(same(found[number], sample) for number, sample in good.items())
        else:
            assert all(map(same, found.values(), good.values()))
    whole, halves = [], []
    for rank in range(2):
        config = StreamingConfig(2, rank, batch_size=7, checkpoint_interval=None)
        settings = {"batch_size": 7, "read": ReadOptions(ids="its id"), "remainder": "drop", "shuffle": True}
        whole.append([batch["its id"].tolist() for batch in StreamingShardLoader(opened(**settings), config)])
        first, again = (StreamingShardLoader(opened(**settings), config) for _ in range(2))
        taken = [batch["its id"].tolist() for batch in islice(first, 2)]
        again.load_state_dict(first.state_dict())
        halves.append(taken + [batch["its id"].tolist() for batch in again])
    assert whole == halves
    assert len(whole[0]) == len(whole[1])
    numbers = [number for part in whole for step in part for number in step]
    assert len(numbers) == len(set(numbers))
    assert all(wanted[number] is not None for number in numbers)
