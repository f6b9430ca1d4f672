"""Fine-tune a language model on conversations mixed with plain text, and resume on another number of processes.

python examples/finetune_chats.py out
torchrun --nproc-per-node 2 examples/finetune_chats.py out --stop-after 20
torchrun --nproc-per-node 3 examples/finetune_chats.py out --resume
"""

import argparse
import json
import re
from itertools import islice
from pathlib import Path

import torch
from accelerate import Accelerator
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from demo_text import standard_library, train_tokenizer
from stoker import StreamingDataset, StreamingParquetLoader
from stoker.tokens import ChatTokenizer, DatasetSource
from stoker.writers import JSONWriter

TURNS = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
TEMPLATE = TURNS + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


def write(out: Path) -> None:
    """Conversations, plain text and a tokenizer of Python's standard library: put your own in their place."""
    files = standard_library(400_000)
    bare = train_tokenizer(files, 1000, lambda _: None)
    ends = {"eos_token": "<|im_end|>", "pad_token": "<|pad|>"}
    PreTrainedTokenizerFast(tokenizer_object=bare, chat_template=TEMPLATE, **ends).save_pretrained(out / "tokenizer")
    with JSONWriter({"text": "str"}, out / "text") as text, JSONWriter({"messages": "str"}, out / "chats") as chats:
        for file in files:
            text.write({"text": file.text})
            for asked, said in re.findall(r'    (def .*)\n +"""(.+)', file.text):
                turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]
                chats.write({"messages": json.dumps(turns)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--stop-after", type=int, help="steps")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint")
    options = parser.parse_args()
    accelerator = Accelerator(cpu=True)
    if accelerator.is_main_process and not options.resume:
        write(options.out)
    accelerator.wait_for_everyone()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(options.out / "tokenizer")
    chats = DatasetSource(StreamingDataset(options.out / "chats"), "messages", tokenizer=ChatTokenizer(tokenizer))
    text = DatasetSource(StreamingDataset(options.out / "text"), "text", tokenizer=tokenizer.backend_tokenizer)
    packed = {
        "layout": "pack",
        "pad_id": tokenizer.pad_token_id,
        "labels": "unshifted",
        "weights": {"chats": 0.75, "text": 0.25},
    }
    loader = StreamingParquetLoader({"chats": chats, "text": text}, batch_size=4, seq_len=256, **packed)
    size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **size))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    if options.resume:
        saved = torch.load(options.out / "checkpoint.pt", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
    model, optimizer = accelerator.prepare(model, optimizer)
    steps = 0
    for batch in islice(loader, options.stop_after):
        loss = model(**batch.torch("input_ids", "labels", "position_ids")).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
    if accelerator.is_main_process:
        weights = {"model": accelerator.unwrap_model(model).state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**weights, "loader": loader.state_dict()}, options.out / "checkpoint.pt")
    print(f"rank {accelerator.process_index}: {steps} steps, loss {loss.item():.2f}")


if __name__ == "__main__":
    main()
