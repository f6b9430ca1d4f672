"""The page for users of mosaicml-streaming: its search-and-replace, and code that runs with both."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from patience import PATIENCE
from peer import PYTHON, needs_peer

PAGE = (Path(__file__).parents[1] / "docs" / "from" / "mosaicml.md").read_text()
BOTH = re.findall(r"^<!-- both -->\n```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
THEIRS = """\
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory
"""
OURS = """\
from stoker import MDSWriter, StreamingDataLoader, StreamingDataset
from stoker.util import clean_stale_shared_memory
"""


@pytest.mark.processes
def test_the_search_and_replace_makes_our_imports_of_theirs(tmp_path: Path) -> None:
    (command,) = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "one.py").write_text(THEIRS)
    (tmp_path / "two.py").write_text(
        "from streaming.base import JSONWriter, Stream\n    from streaming.base.stream import Stream\nimport streaming\n"
        "import streaming as stm\nfrom streaming.base.format.mds import MDSWriter\n"
        "from streaming.base.format.mds.encodings import Encoding\nfrom streaming.base.dataset import StreamingDataset\n"
        "streaming.base.util.clean_stale_shared_memory()\nstreaming.base.StreamingDataset\n"
    )
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True, timeout=PATIENCE)
    assert (tmp_path / "one.py").read_text() == OURS
    assert (tmp_path / "two.py").read_text().splitlines() == [
        "from stoker import JSONWriter, Stream",
        "    from stoker import Stream",
        "import stoker as streaming",
        "import stoker as stm",
        "from stoker import MDSWriter",
        "from stoker.formats.mds.encodings import Encoding",
        "from stoker import StreamingDataset",
        "streaming.util.clean_stale_shared_memory()",
        "streaming.StreamingDataset",
    ]
    done = subprocess.run(
        [sys.executable, "-c", (tmp_path / "two.py").read_text().replace("    from", "from")], timeout=PATIENCE
    )
    assert done.returncode == 0
    assert all(OURS in block for block in BOTH)


@needs_peer
@pytest.mark.processes
@pytest.mark.parametrize("block", BOTH)
def test_what_runs_with_both_runs_with_theirs(block: str, tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text(block.replace(OURS, THEIRS))
    done = subprocess.run(
        [PYTHON, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
