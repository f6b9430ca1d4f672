"""Tokenizing one file of text: stoker beside bare ``tokenizers``, on all processors.

    python benchmarks/tokenize_file.py                # 200 MB of JSON lines, three rounds, about 3 minutes on two processors
    python benchmarks/tokenize_file.py --megabytes 1000

The text is made up: words whose frequency falls as in language, which a BPE tokenizer of 32,000 entries has learnt. Bare
``tokenizers`` gets texts that are parsed already, and writes nothing; stoker reads JSON lines and writes Parquet. The two
alternate, each in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from sidebyside.machine import machine

_BARE = """
import json, sys, time
from tokenizers import Tokenizer
if __name__ == "__main__":
    tokenizer = Tokenizer.from_file(sys.argv[1] + "/tokenizer.json")
    texts = [json.loads(line)["text"] for line in open(sys.argv[1] + "/texts.jsonl")]
    begin, tokens = time.perf_counter(), 0
    for at in range(0, len(texts), 2000):
        tokens += sum(map(len, tokenizer.encode_batch_fast(texts[at : at + 2000], add_special_tokens=False)))
    print(tokens / (time.perf_counter() - begin))
"""
_STOKER = """
import sys
from stoker import tokenize
if __name__ == "__main__":
    done = tokenize(sys.argv[1] + "/texts.jsonl", sys.argv[1] + "/out", sys.argv[1] + "/tokenizer.json", exist_ok=True)
    print(done.tokens / done.seconds)
"""


def make(folder: Path, size: int) -> None:
    """Text and a tokenizer that was trained on some of it."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    chosen = random.Random(1)
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    words = ["".join(chosen.choices(letters, k=chosen.randint(2, 10))) for _ in range(30_000)]
    weights = [1 / (rank + 5) for rank in range(len(words))]
    some: list[str] = []
    with (folder / "texts.jsonl").open("w") as lines:
        while size > 0:
            text = " ".join(chosen.choices(words, weights, k=chosen.randint(50, 800)))
            some += [text] * (len(some) < 2000)
            size -= lines.write(json.dumps({"text": text}) + "\n")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=32_000, show_progress=False)
    tokenizer.train_from_iterator(some, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))


def main() -> None:
    """Print tokens a second of both, and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), chosen.megabytes * 1_000_000)
        print("  ".join(f"{name}: {value}" for name, value in machine(Path(folder)).items()))
        rates: dict[str, list[float]] = {"bare": [], "stoker": []}
        for _ in range(chosen.rounds):
            for name, script in (("bare", _BARE), ("stoker", _STOKER)):
                path = Path(folder) / f"run_{name}.py"
                path.write_text(script)
                done = subprocess.run(
                    [sys.executable, str(path), folder], stdout=subprocess.PIPE, text=True, check=True
                )
                rates[name].append(float(done.stdout.split()[-1]))
        ratios = [mine / bare for mine, bare in zip(rates["stoker"], rates["bare"], strict=True)]
        for name, found in rates.items():
            print(f"{name:<8} {statistics.median(found) / 1e6:.2f} M tokens/s")
        print(f"ratio    {statistics.median(ratios):.2f} (from {min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
