"""A sample that can not be delivered is named, whichever loader reads it, by whichever threads and processes."""

from __future__ import annotations

import asyncio
import pickle
import re
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from stoker import MDSWriter, ReadOptions, StreamingDataLoader, StreamingDataset, StreamingShardLoader
from stoker.errors import CorruptDataError, DecodeError, SampleError, StokerError, TransformError
from stoker.loaders.shard_loader import StreamingConfig
from stoker.writers import CSVWriter, JSONWriter
from stoker.writing.shard_formats import TarWriter, TFRecordWriter
from support import all_of, make_dataset, write_columns

_BAD = 123


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 samples of which each has its own id, in several shards."""
    return make_dataset(tmp_path_factory.mktemp("data"), 200, size_limit=2000)


class _OddError(Exception):
    """An error that can not be pickled."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")
        self.also = lambda: None


def _key(_: Any) -> Any:
    values: dict[str, int] = {}
    return values["label"]


def _stop(_: Any) -> Any:
    return next(iter(()))


def _odd(_: Any) -> Any:
    raise _OddError(1, 2)


def _generator_exit(_: Any) -> Any:
    raise GeneratorExit


def _cancelled(_: Any) -> Any:
    raise asyncio.CancelledError


class _Fails:
    """A transform that fails for one sample."""

    def __init__(self, fail: Callable[[Any], Any]) -> None:
        self._fail = fail

    def __call__(self, sample: Any) -> Any:
        return self._fail(sample) if int(sample["id"]) == _BAD else sample


def _samples(data: Path, fail: Callable[[Any], Any], threads: int) -> Iterator[Any]:
    return iter(
        StreamingDataset(local=data, transform=_Fails(fail), read=ReadOptions(read_threads=threads), batch_size=8)
    )


def _batches(data: Path, fail: Callable[[Any], Any], threads: int) -> Iterator[Any]:
    return StreamingDataset(local=data, transform=_Fails(fail), read=ReadOptions(read_threads=threads)).batches(8)


def _by_id(data: Path, fail: Callable[[Any], Any], threads: int) -> Iterator[Any]:
    dataset = StreamingDataset(local=data, transform=_Fails(fail), read=ReadOptions(read_threads=threads))
    return (dataset[number] for number in range(dataset.size))


def _slice(data: Path, fail: Callable[[Any], Any], threads: int) -> Iterator[Any]:
    return iter(StreamingDataset(local=data, transform=_Fails(fail), read=ReadOptions(read_threads=threads))[:])


def _shard_loader(data: Path, fail: Callable[[Any], Any], threads: int) -> Iterator[Any]:
    dataset = StreamingDataset(local=data, transform=_Fails(fail), read=ReadOptions(read_threads=threads))
    return iter(StreamingShardLoader(dataset, StreamingConfig(prefetch_buffer_size=8 * threads)))


def _planned_loader(data: Path, fail: Callable[[Any], Any], threads: int) -> Iterator[Any]:
    dataset = StreamingDataset(local=data, transform=_Fails(fail), read=ReadOptions(read_threads=threads))
    return iter(StreamingShardLoader(dataset, StreamingConfig(global_batch_size=10)))


def _loader(data: Path, fail: Callable[[Any], Any], threads: int) -> Iterator[Any]:
    dataset = StreamingDataset(local=data, transform=_Fails(fail), read=ReadOptions(read_threads=threads), batch_size=8)
    return iter(StreamingDataLoader(dataset, num_workers=0, collate_fn=list))


_RAISED: dict[Callable[[Any], Any], str] = {
    _key: "KeyError",
    _stop: "StopIteration",
    _odd: "_OddError",
    _generator_exit: "GeneratorExit",
    _cancelled: "CancelledError",
}
_READERS = [_samples, _batches, _by_id, _slice, _shard_loader, _planned_loader, _loader]


@pytest.mark.parametrize("threads", [0, 1, 8])
@pytest.mark.parametrize("fail", list(_RAISED))
@pytest.mark.parametrize("read", _READERS)
def test_an_error_in_a_transform_names_the_sample_and_is_the_same_everywhere(
    data: Path, read: Callable[..., Iterator[Any]], fail: Callable[[Any], Any], threads: int
) -> None:
    with pytest.raises(TransformError) as caught:
        for _ in read(data, fail, threads):
            pass
    error, cause = caught.value, caught.value.__cause__
    assert isinstance(error, StokerError)
    assert type(cause).__name__ == _RAISED[fail]
    assert (error.sample, error.column) == (_BAD, None)
    assert error.shard is not None
    assert error.row is not None
    dataset = StreamingDataset(local=data)
    assert int(dataset.index.sizes[: error.shard].sum()) + error.row == _BAD
    assert error.url == str(data / f"shard.{error.shard:05d}.mds")
    assert str(error) == (
        f"{error.url}, row {error.row} (sample {_BAD}): the transform raised {type(cause).__name__}: {cause}"
    )


@pytest.mark.processes
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_an_error_in_a_transform_has_the_same_text_in_the_workers_of_a_dataloader(data: Path, method: str) -> None:
    with pytest.raises(TransformError) as here:
        list(_samples(data, _stop, 0))
    dataset = StreamingDataset(local=data, transform=_Fails(_stop), batch_size=8)
    loader = DataLoader(dataset, batch_size=8, num_workers=2, multiprocessing_context=method, collate_fn=list)
    with pytest.raises(TransformError, match=re.escape(str(here.value))) as caught:
        all_of(loader)
    assert "StopIteration" in str(caught.value)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.processes)])
@pytest.mark.parametrize("name", ["collate_fn", "worker_init_fn"])
def test_a_function_of_the_loader_ends_no_epoch(data: Path, name: Any, workers: int) -> None:
    options: Any = {name: _ends, "num_workers": workers}
    loader = StreamingDataLoader(StreamingDataset(local=data, batch_size=8), **options)
    if name == "worker_init_fn" and not workers:
        assert len(list(loader)) == 25
    else:
        with pytest.raises(TransformError, match=f"{name} raised StopIteration"):
            list(loader)


def _ends(_: Any) -> None:
    next(iter(()))


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_is_no_error_goes_through_a_transform_as_it_is(data: Path, error: type[BaseException]) -> None:
    def leave(_: Any) -> Any:
        raise error

    with pytest.raises(error):
        list(StreamingDataset(local=data, transform=leave))


def _none(_: Any) -> Any:
    return None


def _list(sample: Any) -> Any:
    return [sample]


def _generator(sample: Any) -> Any:
    return (one for one in [sample])


def _other_columns(sample: Any) -> Any:
    return {"id": sample["id"]}


def _columnar_loader(data: Path, fail: Callable[[Any], Any], threads: int) -> Iterator[Any]:
    dataset = StreamingDataset(local=data, transform=_Fails(fail), read=ReadOptions(read_threads=threads), batch_size=8)
    return iter(StreamingDataLoader(dataset, columnar=True))


def _shard_loader_batches(data: Path, fail: Callable[[Any], Any], threads: int) -> Iterator[Any]:
    dataset = StreamingDataset(local=data, transform=_Fails(fail), read=ReadOptions(read_threads=threads))
    return iter(StreamingShardLoader(dataset, StreamingConfig(batch_size=8)))


def _array_batches(data: Path, fail: Callable[[Any], Any], threads: int) -> Iterator[Any]:
    arrays = {"id": np.arange(200), "x": np.zeros(200)}
    return iter(StreamingShardLoader(arrays, StreamingConfig(batch_size=8), transform=_Fails(fail)))


@pytest.mark.parametrize("read", [_samples, _by_id, _slice, _shard_loader, _loader])
def test_a_none_of_a_transform_is_a_sample_and_no_end(data: Path, read: Callable[..., Iterator[Any]]) -> None:
    found = [one for item in read(data, _none, 1) for one in (item if isinstance(item, list) else [item])]
    assert [None if one is None else int(one["id"]) for one in found] == [
        None if number == _BAD else number for number in range(200)
    ]


def test_next_refuses_a_none_that_would_look_like_the_end(data: Path) -> None:
    dataset = StreamingDataset(local=data, transform=_Fails(_none))
    loader = StreamingShardLoader(dataset, StreamingConfig())
    assert [int(loader.next()["id"]) for _ in range(_BAD)] == list(range(_BAD))
    with pytest.raises(TransformError, match=rf"sample {_BAD} of .* epoch 0: the transform returned None"):
        loader.next()
    assert int(loader.next()["id"]) == _BAD + 1


@pytest.mark.parametrize("made", [_none, _list, _generator, _other_columns])
@pytest.mark.parametrize("read", [_batches, _planned_loader, _columnar_loader, _shard_loader_batches, _array_batches])
def test_what_makes_no_batch_of_columns_is_named(
    data: Path, read: Callable[..., Iterator[Any]], made: Callable[[Any], Any]
) -> None:
    with pytest.raises(TransformError, match=rf"row \d+ \(sample {_BAD}\): the transform returned ") as caught:
        for _ in read(data, made, 1):
            pass
    assert caught.value.sample == _BAD


@pytest.mark.parametrize("bad", [0, 3])
@pytest.mark.parametrize("made", [_none, _list, _generator])
def test_what_can_not_be_collated_is_named_by_its_index_in_the_batch(
    data: Path, made: Callable[[Any], Any], bad: int
) -> None:
    def transform(sample: Any) -> Any:
        return made(sample) if int(sample["id"]) == 120 + bad else sample

    dataset = StreamingDataset(local=data, transform=transform, batch_size=8)
    with pytest.raises(TransformError, match=rf"sample {bad} of a batch of 8: the transform returned "):
        list(StreamingDataLoader(dataset))


@pytest.mark.parametrize("threads", [0, 2])
def test_after_an_error_the_state_continues_with_the_sample_that_was_not_delivered(data: Path, threads: int) -> None:
    given: list[int] = []
    dataset = StreamingDataset(local=data, transform=_Fails(_key), read=ReadOptions(read_threads=threads), batch_size=1)
    with pytest.raises(TransformError):
        given.extend(int(sample["id"]) for sample in dataset)
    mended = StreamingDataset(local=data, read=ReadOptions(read_threads=threads), batch_size=1)
    mended.load_state_dict(dataset.state_dict())
    given += [int(sample["id"]) for sample in mended]
    assert given == list(range(200))


def test_errors_of_arrays_in_memory_name_the_row() -> None:
    loader = StreamingShardLoader({"id": np.arange(200)}, transform=_Fails(_stop))
    with pytest.raises(TransformError, match=rf"^row {_BAD} \(sample {_BAD}\): the transform raised StopIteration"):
        list(loader)


@pytest.mark.parametrize("cause", [KeyError("label"), _OddError(1, 2)])
def test_an_error_of_a_sample_is_pickled_with_its_cause(cause: Exception) -> None:
    def told() -> TransformError:
        try:
            try:
                raise cause
            except Exception as error:
                raise TransformError("a message", url="u", shard=1, row=2, sample=3) from error
        except TransformError as error:
            return error

    error = pickle.loads(pickle.dumps(told()))
    assert type(error) is TransformError
    assert (str(error), error.url, error.shard, error.row, error.column, error.sample) == (
        "a message",
        "u",
        1,
        2,
        None,
        3,
    )
    assert str(cause) in str(error.__cause__)
    assert error.__cause__ is not None
    assert "raise cause" in "".join(error.__cause__.__notes__)
    assert isinstance(error.__cause__, KeyError if isinstance(cause, KeyError) else StokerError)


# -- decoding ------------------------------------------------------------------------------------------------------------


def _write(folder: Path, writer: Callable[..., Any]) -> None:
    """Samples whose column ``text`` is text that can be found in the file."""
    with writer({"id": "int", "text": "str"}, str(folder)) as out:
        for number in range(200):
            out.write({"id": number, "text": f"this is text {number:04d}"})


@pytest.mark.parametrize("writer", [MDSWriter, JSONWriter, TFRecordWriter, TarWriter, CSVWriter])
def test_a_value_that_does_not_decode_is_named(tmp_path: Path, writer: Callable[..., Any]) -> None:
    _write(tmp_path / "data", writer)
    found = [
        path for path in (tmp_path / "data").rglob("*") if path.is_file() and b"this is text 0123" in path.read_bytes()
    ]
    assert len(found) == 1
    found[0].write_bytes(found[0].read_bytes().replace(b"this is text 0123", b"this is \xff\xfext 0123"))
    options: dict[str, Any] = {"validate_hash": False}
    dataset = StreamingDataset(local=tmp_path / "data", batch_size=8, **options)
    errors = []
    for read in (
        lambda: list(dataset),
        lambda: list(dataset.batches()),
        lambda: dataset[123],
        lambda: dataset.read(range(200)),
        lambda: list(StreamingShardLoader(dataset)),
    ):
        with pytest.raises(DecodeError) as caught:
            read()
        errors.append(caught.value)
    error = errors[0]
    assert {str(one) for one in errors} == {str(error)}
    assert isinstance(error, CorruptDataError)
    assert isinstance(error, SampleError)
    assert error.sample == 123
    assert error.url is not None
    assert Path(error.url) == found[0]
    assert error.url in str(error)
    assert "row" in str(error)
    assert error.__cause__ is not None


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 images, of which one is cut in half."""
    folder = tmp_path_factory.mktemp("images")
    file = BytesIO()
    noise = np.random.default_rng(3).integers(0, 255, (48, 48, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file, "jpeg")
    whole = file.getvalue()
    images = [whole if number != 17 else whole[: len(whole) // 2] for number in range(40)]
    write_columns(str(folder), {"image": images, "id": np.arange(40)}, {"image": "jpeg", "id": "int"})
    return folder


def _as_it_is(sample: Any) -> Any:
    return sample


def _grey(sample: Any) -> Any:
    return {"image": torch.from_numpy(np.array(sample["image"].convert("L")))}


@pytest.mark.processes
@pytest.mark.parametrize("columnar", [False, True])
@pytest.mark.parametrize("transform", [None, _as_it_is])
def test_a_worker_tells_of_a_damaged_image_instead_of_losing_its_batch(
    images: Path, transform: Any, columnar: bool
) -> None:
    # Pillow loads an image when it is used: in a worker that would be when a batch is pickled, by a thread whose errors are
    # printed and nothing else, so that the main process waits for the batch for ever.
    dataset = StreamingDataset(local=images, transform=transform, batch_size=4)
    loader = StreamingDataLoader(dataset, num_workers=2, columnar=columnar)
    kind = DecodeError if transform is None else TransformError
    with pytest.raises(kind, match=r"shard\.00000\.mds.*17.*truncated") as caught:
        for _ in loader:
            pass
    assert "image file is truncated" in str(caught.value)


def test_a_damaged_image_that_a_transform_uses_is_named(images: Path) -> None:
    with pytest.raises(
        TransformError, match=r"shard\.00000\.mds, row 17 \(sample 17\).*OSError: image file is truncated"
    ):
        list(StreamingDataset(local=images, transform=_grey))


def test_a_column_that_is_not_there_is_no_error_of_a_sample(data: Path) -> None:
    with pytest.raises(StokerError, match="no column 'nothing'") as caught:
        StreamingDataset(local=data).read([1], columns=["nothing"])
    assert not isinstance(caught.value, SampleError)
