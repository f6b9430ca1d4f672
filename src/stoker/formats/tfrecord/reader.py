"""TFRecord files: records with checksums, each a ``tf.train.Example`` or plain bytes.

    u64 length | masked CRC-32C of the length | data | masked CRC-32C of the data

Lengths and their checksums are verified when a file is opened, and a record's own whenever it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, Final

import numpy as np

from stoker.arguments import must_know
from stoker.errors import ConfigError, CorruptDataError, FormatError, StokerError
from stoker.formats.base import ReadOptions, ShardInfo
from stoker.formats.common.checks import (
    check_declared,
    check_indexed,
    check_rows,
    decode_fixed,
    decode_values,
    packed_as,
)
from stoker.formats.common.container import OpenShard, PackedEncoder, PackedFormat, fixed_kind, read_offsets
from stoker.formats.common.gather import address_of, gather_rows, gather_spans, run_of
from stoker.formats.common.inspect_header import ByteSource, HeaderFacts, HeadView, check_count, heads_of
from stoker.formats.common.records import BytesLike
from stoker.formats.mds.encodings import Encoding, get_encoding
from stoker.formats.tfrecord.example import (
    BYTES,
    FLOATS,
    INTEGERS,
    SEQUENCES,
    Features,
    OtherRecordsError,
    Sliced,
    crc32c_function,
    crc_of_lengths,
    feature_head,
    feature_values,
    find_features,
    has_one_value,
    mask,
    masked,
    pack_integers,
    split_example,
)
from stoker.formats.unstacked import Unstacked, spread, stacked, stacks
from stoker.integers import encode_varint, first_true
from stoker.types import Array, Batch, Buffer, Column, Ids

_HEAD: Final = 12
_FRAME: Final = 16
_TAGS: Final = 64
_RAW: Final = "data"
# Records that tell which features there are, and their bytes: as many, but two at least.
_LOOKED_AT: Final = 32
_LOOKED_BYTES: Final = 4 << 20
# Records are read together from so many on, and up to so many bytes each: a step for all takes as long as some of them.
_FEW: Final = 24
_SMALL: Final = 1 << 14
_WORDS: Final = {BYTES: "bytes", FLOATS: "float32", INTEGERS: "int64"}
_KINDS: Final = {word: kind for kind, word in _WORDS.items()}
_SEQUENCE: Final = (
    "is a feature list, of a tf.train.SequenceExample: format_options={'raw': True} gives records as bytes, for TensorFlow "
    "to parse, and with columns= other features are read"
)


def feature_kind(encoding: Encoding) -> int:
    """The list of an Example that holds values of an encoding."""
    if encoding.name in ("float32", "ndarray:float32") or encoding.name.startswith("ndarray:float32:"):
        return FLOATS if encoding.size is not None else BYTES
    dtype, shape = fixed_kind(encoding) if encoding.size is not None else (np.dtype(np.uint8), ())
    if encoding.size is not None and getattr(encoding, "dtype", None) is not None:
        if not shape and dtype.kind in "iu" and encoding.name != "bfloat16":
            return INTEGERS
        if shape and dtype == np.int64:
            return INTEGERS
    return INTEGERS if encoding.name == "bool" else BYTES


def read_frames(data: Buffer | HeadView, offsets: Ids | None, where: str) -> Ids:
    """Finds the first byte of each record, and the end of the last; int64, shape ``(n + 1,)``.

    ``offsets``: the same as a meta file tells it, to be checked against the file. CorruptDataError if it is no TFRecord file,
    is cut off, or a length is damaged.
    """
    size, walked = len(data), bytearray()
    if offsets is None:
        bounds = [0]
        at = 0
        while at < size:  # each record tells where the next one is
            head = data[at : at + _HEAD]
            walked += head
            at += int.from_bytes(head[:8], "little") + _FRAME
            bounds.append(at)
        offsets = np.array(bounds, np.int64) if at <= 1 << 62 else np.array([0, 1 << 62], np.int64)
    lengths = np.diff(offsets) - _FRAME
    if int(offsets[0]) or int(offsets[-1]) != size or (len(lengths) and int(lengths.min()) < 0):
        what = packed_as(bytes(data[:16]))
        what = f"but {what}" if what else f"or cut off: its records do not end at byte {size}"
        raise CorruptDataError(f"{where}: not a TFRecord file, {what}")
    if len(lengths):
        if walked:
            heads = np.frombuffer(walked, np.uint8).reshape(-1, _HEAD)
        else:
            heads = gather_rows(address_of(np.frombuffer(data, np.uint8)) + offsets[:-1], _HEAD)  # type: ignore[arg-type]
        told = np.ascontiguousarray(heads[:, 8:]).view("<u4").ravel()
        wrong = np.ascontiguousarray(heads[:, :8]).view("<i8").ravel() != lengths
        wrong |= told != masked(crc_of_lengths(lengths))
        if (bad := first_true(wrong)) is not None:
            raise CorruptDataError(f"{where}: record {bad}: its length does not match its checksum")
    return offsets


class TFRecordShard(OpenShard):
    """An open TFRecord file."""

    def __init__(self, info: ShardInfo, files: Sequence[Buffer], where: str, options: ReadOptions) -> None:
        super().__init__(info, where, options)
        self._data = files[0]
        self._offsets = read_frames(self._data, read_offsets(info, files, where), where)
        check_indexed(f"{where}: the file holds", len(self._offsets) - 1, info.samples, "records")
        self._raw = bool(info.spec.get("raw"))
        self._own = "column_names" in info.spec
        self._crc = crc32c_function()
        self._inferred = bool(info.spec.get("inferred"))
        words: Mapping[str, str] = info.spec.get("columns", {})
        if self._own:
            self._kinds = {name: feature_kind(encoding) for name, encoding in self.encodings.items()}
        else:
            self._kinds = {name: _KINDS[word.removesuffix("[]")] for name, word in words.items()}
        self._lists = {name for name, word in words.items() if word.endswith("[]")}

    def read(self, rows: Ids, columns: Sequence[str] | None = None) -> Batch:
        wanted = self.wanted(columns)
        check_rows(rows, self.samples)
        together = self._read_together(rows, wanted)
        if together is not None:
            return together
        if self._raw:
            records = [self._record(row) for row in rows.tolist()]
            return {name: self._decode_bytes(name, records, rows) for name in wanted}
        values: dict[str, list[Any]] = {name: [] for name in wanted}
        keys = [(name.encode(), name, self._kinds[name], values[name].append) for name in wanted]
        whole, known = self._is_whole(wanted), {key for key, *_ in keys}
        for row in rows.tolist():
            record = self._record(row)
            try:
                features = split_example(record)
                if whole and not features.keys() <= known:
                    self._check_names(record, features)
                for key, name, kind, append in keys:
                    found = features.get(key)
                    append(None if found is None else self._values(record, found, name, kind))
            except ValueError as error:
                raise CorruptDataError(f"{self.where}: record {row}: not a tf.train.Example: {error}") from None
        return {name: self._column(name, values[name], rows) for name in wanted}

    def _read_together(self, rows: Ids, wanted: Sequence[str]) -> Batch | None:
        """The columns of many small records; ``None`` where they are to be read one by one, and for each error."""
        begins, ends = self._offsets[rows], self._offsets[rows + 1]
        sizes = ends - begins
        if len(rows) < _FEW or not wanted or int(sizes.sum()) > _SMALL * len(rows):
            return None
        if run_of(rows) is not None:
            text, begins = bytes(self._data[int(begins[0]) : int(ends[-1])]), begins - begins[0]
        else:
            text, begins = gather_spans([self._data], None, begins, ends)
        ends, begins = begins + sizes - 4, begins + _HEAD
        records = (text[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True))
        kept = list(records) if self._raw else []
        crcs = np.fromiter(map(self._crc, kept or records), np.uint32, len(rows))
        told = np.frombuffer(text, np.uint8)[ends[:, None] + np.arange(4)].view("<u4").ravel()
        if (masked(crcs) != told).any():
            return None
        try:
            if self._raw:
                return {name: self._whole(name, kept, rows) for name in wanted}
            kinds = {name: self._kinds[name] for name in wanted}
            found = find_features(text, begins, ends, kinds, whole=self._is_whole(wanted))
            return {name: self._column_of(name, found[name], rows) for name in wanted}
        except (OtherRecordsError, StokerError):
            return None

    def _column_of(self, name: str, found: Features, rows: Ids) -> Column:
        if self._kinds[name] == BYTES:
            if name in self._lists:
                raise OtherRecordsError
            return self._whole(name, found.blobs(), rows)
        values, counts = found.numbers()
        equal = int(counts.min()) == int(counts.max())
        if self._own:
            if not equal or int(counts[0]) != self._values_of(name):
                raise OtherRecordsError
            return self._own_numbers(name, values.reshape(len(rows), -1), rows)
        if name not in self._lists:
            if not equal or int(counts[0]) != 1:
                raise OtherRecordsError
            return values
        if equal:
            return values.reshape(len(rows), -1)
        return Unstacked(one.copy() for one in np.split(values, np.cumsum(counts)[:-1]))

    def _record(self, row: int) -> bytes:
        begin, end = int(self._offsets[row]), int(self._offsets[row + 1])
        data = self._data[begin + _HEAD : end]
        record, told = data[:-4], int.from_bytes(data[-4:], "little")
        if mask(self._crc(record)) != told:
            raise CorruptDataError(f"{self.where}: record {row} does not match its checksum")
        return record

    def _is_whole(self, wanted: Sequence[str]) -> bool:
        """Whether all features are wanted, and those of the first records are taken for all."""
        return self._inferred and len(wanted) == len(self._kinds)

    def _check_names(self, record: bytes, features: Mapping[bytes, tuple[int, int, int]]) -> None:
        """ValueError where a feature with values is none of the columns."""
        for key, (kind, begin, end) in features.items():
            name = key.decode()
            if end > begin and name not in self._kinds:
                if kind == SEQUENCES:
                    raise ValueError(f"{name!r} {_SEQUENCE}")
                kinds = {**self._kinds, name: kind}
                lists = self._lists | ({name} if len(feature_values(record, kind, begin, end)) != 1 else set())
                columns = {one: _WORDS[kinds[one]] + "[]" * (one in lists) for one in kinds}
                raise ValueError(
                    f"feature {name!r} is not in the first records of the file. If that is right, say so: "
                    f'format_options={{"columns": {columns}}}'
                )

    def _values(self, record: bytes, found: tuple[int, int, int], name: str, kind: int) -> Any:
        if found[0] != kind and found[2] > found[1]:  # an empty list may be of any type
            told = _WORDS.get(found[0], "feature lists")
            raise ValueError(f"feature {name!r} is of {told}, not of {_WORDS[kind]}")
        values = feature_values(record, *found)
        if self._own or name in self._lists:
            return values
        if len(values) != 1:
            raise ValueError(
                f"feature {name!r} has {len(values)} values where other records have one: read it as a list with "
                f"columns={{{name!r}: {_WORDS[kind] + '[]'!r}}}"
            )
        return values[0]

    def _column(self, name: str, values: list[Any], rows: Ids) -> Column:
        if self._own:
            return self._own_column(name, values, rows)
        if self._kinds[name] == BYTES and name not in self._lists:
            return self._decode_bytes(name, values, rows)
        if self._kinds[name] == BYTES:
            return values
        dtype = np.dtype(np.float32 if self._kinds[name] == FLOATS else np.int64)
        if name not in self._lists:
            return np.array(values, dtype) if None not in values else Unstacked(values, dtype)
        values = [None if value is None else np.array(value, dtype) for value in values]
        return stacked(values) if stacks(values) else Unstacked(values)

    def _own_column(self, name: str, values: list[Any], rows: Ids) -> Column:
        encoding, kind, count = self.encodings[name], self._kinds[name], self._values_of(name)
        for row, value in zip(rows.tolist(), values, strict=True):
            if value is None or len(value) != count:
                raise CorruptDataError(
                    f"{self.where}: record {row}: feature {name!r} has {0 if value is None else len(value)} values, and "
                    f"{encoding.name} takes {count}"
                )
        if kind == BYTES:
            return self._decode_bytes(name, [value[0] for value in values], rows)
        stacked: Array = np.array(values, np.int64 if kind == INTEGERS else np.float32).reshape(len(values), count)
        return self._own_numbers(name, stacked, rows)

    def _values_of(self, name: str) -> int:
        """The number of values in a record of a column of our own."""
        if self._kinds[name] == BYTES:
            return 1
        _, shape = fixed_kind(self.encodings[name])
        return int(np.prod(shape, dtype=np.int64))

    def _own_numbers(self, name: str, stacked: Array, rows: Ids) -> Column:
        """Numbers as their encoding has them, of int64 or float32 of shape ``(rows, numbers)``."""
        encoding = self.encodings[name]
        dtype, _ = fixed_kind(encoding)
        stored = np.ascontiguousarray(stacked.astype(dtype))
        whole = stacked.dtype == np.int64 and dtype != np.uint64
        if whole and (bad := first_true((stored.astype(np.int64) != stacked).any(axis=1))) is not None:
            raise CorruptDataError(
                f"{self.where}: record {rows[bad]}: feature {name!r} holds a number that does not fit {encoding.name}"
            )
        return decode_fixed(encoding, stored, rows, name, self.where)

    def _decode_bytes(self, name: str, values: list[Any], rows: Ids) -> Column:
        encoding = self.encodings.get(name)
        there = [number for number, value in enumerate(values) if value is not None]
        if encoding is None or not values or (not there and encoding.size is None):
            return values
        if len(there) == len(values):
            return self._whole(name, values, rows)
        return spread(self._whole(name, [values[number] for number in there], rows[there]), there, len(values))

    def _whole(self, name: str, values: list[bytes], rows: Ids) -> Column:
        """A column of which no value is missing."""
        encoding = self.encodings.get(name)
        if encoding is None:
            return values
        try:
            if encoding.size is None:
                return decode_values(encoding, values, rows, name, self.where)
            for row, value in zip(rows.tolist(), values, strict=True):
                if len(value) != encoding.size:
                    raise CorruptDataError(
                        f"{self.where}: record {row}: column {name!r} is not of the {encoding.size} bytes of {encoding.name}"
                    )
            raw = np.frombuffer(b"".join(values), np.uint8).reshape(len(values), encoding.size).copy()
            return decode_fixed(encoding, raw, rows, name, self.where)
        except CorruptDataError as error:
            if not self._own:
                check_declared(self.where, name, encoding, bytes(values[0]), error)
            raise


class TFRecordFormat(PackedFormat):
    """One TFRecord file a shard."""

    name = "tfrecord"
    shard = "a file of `tf.train.Example`, or of plain bytes"
    reader = TFRecordShard
    suffixes = (".tfrecord", ".tfrecords", ".tfrec")
    whole = True
    steps = True
    packed = True
    settings = ("columns", "encodings", "raw")

    def parse_spec(self, obj: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        """See :class:`~stoker.formats.format.Format`: that of MDS, and ``raw``, where records are a column's bytes."""
        spec = super().parse_spec(obj, where)
        return {**spec, "raw": True} if obj.get("raw") is True else spec

    def inspect_header(self, source: ByteSource, settings: Mapping[str, Any]) -> HeaderFacts:
        """See :class:`~stoker.formats.common.container.PackedFormat`.

        Settings: ``raw`` (records are plain bytes, in the column ``data``; default: found out by the first records),
        ``columns`` (features to read, or feature to ``bytes``, ``float32`` or ``int64``, with ``[]`` for those of any number
        of values; by default all of the first records, and a feature that first comes later is an error), ``encodings``
        (feature of bytes to how it is decoded, such as ``{"image": "jpeg"}``).
        """
        data = heads_of(source)
        offsets = read_frames(data, None, source.where)
        count = check_count(len(offsets) - 1, source.where)
        encodings = {str(name): str(encoding) for name, encoding in (settings.get("encodings") or {}).items()}
        some = max(2, int(np.searchsorted(offsets, _LOOKED_BYTES)))
        bounds = offsets[: min(some, _LOOKED_AT) + 1].tolist()
        records = [_record_of(data, a + _HEAD, b - 4) for a, b in pairwise(bounds)]
        raw = settings.get("raw")
        columns: dict[str, str] = {}
        try:
            columns = {} if raw else _features(records)
        except ValueError as error:
            if raw is not None:
                raise CorruptDataError(f"{source.where}: a record is not a tf.train.Example: {error}") from None
            raw = True
        if raw:
            columns = {_RAW: "bytes"}
        chosen = settings.get("columns")
        if isinstance(chosen, Mapping):
            for name, word in chosen.items():
                if str(word).removesuffix("[]") not in _KINDS:
                    raise ConfigError(
                        f"columns={{{name!r}: {word!r}}}: expected one of {', '.join(_KINDS)}, or with []"
                    )
            columns = {str(name): str(word) for name, word in chosen.items()}
        elif chosen is not None:
            must_know("feature", chosen, columns, f"{source.where}: ")
            columns = {name: columns[name] for name in sorted(chosen)}
        for name, word in columns.items():
            if word.startswith(_SEQUENCE):
                raise FormatError(f"{source.where}: {name!r} {_SEQUENCE}")
        for name, encoding in encodings.items():
            get_encoding(encoding)
            if columns.get(name, "bytes") != "bytes":
                raise ConfigError(f"encodings={{{name!r}: ...}}: the feature is {columns[name]}, not bytes")
        used = {name: encoding for name, encoding in encodings.items() if name in columns}
        inferred = chosen is None and not raw
        return HeaderFacts(count, {"columns": columns, "encodings": used, "raw": bool(raw), "inferred": inferred})

    def bad_checksums(self, info: ShardInfo, data: Buffer, where: str) -> Iterator[tuple[int | None, str]]:  # noqa: ARG002
        """CRC-32C of each record; lengths and theirs are checked when a file is opened."""
        bounds = read_frames(data, None, where).tolist()
        crc = crc32c_function()
        for row in range(len(bounds) - 1):
            begin, end = bounds[row] + 12, bounds[row + 1] - 4
            if mask(crc(bytes(data[begin:end]))) != int.from_bytes(data[end : end + 4], "little"):
                yield row, f"record {row} does not match its checksum"


def _record_of(data: Buffer | HeadView, begin: int, end: int) -> Sliced:
    """A record; of a large one nothing is read but what is looked at."""
    return data.part(begin, end) if isinstance(data, HeadView) and end - begin > _SMALL else data[begin:end]


def _features(records: Sequence[Sliced]) -> dict[str, str]:
    """Names and types of the features of some Examples. ValueError if they are no Examples, or disagree."""
    kinds: dict[str, int] = {}
    lists: set[str] = set()
    for record in records:
        for key, found in split_example(record).items():
            name = key.decode()
            if found[2] > found[1] and kinds.setdefault(name, found[0]) != found[0]:
                raise ValueError(f"feature {name!r} is of two types")
            if found[0] != SEQUENCES and not has_one_value(record, *found):
                lists.add(name)
    if records and not kinds:
        raise ValueError("no features")
    return {name: _WORDS.get(kind, _SEQUENCE) + "[]" * (name in lists) for name, kind in sorted(kinds.items())}


class TFRecordEncoder(PackedEncoder):
    """Samples to records.

    ``raw``: records are the bytes of the one column. ConfigError for several columns where records are raw,
    MissingPackageError if no package for the checksums is installed.
    """

    format = "tfrecord"

    def __init__(self, columns: Mapping[str, str], settings: Mapping[str, Any], raw: bool = False) -> None:
        if raw and len(columns) > 1:
            raise ConfigError(f"raw records hold one column, not {', '.join(sorted(columns))}")
        super().__init__(columns, {**settings, "raw": True} if raw else settings)
        self._raw = raw
        self._crc = crc32c_function()
        # Integers are at most two bytes longer than in a record, which has them in eight.
        values = sum(
            2 * int(np.prod(fixed_kind(encoding)[1], dtype=np.int64)) + 9
            for encoding in self.encodings.values()
            if encoding.size is not None
        )
        names = sum(len(name.encode()) for name in columns)
        self.sample_cost = 4 + _FRAME + (0 if raw else names + values + _TAGS * len(columns))

    def lay_out(self, body: memoryview, ends: Ids) -> tuple[list[BytesLike], Ids | None]:
        slices = self.slices(body, ends)
        parts: list[Iterable[bytes | memoryview]] = []
        for name, encoding in self.encodings.items():
            values: list[bytes | memoryview] = [*slices[name].cut(body)]
            if not self._raw:
                convert = _value_encoder(encoding)
                values = [convert(value) for value in values]
                head = lru_cache(maxsize=4096)(partial(feature_head, name.encode(), feature_kind(encoding)))
                parts.append(map(head, map(len, values)))
            parts.append(values)
        records = [b"".join(cells) for cells in zip(*parts, strict=True)]
        if not self._raw:
            records = [b"\x0a" + encode_varint(len(record)) + record for record in records]
        lengths = np.fromiter(map(len, records), np.int64, len(records))
        heads = np.zeros((len(records), _HEAD), np.uint8)
        heads[:, :8] = lengths.astype("<i8").view(np.uint8).reshape(-1, 8)
        heads[:, 8:] = masked(crc_of_lengths(lengths)).astype("<u4").view(np.uint8).reshape(-1, 4)
        flat, crc = heads.tobytes(), self._crc
        framed = [
            part
            for number, record in enumerate(records)
            for part in (flat[_HEAD * number : _HEAD * (number + 1)], record, mask(crc(record)).to_bytes(4, "little"))
        ]
        return [b"".join(framed)], np.cumsum(lengths + _FRAME)


def _value_encoder(encoding: Encoding) -> Callable[[bytes | memoryview], bytes | memoryview]:
    """A function from a value's bytes to those that an Example has of it, without what comes before them."""
    kind = feature_kind(encoding)
    if kind != INTEGERS:
        return lambda data: data
    dtype, shape = fixed_kind(encoding)
    if shape:
        return lambda data: pack_integers(np.frombuffer(data, dtype))
    signed = dtype.kind == "i"
    return lambda data: encode_varint(int.from_bytes(data, "little", signed=signed) & 0xFFFFFFFFFFFFFFFF)
