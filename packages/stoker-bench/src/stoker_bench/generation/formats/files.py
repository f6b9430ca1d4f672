"""A file a sample: images, or bytes of any other kind."""

from __future__ import annotations

from collections.abc import Iterator

from stoker_bench.generation.content import FileContent
from stoker_bench.generation.formats.base import GeneratedLayout
from stoker_bench.generation.ragged import cells, sizes
from stoker_bench.generation.segments import Segment


class FileLayout(GeneratedLayout):
    """The bytes of one value."""

    def size(self, number: int) -> int:
        return int(sizes(FileContent(self.spec, number), 0, 1)[0])

    def segments(self, number: int) -> Iterator[Segment]:
        ((cell,),) = cells(FileContent(self.spec, number), 1)
        yield from cell.segments
