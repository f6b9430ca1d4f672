"""Clips of videos by torchcodec, or by the videos of Hugging Face's ``datasets``, in the environment in which ``video.py``
starts it.

Takes a job as JSON: ``way``, ``places`` (paths or URLs of the files), ``draws`` (pairs of a video and its first frame),
``frames`` of a clip, and ``warm``, whether a clip is taken before the time is measured. Prints JSON: processor seconds of all
clips, a hash of each, and versions.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

SETTINGS = {"dimension_order": "NHWC", "num_ffmpeg_threads": 1}
Opened = Callable[[int], Any]
"""Opens a video, by its number, with torchcodec."""


def torchcodec(places: list[str]) -> Opened:
    """A decoder a clip. It trusts the file's index, as ``exact`` reads the whole file first."""
    from torchcodec.decoders import VideoDecoder

    return lambda video: VideoDecoder(places[video], seek_mode="approximate", **SETTINGS)


def datasets(places: list[str]) -> Opened:
    """A dataset of a column of videos, which gives torchcodec's decoders."""
    from datasets import Dataset, Video

    column = Dataset.from_dict({"video": places}).cast_column("video", Video(**SETTINGS))
    return lambda video: column[video]["video"]


def main() -> None:
    """Take the clips."""
    job = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    opened = {"torchcodec": torchcodec, "datasets": datasets}[job["way"]](job["places"])
    count, hashes, used = job["frames"], [], 0.0
    if job["warm"]:
        opened(job["draws"][0][0]).get_frames_in_range(0, count)
    for video, first in job["draws"]:
        begun = time.process_time()
        frames = opened(video).get_frames_in_range(first, first + count).data.numpy()
        used += time.process_time() - begun
        hashes.append(hashlib.sha256(np.ascontiguousarray(frames)).hexdigest())
    versions = {name: version(name) for name in ("torchcodec", "datasets", "torch")}
    print(json.dumps({"seconds": used, "hashes": hashes, "versions": versions}))


if __name__ == "__main__":
    main()
