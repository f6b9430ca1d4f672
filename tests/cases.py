"""Samples of every encoding, decoded values in words, and comparisons; shared with the peer, so nothing of stoker here."""

from __future__ import annotations

import io
import operator
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import numpy as np
from PIL import Image

OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
"""Comparisons of a column with a value, and what Python says of them."""


def describe(value: Any) -> Any:
    """A value's type and content, comparable between two implementations and two versions of NumPy and Pillow."""
    if isinstance(value, Image.Image):
        return ("image", value.mode, value.size, value.tobytes())
    if isinstance(value, np.ndarray):
        return ("array", value.dtype.name, value.shape, value.tobytes())
    if isinstance(value, np.generic):
        return ("scalar", value.dtype.name, value.tobytes())
    if isinstance(value, dict):
        return {key: describe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if isinstance(value, float) and value != value:
        return ("float", "nan")
    return (type(value).__name__, repr(value))


def image(seed: int, mode: str = "RGB", size: tuple[int, int] = (9, 5)) -> Image.Image:
    """Noise of some mode."""
    rng = np.random.default_rng(seed)
    bands = {"L": 1, "RGB": 3, "RGBA": 4, "CMYK": 4}[mode]
    data = rng.integers(0, 256, size[0] * size[1] * bands, dtype=np.uint8).tobytes()
    return Image.frombytes(mode, size, data)


def encoded(kind: str, seed: int) -> bytes:
    """The bytes of an image file."""
    out = io.BytesIO()
    image(seed).save(out, format=kind)
    return out.getvalue()


def stable_samples(count: int = 7) -> dict[str, tuple[dict[str, str], list[dict[str, Any]]]]:
    """Name to (columns, samples), for all encodings whose bytes no image library decides."""
    rng = np.random.default_rng(5)
    cases: dict[str, tuple[dict[str, str], list[dict[str, Any]]]] = {}

    def add(name: str, encoding: str, values: list[Any]) -> None:
        cases[name] = ({"x": encoding}, [{"x": value} for value in values])

    add("bytes", "bytes", [b"", b"\0\xff", b"abc" * 50])
    add("str", "str", ["", "plain", "Grüße, 世界", "\0"])
    add("int", "int", [0, -1, 2**63 - 1, -(2**63), True])
    for sign in ("u", ""):
        for bits in (8, 16, 32, 64):
            info = np.iinfo(f"{sign}int{bits}")
            add(
                f"{sign}int{bits}", f"{sign}int{bits}", [0, 1, info.min, info.max, np.dtype(f"{sign}int{bits}").type(7)]
            )
    for bits in (16, 32, 64):
        kind = np.dtype(f"float{bits}").type
        values = [0.0, -0.0, 1.5, 1 / 3, float("inf"), float("-inf"), float("nan"), kind(2.7), 3, 6.1e-5, 5e-8]
        add(f"float{bits}", f"float{bits}", values)
    add("str_int", "str_int", [0, -12, 10**60])
    add("str_float", "str_float", [0.1, -0.0, 1e300, float("nan"), float("inf"), 1e-17])
    add("str_decimal", "str_decimal", [Decimal("1.10"), Decimal("-0"), Decimal("1E+400"), Decimal("NaN")])
    add("json", "json", [None, {"b": [1, 2.5, "é"], "a": True}, [float("nan")], "x", np.arange(3)])
    add("pkl", "pkl", [{"a": (1, 2)}, [b"x", None], "text"])
    arrays: list[Any] = []
    for name in (
        "uint8",
        "int8",
        "uint16",
        "int16",
        "float16",
        "uint32",
        "int32",
        "float32",
        "uint64",
        "int64",
        "float64",
    ):
        arrays.append(rng.integers(0, 100, (2, 3)).astype(name))
        add(f"ndarray:{name}", f"ndarray:{name}", [arrays[-1], arrays[-1][:, :1], arrays[-1].reshape(-1)])
        add(f"ndarray:{name}:2,3", f"ndarray:{name}:2,3", [arrays[-1], arrays[-1] * 0])
    arrays += [np.zeros(256, np.uint8), np.zeros((1, 65536), np.int8), np.ones((1,) * 20), np.arange(6).reshape(2, 3).T]
    add("ndarray", "ndarray", arrays)
    add("pil", "pil", [image(1), image(2, "L"), image(3, "RGBA"), image(4, "CMYK"), Image.new("1", (9, 3), 1)])
    add("pil_empty", "pil", [Image.new("I", (2, 2), 70000), Image.new("F", (2, 1), 0.5), Image.new("P", (3, 3), 7)])
    add("list[pil]", "list[pil]", [[], [image(1)], [image(2), image(3, "L")]])
    cases["many"] = (
        {"tokens": "ndarray:uint16:4", "text": "str", "label": "int", "blob": "bytes", "A": "float32"},
        [
            {
                "tokens": rng.integers(0, 60000, 4, dtype=np.uint16),
                "text": "x" * int(rng.integers(0, 30)),
                "label": int(rng.integers(-5, 5)),
                "blob": rng.bytes(int(rng.integers(0, 40))),
                "A": float(rng.random()),
                "ignored": object,
            }
            for _ in range(40 * count // 7)
        ],
    )
    return cases


def image_samples() -> dict[str, tuple[dict[str, str], list[dict[str, Any]]]]:
    """Name to (columns, samples), for encodings whose bytes depend on the version of the image library."""
    cases: dict[str, tuple[dict[str, str], list[dict[str, Any]]]] = {}
    cases["jpeg"] = ({"x": "jpeg"}, [{"x": image(1)}, {"x": image(2, "L")}, {"x": encoded("jpeg", 3)}])
    cases["png"] = ({"x": "png"}, [{"x": image(1)}, {"x": image(2, "RGBA")}, {"x": encoded("png", 3)}])
    cases["list[jpeg]"] = ({"x": "list[jpeg]"}, [{"x": []}, {"x": [image(1), image(2)]}])
    cases["list[png]"] = ({"x": "list[png]"}, [{"x": [image(1, "RGBA")]}, {"x": [image(1), image(2)]}])
    for name in ("jpeg_array", "jpegarray"):
        cases[name] = ({"x": name}, [{"x": [encoded("jpeg", 1)]}, {"x": [encoded("jpeg", 2), encoded("jpeg", 3)]}])
    return cases


def text_samples() -> dict[str, tuple[str, dict[str, str], dict[str, Any], list[dict[str, Any]]]]:
    """Name to (format, columns, options of the writer, samples), for the formats of text."""
    columns = {"name": "str", "count": "int", "Score": "float"}
    samples = [
        {"name": text, "count": number, "Score": score}
        for text, number, score in [
            ("", 0, 0.1),
            ("Grüße", -5, float("inf")),
            ("tail", 10**20, 1e300),
            ("q\"uo'te", 7, -0.0),
            ("x" * 30, 1, 2.0),
        ]
    ]
    return {
        "json": ("json", columns, {}, [*samples, {"name": "a\nb\t,|", "count": 1, "Score": 1.0}]),
        "json_crlf": ("json", columns, {"newline": "\r\n"}, samples),
        "csv": ("csv", columns, {}, samples),
        "tsv": ("tsv", columns, {"newline": "\r\n"}, samples),
        "xsv": ("xsv", columns, {"separator": "|"}, samples),
        "xsv_long": ("xsv", columns, {"separator": "::", "newline": "\n\n"}, samples),
    }
