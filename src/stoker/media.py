"""Video and audio: handles that are decoded by clip, and functions that make them of columns. See docs/media.md.

from stoker.media import Video, as_video

dataset = StreamingDataset("s3://bucket/clips").map(as_video("mp4"))
"""

from stoker.formats.media.audio import Audio, AudioFacts
from stoker.formats.media.columns import as_audio, as_video
from stoker.formats.media.video import Video, VideoFacts

__all__ = ["Audio", "AudioFacts", "Video", "VideoFacts", "as_audio", "as_video"]
