"""Functions for ``dataset.map``: columns of encoded videos or sounds, of any format, as handles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from stoker.arguments import checked, must_know
from stoker.errors import ConfigError
from stoker.formats.media.audio import Audio
from stoker.formats.media.source import HANDLED
from stoker.formats.media.video import Video

Handle: TypeAlias = Video | Audio

HANDLES: Final[Mapping[str, type[Handle]]] = dict(zip(HANDLED, (Video, Audio), strict=True))
"""Classes of handles by what the setting ``media`` of a format calls them."""


@dataclass(frozen=True, slots=True)
class MediaColumns:
    """A function of samples: columns of encoded bytes become handles. Picklable.

    ``handle``: the class of the handles. ``columns``: names of the columns.
    """

    handle: type[Video | Audio]
    columns: tuple[str, ...]

    def __call__(self, sample: Any) -> dict[str, Any]:
        """A sample with handles. ConfigError if it lacks a column, or that is not of bytes."""
        if not isinstance(sample, Mapping):
            raise ConfigError(f"{self!r} needs samples that are dicts, not {type(sample).__name__}")
        made = dict(sample)
        must_know("column", self.columns, made)
        for name in self.columns:
            made[name] = self._handle(made[name], name)
        return made

    def _handle(self, value: Any, name: str) -> Any:
        if value is None or isinstance(value, self.handle):
            return value
        if isinstance(value, dict) and "bytes" in value:  # as Hugging Face stores files
            return self._handle(value["bytes"], name)
        if isinstance(value, bytes | bytearray | memoryview):
            return self.handle(value)
        if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 1:
            return self.handle(value.data)
        if isinstance(value, list | tuple):
            return [self._handle(one, name) for one in value]
        raise ConfigError(
            f"column {name!r} is {type(value).__name__}, and {self.handle.__name__} is made of the bytes of a file"
        )

    @property
    def step_name(self) -> str:
        """The name of a step of a chain: that of another column is another one."""
        return repr(self)

    def __repr__(self) -> str:
        return f"as_{self.handle.__name__.lower()}({(self.columns[0] if len(self.columns) == 1 else list(self.columns))!r})"


@checked
def as_video(columns: str | Sequence[str]) -> MediaColumns:
    """A function for ``dataset.map`` by which columns of encoded videos are :class:`~stoker.formats.media.video.Video`.

    Columns of bytes may come from any format; lists of them become lists of handles, and ``None`` stays.

    >>> as_video("mp4")({"mp4": None, "json": {}})
    {'mp4': None, 'json': {}}

    Args:
        columns: name of the column, or of several.

    Raises:
        ConfigError: no column is named.
    """
    return _media_columns(Video, columns)


@checked
def as_audio(columns: str | Sequence[str]) -> MediaColumns:
    """A function for ``dataset.map`` by which columns of encoded sounds are :class:`~stoker.formats.media.audio.Audio`.

    As :func:`as_video` for videos.

    >>> as_audio("flac")({"flac": None, "txt": "hello"})
    {'flac': None, 'txt': 'hello'}

    Args:
        columns: name of the column, or of several.

    Raises:
        ConfigError: no column is named.
    """
    return _media_columns(Audio, columns)


def _media_columns(handle: type[Video | Audio], columns: str | Sequence[str]) -> MediaColumns:
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    if not names or not all(names):
        raise ConfigError(f"as_{handle.__name__.lower()}() names no column: name those that hold encoded bytes")
    return MediaColumns(handle, names)
