"""A file a sample: images, or bytes of any other kind."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.generation.content import FileContent
from stoker.generation.formats.base import GeneratedLayout
from stoker.generation.ragged import cells, sizes
from stoker.generation.segments import Segment


class FileLayout(GeneratedLayout):
    """The bytes of one value."""

    def size(self, number: int) -> int:
        return int(sizes(FileContent(self.spec, number), 0, 1)[0])

    def segments(self, number: int) -> Iterator[Segment]:
        ((cell,),) = cells(FileContent(self.spec, number), 1)
        yield from cell.segments
