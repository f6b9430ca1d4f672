"""Preference pairs by the chat templates of TRL: ids are those of its DPO trainer, and only answers are learnt."""

from __future__ import annotations

import json
import re
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast
from trl.data_utils import common_prefix_length
from trl.trainer.dpo_trainer import DataCollatorForPreference

from stoker import StreamingDataLoader, StreamingDataset, World
from stoker.errors import ConfigError, FormatError, SampleError
from stoker.tokens import ChatTokenizer, PreferencePairs
from stoker.tokens import chat as chat_module
from stoker.writers import JSONWriter
from trainers.pytorch.test_chat_templates import CALLS, CASES, NAMES, ONE, TOOLS, TWO, template, tokenizer_for

NO: Final = [{"role": "assistant", "content": "Nobody knows."}]

MARKS_MORE: Final = ("phi3_training", "phi3_5_training", "diffusion_gemma_training")
"""Templates that mark more than each turn once."""


def as_trl(tokenizer: Any, pair: dict[str, Any], tools: Any) -> dict[str, list[int]]:
    """The ids of TRL's DPO trainer."""

    def ids(messages: list[Any], **options: Any) -> list[int]:
        dated = chat_module._dated(tokenizer.chat_template)
        text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, chat_template=dated, **options)
        found: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return found

    prompt = ids(pair["prompt"], add_generation_prompt=True)
    both = {name: ids(pair["prompt"] + pair[name]) for name in ("chosen", "rejected")}
    first = min(common_prefix_length(prompt, one) for one in both.values())
    return {"prompt_ids": prompt[:first], **{f"{name}_ids": one[first:] for name, one in both.items()}}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", NAMES)
def test_ids_are_those_of_trl_and_only_answers_are_learnt(name: str, case: str) -> None:
    tokenizer = tokenizer_for(template(name))
    messages, tools = CASES[case]
    pair = {"prompt": messages[:-1], "chosen": messages[-1:], "rejected": NO}
    try:
        last = ChatTokenizer(tokenizer, turns="last")
        for kind in ("chosen", "rejected"):
            last(pair["prompt"] + pair[kind], tools)
    except (ConfigError, FormatError):
        return  # the last turn alone can not be told
    if name in MARKS_MORE:
        with pytest.raises(ConfigError, match=r"what is learnt of a pair: .* marks \d parts in \d turns"):
            PreferencePairs(ChatTokenizer(tokenizer))
        return
    found = PreferencePairs(ChatTokenizer(tokenizer, tools="tools"))({**pair, "tools": tools})
    theirs = as_trl(tokenizer, pair, tools)
    assert found["prompt_ids"].tolist() == theirs["prompt_ids"]
    for kind, said in (("chosen", messages[-1]["content"]), ("rejected", "Nobody knows.")):
        assert found[f"{kind}_ids"].tolist() == theirs[f"{kind}_ids"]
        learnt = tokenizer.decode(found[f"{kind}_ids"][found[f"{kind}_mask"]].tolist())
        assert said in learnt
        assert not re.search("blue|night|much|brief|Adds", learnt)
        # Another answer than the last one is not learnt.
        assert not (case == "two" and "scatters" in learnt)


def test_a_prompt_that_both_begin_with_is_found() -> None:
    pairs = PreferencePairs(ChatTokenizer(tokenizer_for(template("qwen2_5"))))
    apart = pairs({"prompt": json.dumps(TWO[:3]), "chosen": TWO[3:], "rejected": NO, "score": 3})
    joined = pairs({"chosen": TWO, "rejected": json.dumps([*TWO[:3], *NO]), "score": 3})
    text = PreferencePairs(ChatTokenizer(tokenizer_for(template("qwen2_5"))), prompt=None)
    beside = text({"prompt": "At night?", "chosen": TWO, "rejected": [*TWO[:3], *NO], "score": 3})
    assert beside.pop("prompt") == "At night?"
    assert all(np.array_equal(beside[name], joined[name]) for name in beside | joined)
    assert apart.keys() == joined.keys() == {"score", "prompt_ids", *_answers()}
    assert all(np.array_equal(apart[name], joined[name]) for name in apart)


def _answers() -> list[str]:
    return [f"{name}_{part}" for name in ("chosen", "rejected") for part in ("ids", "mask")]


def test_results_of_tools_in_an_answer_are_not_learnt() -> None:
    tokenizer = tokenizer_for(template("qwen2_5"))
    pairs = PreferencePairs(ChatTokenizer(tokenizer, tools="tools"), prompt="asked", rejected="worse")
    found = pairs({"asked": CALLS[:1], "chosen": CALLS[1:], "worse": NO, "tools": json.dumps(TOOLS)})
    ids, mask = found["chosen_ids"], found["chosen_mask"]
    assert "It is 3." in (learnt := tokenizer.decode(ids[mask].tolist()))
    assert '"add"' in learnt
    assert "tool_response" not in learnt
    assert "tool_response" in tokenizer.decode(ids.tolist())


def test_several_turns_and_arguments_that_are_null_are_kept() -> None:
    tokenizer = tokenizer_for(template("qwen2_5"))
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": None}}}
    said = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    last = PreferencePairs(ChatTokenizer(tokenizer, turns="last"))
    found = last({"prompt": json.dumps(ONE[:1]), "chosen": json.dumps(said), "rejected": json.dumps([*NO, *TWO[2:]])})
    assert '"b": null' in tokenizer.decode(found["chosen_ids"].tolist())
    assert tokenizer.decode(found["rejected_ids"][found["rejected_mask"]].tolist()) == "It is dark then.<|im_end|>"


def test_padded_batches_are_those_of_trl() -> None:
    tokenizer = tokenizer_for(template("qwen2_5"))
    pairs = PreferencePairs(ChatTokenizer(tokenizer), multiple_of=8)
    made = [
        pairs({"prompt": ONE[:1], "chosen": ONE[1:], "rejected": NO}),
        pairs({"chosen": TWO, "rejected": TWO[:3] + NO}),
    ]
    batch = pairs.pad({name: [one[name] for one in made] for name in made[0]} | {"score": np.array([1, 2])})
    examples = [{name: one[name].tolist() for name in one if name.endswith("_ids")} for one in made]
    theirs = DataCollatorForPreference(tokenizer.pad_token_id, pad_to_multiple_of=8)(examples)
    assert batch.pop("score").tolist() == [1, 2]
    for start, kind in ((0, "chosen"), (2, "rejected")):
        expected = {name: tensor[start : start + 2].numpy() for name, tensor in theirs.items()}
        ids, attention, labels = (batch.pop(f"{kind}_{name}") for name in ("input_ids", "attention_mask", "labels"))
        assert np.array_equal(ids, expected["input_ids"])
        assert np.array_equal(attention, expected["attention_mask"])
        assert np.array_equal(labels[labels != -100], ids[labels != -100])
        more = expected["completion_mask"] - (labels != -100)
        assert sorted(np.unique(more)) == [0, 1]
        assert tokenizer.decode(ids[more == 1].tolist()).strip() == ""  # line ends behind turns
    assert not batch
    empty = pairs.pad({name: [] for name in ("prompt_ids", *_answers())})
    assert empty["chosen_input_ids"].shape == empty["rejected_labels"].shape == (0, 0)


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (
            {"prompt": ONE[:1], "chosen": ONE, "rejected": NO},
            "a message of the user, behind the prompt .*: give prompt=None",
        ),
        (
            {"prompt": [ONE[0] | {"id": 1}], "chosen": [{"role": "system", "content": "s"}, *ONE], "rejected": NO},
            "begins with a message of the system, behind the prompt",
        ),
        (
            {"prompt": "Why?", "chosen": ONE, "rejected": NO},
            "column 'prompt': a conversation .*JSON.* or give prompt=None",
        ),
        (
            {"prompt": ONE[:1], "chosen": "It", "rejected": "No"},
            r"column 'chosen': .* make messages of text by map\(\)",
        ),
        ({"prompt": ONE[:1], "chosen": NO, "rejected": NO}, "the same is learnt .*: leave such pairs out"),
        ({"prompt": ONE[:1], "chosen": [ONE[1], TWO[2]], "rejected": [ONE[1], ONE[0]]}, "the same is learnt"),
        ({"chosen": ONE, "rejected": ONE}, "one of both conversations is the beginning of the other"),
        ({"chosen": TWO, "rejected": ONE}, "one of both conversations is the beginning of the other"),
        ({"chosen": ONE, "rejected": NO}, "have no first message in common"),
        (
            {
                "chosen": [{"role": "system", "content": "s"}, *ONE],
                "rejected": [{"role": "system", "content": "s"}, *NO],
            },
            "have no first message in common",
        ),
        ({"prompt": None, "chosen": ONE[1:], "rejected": NO}, "column 'prompt': .* got a NoneType"),
        ({"prompt": [], "chosen": ONE[1:], "rejected": NO}, "column 'prompt': .* got an empty list"),
        (
            {"prompt": ONE[:1], "chosen": [{"role": "assistant", "text": "x"}], "rejected": NO},
            "message 0, .* no content",
        ),
        (
            {"prompt": ONE[:1], "chosen": ONE[1:], "rejected": [{"role": "tool", "content": "3"}]},
            "the assistant says nothing",
        ),
        (
            {"prompt": ONE[:1], "chosen": TWO[1:] * 4, "rejected": NO},
            "the chosen conversation has .* more than max_tokens=100",
        ),
    ],
)
def test_pairs_that_say_nothing_are_errors(pair: dict[str, Any], message: str) -> None:
    pairs = PreferencePairs(ChatTokenizer(tokenizer_for(template("qwen2_5"))), max_tokens=100)
    with pytest.raises(FormatError, match=message):
        pairs(pair)


def test_what_is_missing_is_named() -> None:
    tokenizer: PreTrainedTokenizerFast = tokenizer_for(template("qwen2_5"))
    with pytest.raises(ConfigError, match="'rejected'"):
        PreferencePairs(ChatTokenizer(tokenizer))({"prompt": ONE[:1], "chosen": ONE[1:]})
    pairs = PreferencePairs(ChatTokenizer(tokenizer), prompt="asked")
    with pytest.raises(ConfigError, match="'asked'"):
        pairs({"prompt": ONE[:1], "chosen": ONE[1:], "rejected": NO})
    with pytest.raises(ConfigError, match="without columns by the names of what is made"):
        pairs({"asked": ONE[:1], "chosen": ONE[1:], "rejected": NO, "prompt_ids": [1]})
    with pytest.raises(ConfigError, match=r"before batch_map\(pairs.pad\) comes map"):
        pairs.pad({"chosen": []})
    wrong: list[dict[str, Any]] = [{"pad_id": -1}, {"chosen": "a", "rejected": "a"}, {"prompt": "chosen"}]
    for options in wrong:
        with pytest.raises(ConfigError):
            PreferencePairs(ChatTokenizer(tokenizer), **options)
    tokenizer.pad_token = None
    with pytest.raises(ConfigError, match="pad_id must be an id, as the tokenizer has no token for padding"):
        PreferencePairs(ChatTokenizer(tokenizer))


def test_pairs_stream_through_workers_and_resume_in_another_world(tmp_path: Path) -> None:
    with JSONWriter({"prompt": "str", "chosen": "str", "rejected": "str", "number": "int"}, tmp_path) as out:
        for number in range(60):
            asked = [{"role": "user", "content": f"How much is {number} + 1?"}]
            said = [{"role": "assistant", "content": f"It is {number + 1}." + " Indeed." * (number % 5)}]
            other = said if number == 17 else NO
            both = {"chosen": json.dumps(said), "rejected": json.dumps(other)}
            out.write({"prompt": json.dumps(asked), **both, "number": number})
    tokenizer = tokenizer_for(template("qwen2_5"))
    pairs = PreferencePairs(ChatTokenizer(tokenizer))

    def loader(rank: int, world: int, workers: int, bad: Any = "skip") -> StreamingDataLoader:
        options: dict[str, Any] = {"shuffle": True, "batch_size": 12 // world, "on_bad_sample": bad}
        dataset = StreamingDataset(local=tmp_path, world=World(rank, world), **options).map(pairs)
        return StreamingDataLoader(dataset.batch_map(pairs.pad), num_workers=workers)

    first = loader(0, 1, 2)
    batches = list(islice(first, 2))
    state = first.state_dict()
    first.close()
    for rank in range(2):
        resumed = loader(rank, 2, 0)
        resumed.load_state_dict(state)
        batches += list(resumed)
    numbers = [number for batch in batches for number in batch["number"].tolist()]
    assert sorted(numbers) == [number for number in range(60) if number != 17]
    for batch in batches:
        for kind in ("chosen", "rejected"):
            labels = batch[f"{kind}_labels"]
            assert labels.shape == batch["chosen_input_ids"].shape
            learnt = [tokenizer.decode(row[row != -100].tolist()) for row in labels]
            right = [f"It is {n + 1}." + " Indeed." * (n % 5) for n in batch["number"].tolist()]
            answers = right if kind == "chosen" else ["Nobody knows."] * len(right)
            assert learnt == [f"{one}<|im_end|>" for one in answers]
    with pytest.raises(SampleError, match=r"sample 17\).*the same is learnt"):
        list(loader(0, 1, 0, "raise"))
