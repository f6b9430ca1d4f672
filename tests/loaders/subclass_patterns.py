"""Subclasses of a StreamingDataset in the shapes that programs for mosaicml-streaming have; nothing of stoker here.

The same classes are made over stoker's StreamingDataset and, in the environment of its own, over mosaicml-streaming's. They
follow the shapes of LLM Foundry's text and finetuning datasets, of diffusion's LAION dataset, and of mosaicml-streaming's own
vision, text and video datasets: what they override and call, and which attributes they set when.
"""

# mypy: allow-subclassing-any, allow-untyped-calls
from __future__ import annotations

import io
import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset


def letters(text: str, length: int) -> list[int]:
    """A tokenizer: a number for each letter, padded."""
    return ([ord(letter) for letter in text] + [0] * length)[:length]


def samples(count: int) -> list[dict[str, Any]]:
    """Samples with a column for every pattern."""
    return [
        {
            "text": f"sample number {number}",
            "tokens": np.arange(number, number + 6, dtype=np.int64).tobytes(),
            "input_ids": np.arange(number, number + 5, dtype=np.uint32),
            "labels": np.arange(number, number + 5, dtype=np.uint32)[::-1].copy(),
            "picture": picture(number),
            "y": number % 7,
            "latents": np.full(8, number, np.float16).tobytes(),
            "path": f"clip-{number % 3}.bin",
        }
        for number in range(count)
    ]


COLUMNS = {
    "text": "str",
    "tokens": "bytes",
    "input_ids": "ndarray:uint32",
    "labels": "ndarray:uint32:5",
    "picture": "bytes",
    "y": "int",
    "latents": "bytes",
    "path": "str",
}


def picture(number: int) -> bytes:
    """A small PNG."""
    out = io.BytesIO()
    Image.new("L" if number % 2 else "RGB", (3, 2), number if number % 2 else (number, 1, 2)).save(out, "png")
    return out.getvalue()


def words(value: Any) -> Any:
    """A value as plain Python, with its types, so that values of two processes can be compared."""
    if isinstance(value, torch.Tensor):
        return "tensor", str(value.dtype), value.tolist()
    if isinstance(value, np.ndarray):
        return "array", str(value.dtype), value.tolist()
    if isinstance(value, Image.Image):
        return "image", value.mode, value.size, value.tobytes()
    if isinstance(value, dict):
        return {key: words(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value).__name__, [words(one) for one in value]
    return type(value).__name__, value


def text_on_the_fly(base: Any) -> Any:
    class Text(base):
        def __init__(self, tokenizer: Any, max_seq_len: int, local: str, shuffle: bool = False, **kwargs: Any) -> None:
            if kwargs.pop("group_method", None) is not None:
                raise NotImplementedError
            super().__init__(local=local, shuffle=shuffle, **kwargs)
            self.tokenizer = tokenizer
            self.max_seq_len = max_seq_len

        def _tokenize(self, sample: Any) -> Any:
            return {"input_ids": self.tokenizer(sample["text"], self.max_seq_len)}

        def __getitem__(self, idx: int) -> Any:
            sample = super().__getitem__(idx)
            return self._tokenize(sample)

    return lambda **options: Text(letters, 12, **options)


def text_of_tokens(base: Any) -> Any:
    class Tokens(base):
        def __init__(self, *, token_encoding_type: str = "int64", max_seq_len: int = 4, **kwargs: Any) -> None:
            self.token_encoding_type = token_encoding_type
            super().__init__(stream_name="stream", stream_config={"repeat": 2.0}, **kwargs)
            self.max_seq_len = max_seq_len

        def __getitem__(self, idx: int) -> Any:
            sample = super().__getitem__(idx)
            kind = getattr(np, self.token_encoding_type)
            return torch.from_numpy(np.frombuffer(sample["tokens"], dtype=kind)[: self.max_seq_len].copy())

    return Tokens


def finetuning_of_bytes(base: Any) -> Any:
    class Finetuning(base):
        def __init__(self, local: str, max_seq_len: int = 3, **kwargs: Any) -> None:
            super().__init__(local=local, **kwargs)
            self.max_seq_len = max_seq_len

        def __getitem__(self, idx: int) -> Any:
            sample = super().__getitem__(idx)
            sample["tokens"] = np.frombuffer(sample["tokens"], dtype=np.int64)[: self.max_seq_len].tolist().copy()
            del sample["latents"]
            return sample

    return Finetuning


def finetuning_of_turns(base: Any) -> Any:
    class Turns(base):
        def __init__(self, packing_ratio: float | None = None, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.packing_ratio = packing_ratio

        def __getitem__(self, idx: int) -> Any:
            sample = super().__getitem__(idx)
            if isinstance(sample["input_ids"], bytes):
                raise TypeError
            sample["input_ids"] = sample["input_ids"][:4].tolist().copy()
            sample["labels"] = sample["labels"][:4].tolist().copy()
            return {"turns": [sample]}

        def state_dict(self, num_samples: int, from_beginning: bool) -> Any:
            if self.packing_ratio is not None:
                num_samples = int(self.packing_ratio * num_samples)
            return super().state_dict(num_samples=num_samples, from_beginning=from_beginning)

    return Turns


def captioned_images(base: Any) -> Any:
    class Captioned(base):
        def __init__(self, transform: Callable[[Any], Any] | None = None, drop: float = 0.5, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.transform = transform
            self.drop = drop

        def __getitem__(self, index: int) -> Any:
            sample = super().__getitem__(index)
            image: Any = Image.open(io.BytesIO(sample["picture"]))
            if image.mode != "RGB":
                image = image.convert("RGB")
            if self.transform is not None:
                image = self.transform(image)
            caption = "" if random.Random(int(index)).random() < self.drop else sample["text"]
            out = {"image": image, "captions": torch.tensor(letters(caption, 8))}
            if "latents" in sample:
                latents = np.frombuffer(sample["latents"], dtype=np.float16).copy()
                out["latents"] = torch.from_numpy(latents).reshape(2, 4)
            return out

    return lambda **options: Captioned(transform=lambda image: image.resize((2, 2)), **options)


class Visual(Dataset[Any]):
    """In the place of torchvision's VisionDataset: a map-style dataset without a constructor of its own."""

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError

    def __repr__(self) -> str:
        return "visual"


def vision(base: Any) -> Any:
    class Vision(base, Visual):
        def __init__(self, *, transform: Any = None, target_transform: Any = None, **kwargs: Any) -> None:
            base.__init__(self, **kwargs)
            self.transform = transform
            self.target_transform = target_transform
            self.transforms = lambda x, y: (x if transform is None else transform(x), target_transform(y))

        def get_item(self, idx: int) -> Any:
            obj = super().get_item(idx)
            return self.transforms(Image.open(io.BytesIO(obj["picture"])), obj["y"])

    return lambda **options: Vision(target_transform=lambda y: -y, **options)


def detection(base: Any) -> Any:
    class Detection(base):
        def __init__(self, *, local: str, split: str | None = None, batch_size: int = 1, **kwargs: Any) -> None:
            super().__init__(local=local, split=split, batch_size=batch_size, **kwargs)
            self.boxes = 2

        def get_item(self, idx: int) -> Any:
            x = super().get_item(idx)
            image = Image.open(io.BytesIO(x["picture"])).convert("RGB")
            boxes = torch.tensor([[x["y"]] * 4] * self.boxes)
            return image, int(idx), image.size[::-1], boxes, {"id": torch.tensor(x["y"])}

    return Detection


def outside(base: Any) -> Any:
    class Outside(base):
        """Has a part of each sample in files of its own, and an attribute with the name of an argument."""

        def __init__(self, *, extra_local: str, download_timeout: float = 60, **kwargs: Any) -> None:
            super().__init__(download_timeout=download_timeout, **kwargs)
            self.download_timeout = download_timeout
            self.extra_local = extra_local

        def get_item(self, idx: int) -> Any:
            obj = super().get_item(idx)
            with open(os.path.join(self.extra_local, obj["path"]), "rb") as file:
                obj["content"] = file.read()
            return obj

    def make(*, local: str, **options: Any) -> Any:
        extra = os.path.join(os.path.dirname(local), "extra")
        os.makedirs(extra, exist_ok=True)
        for number in range(3):
            with open(os.path.join(extra, f"clip-{number}.bin"), "wb") as file:
                file.write(bytes([number] * 3))
        return Outside(local=local, extra_local=extra, **options)

    return make


def indexed(base: Any) -> Any:
    class Indexed(base):
        """Tells where each sample is, and looks at the one after it."""

        def __getitem__(self, index: int) -> Any:
            index = int(index)
            other = super().__getitem__((index + 1) % self.num_samples)
            shard = int(np.searchsorted(self.sample_offset_per_shard, index, side="right")) - 1
            stream = int(self.stream_per_shard[shard])
            return super().__getitem__(index)["text"], other["text"], index, stream, int(self.streams[stream].choose)

    return Indexed


def chained(base: Any) -> Any:
    class First(base):
        def __init__(self, *args: Any, factor: int, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.factor = factor
            self.shuffle = kwargs["shuffle"]

        def __getitem__(self, at: Any) -> Any:
            return {"y": self.factor * super().__getitem__(at)["y"], "size": self.size}

    class Second(First):
        def __iter__(self) -> Any:
            for number, sample in enumerate(super().__iter__()):
                yield {**sample, "number": number}

    return lambda **options: Second(factor=3, **options)


PATTERNS: dict[str, Callable[[Any], Any]] = {
    made.__name__: made
    for made in (
        text_on_the_fly,
        text_of_tokens,
        finetuning_of_bytes,
        finetuning_of_turns,
        captioned_images,
        vision,
        detection,
        outside,
        indexed,
        chained,
    )
}


def epochs(base: Any, name: str, local: str, options: dict[str, Any], count: int = 2) -> list[list[Any]]:
    """What a pattern's dataset gives in its first epochs, in words."""
    dataset = PATTERNS[name](base)(local=local, **options)
    return [[words(sample) for sample in dataset] for _ in range(count)]
