"""Bytes of a video or a sound that name files, hosts or ports open none of them: each bound holds alone, too."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from media_files import video_file

from stoker import Audio, Video
from stoker.errors import CorruptDataError, StokerError
from stoker.formats.media import open_decoders

DASH = b"""<?xml version="1.0"?>
<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" profiles="urn:mpeg:dash:profile:isoff-on-demand:2011" type="static"
 mediaPresentationDuration="PT3S"><Period><AdaptationSet mimeType="video/mp4"><Representation id="1" bandwidth="1">
<BaseURL>secret.mp4</BaseURL></Representation></AdaptationSet></Period></MPD>"""
SDP = b"""v=0
o=- 0 0 IN IP4 127.0.0.1
s=x
c=IN IP4 127.0.0.1
t=0 0
m=video 45104 RTP/AVP 96
a=rtpmap:96 H264/90000
"""
HLS = b"""#EXTM3U
#EXT-X-TARGETDURATION:3
#EXTINF:3,
%s
#EXT-X-ENDLIST
"""
NAMING = {
    "concat": b"ffconcat version 1.0\nfile secret.mp4\n",
    "sdp": SDP,
    "hls": HLS % b"secret.mp4",
    "hls of a host": HLS % b"http://127.0.0.1:45104/secret.ts",
    "dash": DASH,
    "vobsub": b"# VobSub index file, v7 (do not modify this line!)\nid: en, index: 0\n"
    b"timestamp: 00:00:00:000, filepos: 000000000\n",
    "rtsp": b"RTSPtext rtsp://127.0.0.1:45104/x",
    "subtitles": b"WEBVTT\n\n00:00.000 --> 00:01.000\nfile secret.mp4\n",
    "image2": b"secret-%03d.png",
}


@pytest.fixture
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A video beside which the reader works."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "secret.mp4"
    path.write_bytes(video_file(frames=30))
    return path


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What FFmpeg asked to open: it asks the callback for files that a file names."""
    asked: list[str] = []
    refuse = open_decoders.OpenStream._refuse

    def note(self: Any, url: str, flags: int, options: Any) -> None:
        asked.append(url)
        refuse(self, url, flags, options)

    monkeypatch.setattr(open_decoders.OpenStream, "_refuse", note)
    return asked


def decoders(data: bytes) -> Iterator[Any]:
    yield lambda: Video(data).clip(0, 1)
    yield lambda: Audio(data).clip(0, 0.1)


@pytest.mark.parametrize("kind", NAMING)
def test_containers_that_name_files_are_not_read(kind: str, secret: Path, opened: list[str]) -> None:
    assert secret.exists()
    for decode in decoders(NAMING[kind]):
        with pytest.raises(CorruptDataError, match=r"can not (open|decode)"):
            decode()
    assert opened == []


@pytest.mark.parametrize("kind", ["concat", "sdp"])
def test_protocols_that_a_demuxer_opens_itself_are_none(
    kind: str, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert secret.exists()
    monkeypatch.setattr(open_decoders, "_BOUND", {"protocol_whitelist": open_decoders._BOUND["protocol_whitelist"]})
    for decode in decoders(NAMING[kind]):
        with pytest.raises(CorruptDataError):
            decode()
        assert f":{45104:X}" not in Path("/proc/self/net/udp").read_text()


def test_data_of_a_mov_that_lie_elsewhere_are_not_opened(
    secret: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = with_reference(video_file(frames=30), str(secret))
    with pytest.raises(StokerError):
        Video(data).clip(0, 1)
    assert opened == []
    follow = {**open_decoders._BOUND, "enable_drefs": "1", "use_absolute_path": "1"}
    monkeypatch.setattr(open_decoders, "_BOUND", follow)
    with pytest.raises(CorruptDataError, match=r"names another file, which is not opened: '.*secret\.mp4'"):
        Video(data).clip(0, 1)


def with_reference(data: bytes, path: str) -> bytes:
    """An MP4 whose only track says that its data are in another file: an alias of a Macintosh, which FFmpeg knows."""
    name = path.encode() + b"\0" * (len(path) % 2)
    alias = bytes(10) + bytes(28) + bytes(12) + bytes(64) + bytes(16) + struct.pack(">HH", 1, 1) + bytes(16)
    alias += struct.pack(">HH", 2, len(name)) + name + struct.pack(">HH", 0xFFFF, 0)
    new = struct.pack(">I4sI", 12 + len(alias), b"alis", 0) + alias
    at = data.index(b"url ", data.index(b"dref")) - 4
    out = bytearray(data[:at] + new + data[at + 12 :])
    for box in (b"moov", b"trak", b"mdia", b"minf", b"dinf", b"dref"):
        start = out.rindex(box, 0, at) - 4
        struct.pack_into(">I", out, start, struct.unpack_from(">I", out, start)[0] + len(new) - 12)
    return bytes(out)
