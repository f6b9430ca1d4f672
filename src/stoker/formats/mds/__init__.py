"""MDS v2, the shard format of MosaicML Streaming, byte for byte."""
