"""An object store as in ``slow_store.py``, of which each 6th request takes 25 times as long as the others."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from slow_store import Connection, serve

_EACH, _TIMES = 6, 25


class JitteryConnection(Connection):
    """Answers some requests late."""

    answered = 0

    def data_received(self, data: bytes) -> None:
        JitteryConnection.answered += 1
        usual = self._delay
        if JitteryConnection.answered % _EACH == 0:
            self._delay *= _TIMES
        super().data_received(data)
        self._delay = usual


if __name__ == "__main__":
    folder, delay = Path(sys.argv[1]), float(sys.argv[2])
    held = {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }
    asyncio.run(serve(lambda: JitteryConnection(held, delay)))
