"""Conversations and preference pairs as token ids, and which of these are learnt: what the assistant says, as the chat
template shows it.
"""

from __future__ import annotations

import contextlib
import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any, Final, Literal

import numpy as np
import xxhash
from numpy.typing import NDArray

from stoker.arguments import at_least, checked, must_be, must_know
from stoker.concurrency.user_code import pass_exits
from stoker.display import with_article
from stoker.errors import ConfigError, FormatError
from stoker.types import Ids

_MARKED: Final = re.compile(r"\{%-?\s*generation\s*-?%\}")
_MARKS: Final = "give template= one that marks it by {% generation %}, such as those that TRL has for training"
_QUESTION, _ANSWER = "Name seventeen zebras", "Friendly walruses yodel"
_DAY: Final = datetime(2025, 1, 1, tzinfo=UTC)
"""The day that it is for templates that write today's date: the tokens of a conversation are the same on each day."""
_PROOF: Final = [{"role": "user", "content": _QUESTION}, {"role": "assistant", "content": _ANSWER}]


def _dated(template: str) -> str:
    """The template with a fixed day for what asks for today's; transformers hands no functions to templates."""
    found = sorted({*re.findall("%-?[aAbBdeHIjmMpSyY]", template)})
    codes = "".join(f"|replace({code!r}, {_DAY.strftime(code)!r})" for code in found)
    macro = f"{{% macro strftime_now(form) %}}{{{{ form{codes} }}}}{{% endmacro %}}{{{{ '' }}}}"
    return macro + template if "strftime_now" in template else template


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Turn what a template or tokenizer raises into a FormatError."""
    try:
        yield
    except FormatError:
        raise
    except BaseException as error:
        pass_exits(error)
        raise FormatError(
            f"the chat template refuses the conversation, or the tokenizer its text: {type(error).__name__}: {error}"
        ) from error


class ChatTokenizer:
    """Turns conversations into token ids by a model's chat template, and tells which tokens are learnt.

    Learnt is what the assistant says, with the token that ends its turn; not the prompt that begins its turn, and nothing of
    system, user and tools. Where the template marks this by ``{% generation %}``, the marks hold. Otherwise each turn is
    found by rendering the conversation before it and up to its end. If the template writes an earlier turn otherwise when
    others follow, so that the turn can not be told, the conversation is an error, and never learnt as a whole.

    >>> chat = ChatTokenizer(AutoTokenizer.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct"))
    >>> source = DatasetSource(StreamingDataset("s3://bucket/chats"), "messages", tokenizer=chat)
    >>> loader = StreamingParquetLoader(source, batch_size=8, seq_len=4096, layout="pack", pad_id=0)

    Args:
        tokenizer: a fast tokenizer of ``transformers``, with a chat template.
        template: instead of the tokenizer's.
        turns: ``"all"``: each turn of the assistant is learnt; ``"last"``: only the last one.
        tools: name of the column of the tools of each conversation; a list, or JSON.
        options: further variables for the template, such as ``{"enable_thinking": False}``.

    Raises:
        ConfigError: there is no template, the tokenizer is slow, or the template does not tell what the assistant says in a
            conversation of a question and an answer.
    """

    @checked
    def __init__(
        self,
        tokenizer: Any,
        *,
        template: str | None = None,
        turns: Literal["all", "last"] = "all",
        tools: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if not getattr(tokenizer, "is_fast", False) or not hasattr(tokenizer, "apply_chat_template"):
            raise ConfigError(
                f"tokenizer is {with_article(type(tokenizer).__name__)}: expected a fast tokenizer of transformers, "
                "which knows where in the text its tokens lie"
            )
        found = template or getattr(tokenizer, "chat_template", None)
        if isinstance(found, Mapping):
            found = found.get("default")
        if not found:
            raise ConfigError(
                "the tokenizer has no chat template: give template=, the one that the model was trained with"
            )
        self.tools, self._turns = tools, turns
        with contextlib.suppress(Exception):  # one with parts in Python has no copy
            tokenizer = copy.deepcopy(tokenizer)  # which threads use, and nobody changes
        self._tokenizer, self._template, self._options = tokenizer, _dated(str(found)), dict(options or {})
        self._marked = _MARKED.search(self._template) is not None
        self._prompt = ""
        self._prove()

    @property
    def pad_id(self) -> int | None:
        """The tokenizer's id for padding."""
        found: int | None = getattr(self._tokenizer, "pad_token_id", None)
        return found

    @property
    def identity(self) -> str:
        """A hash of the template, and of the ids and labels of a conversation."""
        ids, learnt = self(_PROOF)
        options = sorted(map(repr, self._options.items()))
        told = [self._template, self._turns, self.tools, options, ids.tolist(), learnt.tolist()]
        return xxhash.xxh3_128_hexdigest(json.dumps(told).encode())

    def __call__(self, messages: Any, tools: Any = None) -> tuple[Ids, NDArray[np.bool_]]:
        """The ids of a conversation, and which of them are learnt.

        Args:
            messages: dicts with ``role`` and ``content``, as the template takes them, or JSON of a list of such.
            tools: as the template takes them, or JSON.

        Returns:
            int64 and bool, shape ``(tokens,)``.

        Raises:
            FormatError: it is no conversation, the template refuses it, the assistant says nothing, or what it says can not
                be told from the rest.
        """
        ids, learnt, _, _ = self._tokens(_messages(messages), tools)
        return ids, learnt

    @_refusals()
    def _tokens(
        self, given: list[dict[str, Any]], tools: Any = None, prompt: int = 0
    ) -> tuple[Ids, NDArray[np.bool_], str, int]:
        """The same, the text that is learnt, and the number of tokens of the prompt, the first ``prompt`` messages.

        Nothing of it is learnt, nor what begins the assistant's turn behind it.
        """
        tools = _parsed(tools, "the tools") or None
        spoken = [number for number, message in enumerate(given) if message["role"] == "assistant"]
        wanted = [number for number in spoken if number >= prompt]
        if not wanted:
            raise FormatError(
                f"the assistant says nothing in the {len(given) - prompt} messages, so nothing would be learnt of them"
            )
        wanted = wanted if self._turns == "all" else wanted[-1:]
        text = self._render(given, tools)
        found = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids = np.array(found["input_ids"], np.int64)
        starts, stops = np.array(found["offset_mapping"], np.int64).reshape(-1, 2).T
        # Where a tokenizer trims offsets, a token of spaces is said to lie behind them.
        starts = np.where(starts == stops, np.minimum(starts, np.append(0, stops[:-1])), starts)
        learnt = np.zeros(ids.size, np.bool_)
        if not self._marked:
            spans = self._spans(given, tools, text, wanted)
        else:
            spans = self._marked_spans(given, tools, text)
            if prompt and len(spans) != len(spoken):
                raise FormatError(
                    f"the chat template marks {len(spans)} parts in {len(spoken)} turns of the assistant, so which lie after "
                    "the prompt can not be told: give template= one that marks each turn once"
                )
            spans = spans[-len(wanted) :] if prompt or self._turns == "last" else spans
        for first, end in spans:
            inside = (starts >= first) & (stops <= end) & (stops > starts)
            across = (starts < end) & (stops > first) & ~inside & (stops > starts)
            if across.any():
                piece = text[int(starts[across][0]) : int(stops[across][0])]
                remedy = "take spaces at the ends of answers away by map()" if self._marked else _MARKS
                raise FormatError(
                    f"the token {piece!r} has text of the assistant and of what is around it, so it can not be told whether "
                    f"it is learnt: {remedy}"
                )
            learnt |= inside
        said = [text[first:end] for first, end in spans]
        turns = said if len(said) == len(wanted) else ["".join(said)] * len(wanted)
        for number, turn in zip(wanted, turns, strict=True):
            if (missing := _left_out(given[number], turn)) is not None:
                raise FormatError(f"message {number}, of the assistant: the chat template leaves {missing[:80]!r} out")
        given_first = 0
        if prompt:
            asked = self._render(given[:prompt], tools, add_generation_prompt=True)
            before = self._tokenizer(asked, add_special_tokens=False)["input_ids"]
            given_first = _alike(before, ids.tolist())
            learnt[:given_first] = False
        return ids, learnt, "".join(said), given_first

    def _render(self, messages: Sequence[Mapping[str, Any]], tools: Any, **options: Any) -> str:
        text: str = self._tokenizer.apply_chat_template(
            list(messages), tools=tools, chat_template=self._template, tokenize=False, **self._options, **options
        )
        return text

    def _spans(
        self, messages: Sequence[Mapping[str, Any]], tools: Any, text: str, turns: Sequence[int]
    ) -> list[tuple[int, int]]:
        """First character and end of each of these turns of the assistant, in a template without marks."""
        spans = []
        for turn in turns:
            before = self._render(messages[:turn], tools, add_generation_prompt=True) if turn else ""
            after = self._render(messages[: turn + 1], tools)
            if not after.startswith(before) or not text.startswith(after):
                what = "the prompt before it" if not after.startswith(before) else "it when other messages follow"
                raise FormatError(
                    f"message {turn}, of the assistant: the chat template writes {what} otherwise, so what is learnt can not "
                    f"be told: {_MARKS}, or learn only the last turn by turns='last'"
                )
            first, said = len(before), after[len(before) :]
            if self._prompt and said.startswith(self._prompt):  # which some templates leave out behind a tool
                first += len(self._prompt)
            bare = after.rstrip()
            # A line's end behind the token that ends a turn is not what the model says.
            ends = bare.endswith(tuple(self._tokenizer.all_special_tokens) or ("\0",))
            spans.append((first, len(bare if ends else after)))
        return spans

    def _marked_spans(self, messages: Sequence[Mapping[str, Any]], tools: Any, text: str) -> list[tuple[int, int]]:
        """The same in a template that marks them."""
        from transformers.utils.chat_template_utils import render_jinja_template

        (rendered,), (spans,) = render_jinja_template(
            conversations=[list(messages)],
            tools=tools,
            chat_template=self._template,
            return_assistant_tokens_mask=True,
            **{**self._tokenizer.special_tokens_map, **self._options},
        )
        if rendered != text:
            raise FormatError("the chat template gives another text when it is asked for the marks of what is learnt")
        return [(int(first), int(end)) for first, end in spans]

    def _prove(self) -> None:
        """See that of a question and an answer the answer is learnt, and the question is not."""
        try:
            with _refusals():
                bare, prompted = (
                    self._render(_PROOF[:1], None, add_generation_prompt=prompt) for prompt in (False, True)
                )
            self._prompt = prompted.removeprefix(bare) if prompted.startswith(bare) else ""
            _, _, said, _ = self._tokens(_PROOF)
        except FormatError as error:
            raise ConfigError(f"this chat template does not tell what is learnt: {error}") from error
        if set(_words(_ANSWER)) - set(_words(said)) or set(_words(_QUESTION)) & set(_words(said)):
            raise ConfigError(
                f"this chat template does not tell what is learnt: of {_QUESTION!r} and {_ANSWER!r} it would be {said!r}"
            )


class PreferencePairs:
    """Turns preference pairs into token ids: for ``map()``, a sample's prompt, chosen and rejected answer by a chat template.

    Learnt of an answer is what the assistant says in it; not the prompt, and not what begins its turn. Without a column of
    prompts, or with ``prompt=None``, the prompt is all messages with which both conversations begin. The columns of
    conversations are replaced by ``prompt_ids``, ``chosen_ids`` and ``rejected_ids``, as TRL calls them, and ``chosen_mask``
    and ``rejected_mask``: what is learnt.

    >>> pairs = PreferencePairs(ChatTokenizer(tokenizer), max_tokens=2048)
    >>> dataset = StreamingDataset("s3://bucket/pairs", shuffle=True, batch_size=8, on_bad_sample="skip")
    >>> loader = StreamingDataLoader(dataset.map(pairs).batch_map(pairs.pad), num_workers=4)

    Args:
        chat: makes token ids of conversations.
        prompt, chosen, rejected: names of columns; each is a list of messages, or JSON of one.
        max_tokens: a pair of which a conversation has more is an error, which ``on_bad_sample="skip"`` leaves out. Nothing
            is ever cut.
        pad_id: of padding, which is behind the tokens. Default: the tokenizer's.
        multiple_of: rows are padded to a multiple of so many tokens, also above ``max_tokens``.

    Raises:
        ConfigError: there is no id for padding, or the template does not tell what is learnt of an answer.
    """

    @checked
    def __init__(
        self,
        chat: ChatTokenizer,
        *,
        prompt: str | None = "prompt",
        chosen: str = "chosen",
        rejected: str = "rejected",
        max_tokens: int | None = None,
        pad_id: int | None = None,
        multiple_of: int = 1,
    ) -> None:
        at_least(1, max_tokens=max_tokens, multiple_of=multiple_of)
        found = chat.pad_id if pad_id is None else pad_id
        must_be("an id, as the tokenizer has no token for padding", found is not None, pad_id=pad_id)
        at_least(0, pad_id=pad_id)
        must_be("another column than the chosen answers", len({prompt, chosen, rejected}) == 3, rejected=rejected)
        self._chat, self._prompt, self._answers = chat, prompt, {"chosen": chosen, "rejected": rejected}
        self._most, self._pad_id, self._multiple = None, found, multiple_of
        try:
            self._pair([_PROOF, [*_PROOF[:1], {"role": "assistant", "content": "No."}]], 1, None)
        except FormatError as error:
            raise ConfigError(f"this chat template does not tell what is learnt of a pair: {error}") from error
        self._most = max_tokens

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """The sample with token ids (int64) and masks (bool), shape ``(tokens,)``, in place of conversations.

        Raises:
            ConfigError: a column is missing.
            FormatError: as :class:`ChatTokenizer`; or the same is learnt of both answers, an answer repeats the prompt, the
                template writes the prompt otherwise for one of them, or a conversation is too long.
        """
        asked, prompts = self._chat.tools, self._prompt not in (None, "prompt") or "prompt" in sample
        wanted = [*self._answers.values(), *([asked] if asked else []), *([self._prompt] if prompts else [])]
        must_know("the sample's column", (name for name in wanted if name is not None), sample)
        chosen, rejected = (self._messages(sample, name) for name in self._answers.values())
        if prompts and self._prompt is not None:
            prompt = self._messages(sample, self._prompt)
            count, last = len(prompt), prompt[-1]["role"]
            for answer in (chosen, rejected):
                if answer[0]["role"] in ("system", "developer") or answer[0]["role"] == last == "user":
                    raise FormatError(
                        f"an answer begins with a message of the {answer[0]['role']}, behind the prompt in column "
                        f"{self._prompt!r}: give prompt=None if answers are whole conversations"
                    )
            both = [prompt + chosen, prompt + rejected]
        else:
            both = [chosen, rejected]
            count = _alike(chosen, rejected)
            if count == min(len(chosen), len(rejected)):
                raise FormatError("one of both conversations is the beginning of the other: leave such pairs out")
            if not any(message["role"] not in ("system", "developer") for message in chosen[:count]):
                raise FormatError(
                    "the chosen and the rejected conversation have no first message in common, which would be the prompt: "
                    "leave such pairs out, or name the column of prompts by prompt="
                )
        made = self._pair(both, count, sample[asked] if asked else None)
        gone = {self._prompt if prompts else None, *self._answers.values()}
        others = {name: value for name, value in sample.items() if name not in gone}
        must_be("without columns by the names of what is made", not made.keys() & others.keys(), sample=list(others))
        return others | made

    def _messages(self, sample: Mapping[str, Any], column: str) -> list[dict[str, Any]]:
        try:
            return _messages(sample[column])
        except FormatError as error:
            text = isinstance(sample[column], str) and "should be JSON" in str(error)
            remedy = ": make messages of text by map(), or give prompt=None where answers are whole" if text else ""
            raise FormatError(f"column {column!r}: {error}{remedy}") from error

    def _pair(self, both: Sequence[list[dict[str, Any]]], prompt: int, tools: Any) -> dict[str, Any]:
        """The token ids of conversations that begin with so many messages of the prompt."""
        found = [self._chat._tokens(messages, tools, prompt)[::-1] for messages in both]
        first = min(count for count, *_ in found)
        made: dict[str, Any] = {"prompt_ids": found[0][3][:first]}
        for name, (_, _, learnt, ids) in zip(self._answers, found, strict=True):
            if self._most is not None and ids.size > self._most:
                raise FormatError(f"the {name} conversation has {ids.size} tokens, more than max_tokens={self._most}")
            if not np.array_equal(made["prompt_ids"], ids[:first]):
                raise FormatError(
                    "the chat template writes the prompt of the chosen and the rejected answer differently"
                )
            made |= {f"{name}_ids": ids[first:], f"{name}_mask": learnt[first:]}
        chosen, rejected = (made[f"{name}_ids"][made[f"{name}_mask"]] for name in self._answers)
        if np.array_equal(chosen, rejected):
            raise FormatError("the same is learnt of the chosen and the rejected answer: leave such pairs out")
        return made

    @checked(batch="pass this method to batch_map()")
    def pad(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """For ``batch_map()``: the columns of a batch of pairs as rows of one length.

        Returns:
            ``chosen_input_ids``, ``chosen_attention_mask`` and ``chosen_labels`` (the ids that are learnt, elsewhere -100,
            not shifted), and the same of ``rejected``: int64, shape ``(pairs, tokens)``. Other columns stay as they are.
        """
        must_know("the batch's column", ["prompt_ids"], batch, "before batch_map(pairs.pad) comes map(pairs): ")
        made = dict(batch)
        prompts, parts = list(made.pop("prompt_ids")), {}
        for name in self._answers:
            answers = zip(prompts, made.pop(f"{name}_ids"), made.pop(f"{name}_mask"), strict=True)
            parts[name] = [(np.concatenate([prompt, ids]), prompt.size, learnt) for prompt, ids, learnt in answers]
        width = max((ids.size for rows in parts.values() for ids, _, _ in rows), default=0)
        shape = len(prompts), -(-width // self._multiple) * self._multiple
        for name, rows in parts.items():
            input_ids = np.full(shape, self._pad_id, np.int64)
            attention, labels = np.zeros(shape, np.int64), np.full(shape, -100, np.int64)
            for number, (ids, first, learnt) in enumerate(rows):
                input_ids[number, : ids.size], attention[number, : ids.size] = ids, 1
                labels[number, first : ids.size] = np.where(learnt, ids[first:], -100)
            made |= {f"{name}_input_ids": input_ids, f"{name}_attention_mask": attention, f"{name}_labels": labels}
        return made


def _alike(first: Sequence[Any], second: Sequence[Any]) -> int:
    """The number of items with which both begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def _left_out(message: Mapping[str, Any], said: str) -> str | None:
    """A text of a message that every template shows, and this one does not: what is said after thinking, or a tool's name."""
    content = message.get("content")
    texts = (
        [content] if isinstance(content, str) else [one.get("text") for one in content or () if isinstance(one, dict)]
    )
    for text in texts:
        shown = text.rpartition("</think>")[2].strip() if isinstance(text, str) else ""
        if shown not in said:
            return shown
        said = said.replace(shown, "", 1)
    for call in message.get("tool_calls", ()):
        name = str(call.get("function", call).get("name", "")) if isinstance(call, dict) else ""
        if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", said):
            return name
    return None


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


@_refusals()
def _messages(given: Any) -> list[dict[str, Any]]:
    """A conversation as a list of dicts, without keys that have no value, as Arrow has them of other messages."""
    found = _parsed(given, "a conversation")
    if not isinstance(found, list) or not found:
        what = "an empty list" if isinstance(found, list) else with_article(type(found).__name__)
        raise FormatError(f"a conversation is a list of messages, got {what}")
    for number, message in enumerate(found):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise FormatError(
                f"message {number} is not a dict with a role: {str(message)[:80]}: give it role and content by map()"
            )
        if message.get("content") is None and not message.get("tool_calls"):
            raise FormatError(f"message {number}, of the {message['role']}, has no content: give it one by map()")
    # Nulls within JSON, such as an argument of a tool's call, are what somebody wrote.
    return [{name: one for name, one in message.items() if one is not None} for message in found]


def _parsed(given: Any, what: str) -> Any:
    if not isinstance(given, str | bytes):
        return _full(given)
    if not given:
        return None
    try:
        return json.loads(given)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{what} should be JSON where it is text: {error}") from error


def _full(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _full(one) for name, one in value.items() if one is not None}
    return [_full(one) for one in value] if isinstance(value, list | tuple | np.ndarray) else value
