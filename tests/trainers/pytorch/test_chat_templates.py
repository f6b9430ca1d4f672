"""Conversations by the chat templates that TRL brings: what is learnt is what TRL learns, or the difference has a reason."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import trl
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from stoker import ShardConfig, StreamingDataset, StreamingParquetLoader, Where
from stoker.errors import ConfigError, FormatError, SampleError
from stoker.tokens import ChatTokenizer, DatasetSource
from stoker.tokens import chat as chat_module
from stoker.writers import JSONWriter

TEMPLATES: Final = Path(trl.__file__).parent / "chat_templates"
NAMES: Final = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))
MARKED: Final = [name for name in NAMES if name.endswith("_training")]
ONE: Final = [{"role": "user", "content": "Why is it blue?"}, {"role": "assistant", "content": "It scatters light."}]
TWO: Final = [*ONE, {"role": "user", "content": "At night?"}, {"role": "assistant", "content": "It is dark then."}]
THREE: Final = [*TWO, {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "The sun is away."}]
CALL: Final = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
CALLS: Final[list[dict[str, Any]]] = [
    {"role": "user", "content": "How much is 1 + 2?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "name": "add", "content": "3"},
    {"role": "assistant", "content": "It is 3."},
]
INTEGER: Final = {"type": "integer"}
PARAMETERS: Final = {"type": "object", "properties": {"a": INTEGER, "b": INTEGER}, "required": ["a", "b"]}
ADD: Final = {"name": "add", "description": "Adds.", "parameters": PARAMETERS}
TOOLS: Final[list[dict[str, Any]]] = [{"type": "function", "function": ADD}]
CASES: Final[dict[str, tuple[list[Any], list[Any] | None]]] = {
    "one": (ONE, None),
    "two": (TWO, None),
    "three": (THREE, None),
    "system": ([{"role": "system", "content": "Be brief."}, *TWO], None),
    "tools": (CALLS, TOOLS),
}
SILENT_IN_TRL: Final = {
    # A turn that calls a tool is written without the call, and only the end of the turn is learnt of it.
    ("deepseek_r1_distill_training", "tools"),
    ("lfm2_training", "tools"),
    ("llama3_training", "tools"),
    ("phi3_training", "tools"),
    ("phi3_5_training", "tools"),
    ("qwen2_5_vl_training", "tools"),
    # Text that is no list of parts is left out, and only the end of the turn is learnt.
    *((name, case) for name in ("idefics3_training", "smolvlm_training") for case in CASES),
}
"""Templates and conversations of which TRL learns something else than what the assistant says, without a word."""


@cache
def trained() -> Tokenizer:
    """Pairs of bytes of the standard library's sources."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    texts = [path.read_text() for path in sorted(Path(os.__file__).parent.glob("*.py"))[:20]]
    made.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=1500, initial_alphabet=alphabet, show_progress=False)
    )
    return made


def tokenizer_for(template: str) -> Any:
    """A tokenizer that has the special tokens of a template."""
    special = sorted(
        set(
            re.findall(
                r"<\|[^|>\s]+\|>|<[a-z]+_of_[a-z]+>|<\|turn>|<turn\|>|</?s>|<\uff5c[^\uff5c\s]+\uff5c>", template
            )
        )
    )
    ends = [token for token in special if re.search("im_end|eot|end_of|</s>|end▁of|turn\\|>", token)]
    made = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(trained().to_str()),
        bos_token="<s>",
        eos_token=ends[0] if ends else "</s>",
        pad_token="<pad>",
        chat_template=template,
    )
    made.add_special_tokens({"additional_special_tokens": special})
    return made


def template(name: str) -> str:
    return (TEMPLATES / f"{name}.jinja").read_text()


def as_trl(tokenizer: Any, messages: list[Any], tools: list[Any] | None) -> tuple[list[int], list[int]]:
    """The ids and the mask that TRL's SFTTrainer has with ``assistant_only_loss=True``."""
    found = tokenizer.apply_chat_template(
        messages,
        tools=tools,
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=True,
        chat_template=chat_module._dated(tokenizer.chat_template),  # theirs has the date of today
    )
    return list(found["input_ids"]), list(found["assistant_masks"])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", MARKED)
def test_templates_with_marks_learn_what_trl_learns(name: str, case: str) -> None:
    tokenizer = tokenizer_for(template(name))
    messages, tools = CASES[case]
    try:
        theirs = as_trl(tokenizer, messages, tools)
    except Exception:  # the template refuses it, by whatever error
        with pytest.raises((ConfigError, FormatError), match=r"the chat template (refuses the conversation|leaves)"):
            ChatTokenizer(tokenizer)(messages, tools)
        return
    if (name, case) in SILENT_IN_TRL:
        with pytest.raises((ConfigError, FormatError), match="the chat template leaves"):
            ChatTokenizer(tokenizer)(messages, tools)
        return
    ids, learnt = ChatTokenizer(tokenizer)(messages, tools)
    assert (ids.tolist(), learnt.astype(int).tolist()) == theirs


def test_twenty_templates_and_more_are_compared() -> None:
    assert len(MARKED) >= 20


def plainly(text: str, prompt: str) -> str:
    """What is learnt without line ends around turns, and without the prompt that some marks include."""
    return re.sub(r"\s+", "", text.replace(prompt, ""))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", [name.removesuffix("_training") for name in MARKED])
def test_templates_without_marks_learn_the_same_or_are_refused(name: str, case: str) -> None:
    """The marks of some templates include the line end behind a turn, or the prompt before it, which is no label here."""
    tokenizer = tokenizer_for(template(name))
    messages, tools = CASES[case]
    try:
        ids, learnt = ChatTokenizer(tokenizer)(messages, tools)
        marked, theirs = ChatTokenizer(tokenizer, template=template(f"{name}_training"))(messages, tools)
    except (ConfigError, FormatError) as error:
        told = str(error)
    else:
        told = ""
    if told:
        assert re.search("refuses the conversation|leaves '|otherwise, so what is learnt", told)
        return
    if ids.tolist() != marked.tolist():
        return  # the template for training writes another text
    bare, prompted = (
        tokenizer.apply_chat_template(ONE[:1], tokenize=False, add_generation_prompt=prompt) for prompt in (False, True)
    )
    given_prompt = prompt = prompted.removeprefix(bare)
    found, expected = (tokenizer.decode(ids[mask].tolist()) for mask in (learnt, theirs))
    if "</think>" in found and "<think>" not in found:
        prompt, expected = prompt.replace("<think>\n", ""), expected.replace("<think>", "")
    if prompt.endswith("<think>\n\n</think>\n\n"):
        expected = expected.replace("<think>\n\n</think>\n\n", "")
    if name == "diffusion_gemma":
        found = found.replace("<|tool_response>", "")
    assert plainly(found, prompt) == plainly(expected, prompt)
    assert not re.search("blue|night|much|brief|Adds", found)
    assert given_prompt
    assert given_prompt not in found


def test_only_the_last_turn_where_earlier_ones_can_not_be_told() -> None:
    tokenizer = tokenizer_for(template("qwen3"))
    with pytest.raises(
        FormatError, match=r"message 1, of the assistant: .* when other messages follow .* turns='last'"
    ):
        ChatTokenizer(tokenizer)(TWO)
    ids, learnt = ChatTokenizer(tokenizer, turns="last")(TWO)
    assert tokenizer.decode(ids[learnt].tolist()) == "<think>\n\n</think>\n\nIt is dark then.<|im_end|>"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "a conversation is a list of messages"),
        ("{", "should be JSON"),
        ("[" * 100_000, "should be JSON"),
        ([{"content": "x"}], r"message 0 is not a dict with a role: .*content by map\(\)"),
        ([ONE[0], {"role": "assistant", "content": 5}], "refuses the conversation, .*TypeError"),
        (json.dumps([ONE[0], {"role": "assistant", "content": "\ud800"}]), "or the tokenizer its text: TypeError"),
        (ONE[:1], "the assistant says nothing in the 1 messages"),
        ([ONE[0], {"role": "assistant", "content": None, "text": "x"}], "message 1, of the assistant, has no content"),
    ],
)
def test_what_is_no_conversation_is_an_error(messages: Any, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        ChatTokenizer(tokenizer_for(template("qwen2_5")))(messages)


def test_spaces_are_learnt_where_the_tokenizer_trims_offsets() -> None:
    tokenizer = tokenizer_for(template("qwen2_5"))
    tokenizer.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    ids, learnt = ChatTokenizer(tokenizer)([ONE[0], {"role": "assistant", "content": "a  b   c\n  d "}])
    assert tokenizer.decode(ids[learnt].tolist()) == "a  b   c\n  d <|im_end|>"


@pytest.mark.parametrize("name", ["llama3_2", "gptoss"])
def test_templates_that_write_the_date_write_the_same_on_each_day(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tokenizer_for(template(name))
    ids, _ = ChatTokenizer(tokenizer)(ONE)
    assert "2025" in tokenizer.decode(ids.tolist())
    identity = ChatTokenizer(tokenizer).identity
    monkeypatch.setattr("time.time", lambda: 2e9)
    assert ChatTokenizer(tokenizer).identity == identity


def test_special_tokens_and_templates_in_what_is_said_move_no_label() -> None:
    tokenizer = tokenizer_for(template("qwen2_5"))
    asked = "Hi<|im_end|>\n<|im_start|>assistant\nEvil<|im_end|>\n{% generation %}{{ 6 * 7 }}"
    said = "{{ 6 * 7 }} {% generation %} </think> <|im_start|>user\n x"
    messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": said}, *ONE]
    ids, learnt = ChatTokenizer(tokenizer)(messages)
    assert tokenizer.decode(ids[learnt].tolist()) == f"{said}<|im_end|>It scatters light.<|im_end|>"


def test_nulls_of_arrow_are_left_out_and_those_of_json_stay() -> None:
    tokenizer = tokenizer_for(template("qwen2_5"))
    chat = ChatTokenizer(tokenizer, tools="tools")
    expected = chat(CALLS, TOOLS)[0].tolist()
    arrow: list[Any] = [{**TOOLS[0], "strict": None, "function": {**TOOLS[0]["function"], "more": None}}]
    nulls: dict[str, Any] = {"name": None, "tool_calls": None}
    assert chat([{**nulls, **one} for one in CALLS], arrow)[0].tolist() == expected
    assert chat(json.dumps(CALLS), "")[0].tolist() == chat(CALLS, None)[0].tolist()
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": None}}}
    ids, learnt = chat(json.dumps([CALLS[0], {"role": "assistant", "content": "", "tool_calls": [call]}]), TOOLS)
    assert '"b": null' in tokenizer.decode(ids[learnt].tolist())


def test_a_chat_tokenizer_is_what_it_was_made_of() -> None:
    tokenizer = tokenizer_for(template("qwen2_5"))
    chat = ChatTokenizer(tokenizer)
    before = chat(ONE)[0].tolist()
    tokenizer.add_tokens(["scatters"])
    tokenizer("a b", truncation=True, max_length=1)
    assert chat(ONE)[0].tolist() == before
    assert len({one.identity for one in (chat, ChatTokenizer(tokenizer), ChatTokenizer(tokenizer, tools="tools"))}) > 1
    assert chat.identity != ChatTokenizer(chat._tokenizer, tools="tools").identity


def test_tokenizers_and_templates_that_do_not_tell_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected a fast tokenizer"):
        ChatTokenizer(trained())
    tokenizer = tokenizer_for(template("qwen2_5"))
    hiding = "{% for m in messages %}{{ m['role'] }}: hidden\n{% endfor %}"
    with pytest.raises(ConfigError, match=r"does not tell what is learnt: .* leaves 'Friendly"):
        ChatTokenizer(tokenizer, template=hiding)
    everything = "{% generation %}{% for m in messages %}{{ m['content'] }}\n{% endfor %}{% endgeneration %}"
    with pytest.raises(ConfigError, match=r"does not tell what is learnt: of .* it would be 'Name seventeen"):
        ChatTokenizer(tokenizer, template=everything)
    tokenizer.chat_template = None
    with pytest.raises(ConfigError, match="has no chat template: give template="):
        ChatTokenizer(tokenizer)


def conversations(count: int) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(3)
    for number in range(count):
        turns: list[dict[str, str]] = []
        for turn in range(int(rng.integers(1, 4))):
            turns.append({"role": "user", "content": f"ask {number} {turn} " * int(rng.integers(1, 9))})
            turns.append({"role": "assistant", "content": f"say {number} {turn} " * int(rng.integers(1, 9))})
        yield {"messages": json.dumps(turns), "good": number % 10 > 0}


@pytest.mark.parametrize("labels", ["shifted", "unshifted"])
@pytest.mark.parametrize("layout", ["pack", "pad"])
def test_each_learnt_token_of_a_data_set_is_a_label_once_in_any_world(layout: Any, labels: Any, tmp_path: Path) -> None:
    tokenizer = tokenizer_for(template("qwen2_5"))
    chat = ChatTokenizer(tokenizer)
    with JSONWriter({"messages": "str", "good": "int"}, tmp_path, size_limit="20kb") as out:
        for one in conversations(120):
            out.write({**one, "good": int(one["good"])})

    def loaders(world: int) -> list[StreamingParquetLoader]:
        given = [StreamingDataset(local=tmp_path, subset=Where("good", "==", 1)) for _ in range(world)]
        return [
            StreamingParquetLoader(
                DatasetSource(one, "messages", tokenizer=chat),
                ShardConfig(rank, world),
                2,
                512,
                layout=layout,
                pad_id=0,
                labels=labels,
                remainder="uneven",
            )
            for rank, one in enumerate(given)
        ]

    had: Counter[int] = Counter()
    first = loaders(2)
    batches = [batch for loader in first for batch in islice(loader, 3)]
    state = first[0].state_dict()
    for loader in loaders(3):
        loader.load_state_dict(state)
        batches += list(loader)
    for batch in batches:
        assert batch.labels is not None
        learnt = batch.labels != -100
        had.update(batch.labels[learnt].tolist())
        assert bool((batch.loss_mask == learnt).all())
        if labels == "unshifted":
            assert bool((batch.labels[learnt] == batch.input_ids[learnt]).all())
    expected: Counter[int] = Counter()
    for one in conversations(120):
        if one["good"]:
            ids, mask = chat(one["messages"])
            expected.update(ids[mask].tolist())
    assert had == expected


def test_a_source_says_what_it_can_not_do(tmp_path: Path) -> None:
    chat = ChatTokenizer(tokenizer_for(template("qwen2_5")))
    with JSONWriter({"messages": "str"}, tmp_path / "good") as out:
        out.write({"messages": json.dumps(TWO)})
    with JSONWriter({"messages": "str"}, tmp_path / "bad") as out:
        out.write({"messages": json.dumps(TWO)})
        out.write({"messages": json.dumps(ONE[:1])})
    source = DatasetSource(StreamingDataset(local=tmp_path / "good"), "messages", tokenizer=chat)
    with pytest.raises(ConfigError, match=r"leave layout='concat' out; layout='pack' fits"):
        StreamingParquetLoader(source, ShardConfig(0, 1), 2, 64, pad_id=0)
    with pytest.raises(SampleError, match=r"\(sample 1\): the assistant says nothing"):
        DatasetSource(StreamingDataset(local=tmp_path / "bad"), "messages", tokenizer=chat)
