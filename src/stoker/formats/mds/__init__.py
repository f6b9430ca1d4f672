"""MDS v2, the shard format of MosaicML Streaming, byte for byte."""

from stoker.formats.mds.format import MDSFormat

__all__ = ["MDSFormat"]
