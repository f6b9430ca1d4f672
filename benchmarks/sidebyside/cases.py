"""What is measured: the cases, each library's configurations in them, and the lines to reach."""

from __future__ import annotations

from dataclasses import dataclass

TOKEN_ROWS = 204_800  # 0.84 GB; divides by every library's canonical nodes, workers and batches, so nothing is padded
IMAGES = 8_192  # 0.9 GB
QUICK_TOKEN_ROWS = 40_960
QUICK_IMAGES = 2_048

BOX = 5.0  # seconds of an epoch that a slow library gets


@dataclass(frozen=True)
class Entry:
    """One library in one configuration.

    ``data`` names the data set that is read, or written, as ``library-kind-format``. ``usual``: the library
    as it comes, with the defaults that its users have; of stoker, the one that ratios are taken of.
    ``boxed``: too slow for a whole epoch.
    """

    library: str
    variant: str
    label: str
    data: str
    usual: bool = False
    boxed: bool = False


@dataclass(frozen=True)
class Case:
    """One table: the same work, done by every entry. ``unit`` is what a second is measured in."""

    name: str
    title: str
    kind: str
    action: str
    entries: tuple[Entry, ...]
    unit: str = "samples/s"
    shuffle: bool = False
    batch_size: int = 256


def token_readers() -> tuple[Entry, ...]:
    return (
        Entry("stoker", "plain", "StreamingDataset", "stoker-tokens-mds", usual=True),
        Entry("stoker", "override", "a subclass's __getitem__", "stoker-tokens-mds"),
        Entry("mosaicml", "plain", "StreamingDataset", "mosaicml-tokens-ndarray", usual=True, boxed=True),
        Entry("mosaicml", "ahead", "predownload=epoch", "mosaicml-tokens-ndarray"),
        Entry("litdata", "tokens", "TokensLoader", "litdata-tokens-tokens", usual=True),
        Entry("litdata", "tree", "default loader, NumPy leaf", "litdata-tokens-tree"),
        Entry("litdata", "raw", "default loader, bytes leaf", "litdata-tokens-raw"),
        Entry("webdataset", "tar", "WebDataset", "webdataset-tokens-tar", usual=True, boxed=True),
    )


def image_readers() -> tuple[Entry, ...]:
    return (
        Entry("stoker", "plain", "StreamingDataset", "stoker-images-mds", usual=True),
        Entry("stoker", "views", "ReadOptions(views=True)", "stoker-images-mds"),
        Entry("mosaicml", "plain", "StreamingDataset", "mosaicml-images-mds", usual=True, boxed=True),
        Entry("mosaicml", "ahead", "predownload=epoch", "mosaicml-images-mds"),
        Entry("litdata", "tree", "StreamingDataset", "litdata-images-tree", usual=True),
        Entry("litdata", "item", "batch_decode=0", "litdata-images-tree"),
        Entry("litdata", "all", 'batch_decode="all"', "litdata-images-tree"),
        Entry("webdataset", "tar", "WebDataset", "webdataset-images-tar", usual=True, boxed=True),
    )


CASES: tuple[Case, ...] = (
    Case(
        "write-tokens",
        "(e) writing tokens: rows of 4 KiB, uncompressed, shards of 64 MiB",
        "tokens",
        "write",
        (
            Entry("stoker", "write_batch", "MDSWriter.write_batch", "stoker-tokens-mds", usual=True),
            Entry("stoker", "write", "MDSWriter.write", "stoker-tokens-row"),
            Entry("mosaicml", "ndarray", "MDSWriter, ndarray column", "mosaicml-tokens-ndarray", usual=True),
            Entry("mosaicml", "bytes", "MDSWriter, bytes column", "mosaicml-tokens-bytes"),
            Entry("litdata", "tokens", "Cache, TokensLoader", "litdata-tokens-tokens", usual=True),
            Entry("litdata", "tree", "Cache, NumPy leaf", "litdata-tokens-tree"),
            Entry("litdata", "raw", "Cache, bytes leaf", "litdata-tokens-raw"),
            Entry("webdataset", "tar", "ShardWriter", "webdataset-tokens-tar", usual=True),
            Entry("numpy", "shards", "np.save, the bound", "numpy-tokens-shards"),
        ),
        unit="MB/s",
    ),
    Case(
        "tokens-shuffled",
        "(a) tokens: single samples in one process, shuffled",
        "tokens",
        "read",
        token_readers(),
        shuffle=True,
    ),
    Case(
        "tokens-in-order",
        "(a) tokens: single samples in one process, in order",
        "tokens",
        "read",
        token_readers(),
    ),
    Case(
        "tokens-by-id",
        "(f) tokens: dataset[i] of random ids in one process",
        "tokens",
        "ids",
        (
            Entry("stoker", "plain", "dataset[i]", "stoker-tokens-mds", usual=True),
            Entry("stoker", "override", "a subclass's __getitem__", "stoker-tokens-mds"),
            Entry("mosaicml", "plain", "dataset[i]", "mosaicml-tokens-ndarray", usual=True, boxed=True),
        ),
    ),
    Case(
        "tokens-loader",
        "(c) tokens: batches of 256 through a DataLoader with 2 workers, shuffled",
        "tokens",
        "load",
        (
            Entry("stoker", "torch", "torch DataLoader", "stoker-tokens-mds", usual=True),
            Entry("stoker", "own", "its StreamingDataLoader", "stoker-tokens-mds"),
            Entry("stoker", "columnar", "its StreamingDataLoader, columnar", "stoker-tokens-mds"),
            Entry("mosaicml", "plain", "torch DataLoader", "mosaicml-tokens-ndarray", usual=True),
            Entry("mosaicml", "plain-own", "its StreamingDataLoader", "mosaicml-tokens-ndarray"),
            Entry("mosaicml", "fast", "torch DataLoader, fast collate", "mosaicml-tokens-ndarray"),
            Entry("mosaicml", "ahead", "the same, predownload=epoch", "mosaicml-tokens-ndarray"),
            Entry("litdata", "tokens", "torch DataLoader, TokensLoader", "litdata-tokens-tokens", usual=True),
            Entry("litdata", "tokens-own", "its StreamingDataLoader, TokensLoader", "litdata-tokens-tokens"),
            Entry("litdata", "raw-own", "its StreamingDataLoader, bytes leaf, fast collate", "litdata-tokens-raw"),
            Entry("webdataset", "torch", "torch DataLoader, fast collate", "webdataset-tokens-tar", usual=True),
            Entry("webdataset", "own", "WebLoader, batched in the worker", "webdataset-tokens-tar"),
            Entry("numpy", "rows", "bound: rows of a mapped .npy, torch DataLoader", "numpy-tokens-shards"),
            Entry("numpy", "batches", "bound: whole batches of it, torch DataLoader", "numpy-tokens-shards"),
        ),
        shuffle=True,
    ),
    Case(
        "tokens-columns",
        "(d) tokens: columnar batches of 1024 in one process, shuffled",
        "tokens",
        "columns",
        (
            Entry("stoker", "columns", "batches(1024)", "stoker-tokens-mds", usual=True),
            Entry("numpy", "shards", "bound: rows of mapped .npy shards", "numpy-tokens-shards"),
            Entry("numpy", "file", "bound: take from one mapped .npy", "numpy-tokens-shards"),
        ),
        shuffle=True,
        batch_size=1024,
    ),
    Case(
        "write-images",
        "(e) writing images: 110 KB of bytes and a label, uncompressed, shards of 64 MiB",
        "images",
        "write",
        (
            Entry("stoker", "write_batch", "MDSWriter.write_batch", "stoker-images-mds", usual=True),
            Entry("stoker", "write", "MDSWriter.write", "stoker-images-row"),
            Entry("mosaicml", "mds", "MDSWriter", "mosaicml-images-mds", usual=True),
            Entry("litdata", "tree", "Cache", "litdata-images-tree", usual=True),
            Entry("webdataset", "tar", "ShardWriter", "webdataset-images-tar", usual=True),
        ),
        unit="MB/s",
    ),
    Case(
        "images-shuffled",
        "(b) images: raw bytes and label, single samples in one process, shuffled",
        "images",
        "read",
        image_readers(),
        shuffle=True,
    ),
    Case(
        "images-in-order",
        "(b) images: raw bytes and label, single samples in one process, in order",
        "images",
        "read",
        image_readers(),
    ),
)


@dataclass(frozen=True)
class Target:
    """A line to reach: ``least`` times the peer, or ``least`` a second where there is no peer.

    Against ``mosaicml`` it holds for its usual configuration, which the line was drawn from, and the report
    gives the ratio to its fastest as well; against ``litdata`` for its fastest.
    """

    case: str
    what: str
    least: float
    peer: str = ""
    pick: str = "fastest"
    variant: str = ""  # of stoker; empty: its usual one


TARGETS: tuple[Target, ...] = (
    Target("tokens-shuffled", "tokens, shuffled", 2, "litdata"),
    Target("tokens-in-order", "tokens, in order", 2, "litdata"),
    Target("tokens-shuffled", "tokens, shuffled", 40, "mosaicml", "usual"),
    Target("tokens-in-order", "tokens, in order", 40, "mosaicml", "usual"),
    Target("images-shuffled", "images, shuffled", 1.5, "litdata"),
    Target("images-in-order", "images, in order", 1.5, "litdata"),
    Target("images-shuffled", "images as views, as litdata's are, shuffled", 1.5, "litdata", variant="views"),
    Target("images-in-order", "images as views, as litdata's are, in order", 1.5, "litdata", variant="views"),
    Target("tokens-shuffled", "tokens through a subclass's __getitem__, shuffled", 1e5, variant="override"),
    Target("tokens-by-id", "tokens, dataset[i] of random ids", 2e5),
    Target("tokens-columns", "columnar tokens, shuffled", 1e6),
    Target("tokens-loader", "tokens, torch DataLoader, 2 workers", 10, "mosaicml", "usual"),
    Target("tokens-loader", "tokens, columnar, 2 workers", 10, "mosaicml", "usual", "columnar"),
    Target("write-tokens", "writing tokens", 4, "mosaicml", "usual"),
    Target("write-images", "writing images", 2, "mosaicml", "usual"),
)
