"""Conversations out of the rows of a table: whatever form they have, they become messages of a role and a content.
Roles have one name each, contents are strings, tool calls objects.

    messages: [{role, content}]             as most data sets and services have it
    conversations: [{from, value}]          ShareGPT
    [{type, content}], [{role, parts}]      LangChain, Gemini; also [[role, text]] and [{human, assistant}]
    {role: [...], content: [...]}           the same as `datasets` writes it into Parquet
    instruction, input, output              Alpaca; also context, response, and history: [[question, answer]]
    prompt, completion                      strings, or lists of messages
    question, answer, context

Beside them, `system` is what the conversation begins with and `tools` what may be called. A list may also be JSON or a
Python literal in a string, as a CSV has it. What is none of these is refused whole, with the reason.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeGuard

from tui_trainer.data.columns.row import (
    AUTO,
    Row,
    as_one_text,
    columns_of,
    file_of,
    is_structured,
    kind_of_value,
    listed,
    media_in,
    python_literal,
    refuse_bad_answer,
    refuse_missing,
    refuse_unlearnt,
    said_by,
    transposed,
    usual_columns,
    value_of,
    written_value,
)
from tui_trainer.data.columns.text_columns import (
    ALL_RIGHT,
    TRANSLATION,
    ColumnChoices,
    Pair,
    answers_in,
    as_pair,
    checked_text,
    find_pair,
    languages_of,
    likely_pair,
    opened,
    refuse_several,
    usual_input,
    usual_target,
    with_beside,
)
from tui_trainer.data.columns.usual_names import (
    ANSWER_NAMES,
    CONVERSATION_NAMES,
    CONVERSATIONS,
    SYSTEM_NAMES,
    TOOLS_NAMES,
)
from tui_trainer.errors import DataError
from tui_trainer.terminal.safe_text import one_line

Message = dict[str, Any]

# Every name that data sets use for a role. Source: the formats of ShareGPT, LangChain, OpenAssistant and Firefly, and
# of OpenAI's, Anthropic's, Google's and Cohere's services.
ROLES = {
    "system": "system", "developer": "system",
    "user": "user", "human": "user", "prompter": "user",
    "assistant": "assistant", "gpt": "assistant", "chatgpt": "assistant", "model": "assistant", "bot": "assistant",
    "ai": "assistant", "chatbot": "assistant",
    "tool": "tool", "function": "tool", "observation": "tool", "function_response": "tool", "tool_response": "tool",
    "ipython": "tool", "function_call": "assistant", "tool_call": "assistant",
}  # fmt: skip
_READ = ("role", "content", "weight", "tool_calls")
_CALLS = ("function_call", "tool_call")
# Of both the first that a turn has is read.
_ROLE_KEYS = ("role", "from", "speaker", "author", "type")
_CONTENT_KEYS = ("content", "value", "text", "message", "parts")
_TURN_KEYS = {"system": "system", "user": "user", "human": "user", "input": "user",
              "assistant": "assistant", "bot": "assistant", "output": "assistant"}  # fmt: skip
# Marks of what is learnt, and what they say where they are true. Source: the formats of OpenAI, axolotl, ms-swift,
# OpenChat and NeMo.
_MARKS = {
    **dict.fromkeys(("weight", "loss", "loss_weight", "loss_scale"), True),
    **dict.fromkeys(("train", "training", "trainable", "train_on_turn"), True),
    "masked": False,
}
_UNCLEAR_MARKS = ("mask", "loss_mask", "train_detail", "training_detail")
_ROW_MARKS = frozenset(("weight", "loss_weight", "sample_weight", "train", "trainable", "mask_history"))
_YES_NO = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}
_MARK_HINT = 'to exclude a turn from training, give it "weight": 0, and give the other turns no flag'

_WRAPPED = re.compile(r"\s*\{\s*['\"]")
_TURNS = re.compile(r"\s*\[\s*\{\s*['\"](role|from|content|value)['\"]\s*:")
_NO_COMMA = re.compile(r"[}\]]\s*\n\s*[{\[]|\barray\(")
_RESPONSE = "<tool_response>"
_RESPONSES = re.compile(r"<tool_response>\s*(.*?)\s*</tool_response>", re.DOTALL)
_TEXT_PARTS = (None, "text", "input_text", "output_text")
_NO_TEXT = ("image", "image_url", "audio", "input_audio", "video", "file", "functionCall", "functionResponse")
_IN_TURN = ("user", "assistant")
_SPELLING = 'write {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}'


def messages_of(value: object, where: str) -> list[Message]:
    """The messages of a list, or of one in a string. Raises DataError for one that is no conversation."""
    if isinstance(value, str):
        value = _parsed(value, "the conversation", where)
    turns = _turns_of(value)
    if turns is None:
        what = "a tree of turns" if _is_tree(value) else kind_of_value(value)
        raise DataError(f"the conversation is {what}, not a list of messages", where=where, hint=_SPELLING)
    if not turns:
        raise DataError("the conversation has no messages", where=where)
    found: list[Message] = []
    for at, entry in enumerate(turns, start=1):
        if plain := _plain(entry, where):
            found.append(plain)
        else:
            found += [_message(one, f"message {at}", where) for one in _apart(entry)]
    return found


def content_of(value: object, what: str, where: str) -> str:
    """A string, or the texts of a list of parts. Raises DataError for null, and for what no text model reads."""
    if isinstance(value, str):
        return checked_text(value, where)
    if isinstance(value, Mapping):
        inner = value.get("parts", transposed(value))
        value = inner if isinstance(inner, list) else [value] if "text" in value or "type" in value else value
    if isinstance(value, list):
        return "".join(_part(part, what, where) for part in value)
    hint = "write it as a string" if isinstance(value, int | float) else ""
    raise DataError(f"{what} is {kind_of_value(value)}, not a string", where=where, hint=hint)


def _plain(entry: Any, where: str) -> Message | None:
    """What most turns are, a role and a string, at half the time of the others."""
    if type(entry) is not dict or len(entry) != 2:
        return None
    told, text = (entry["from"], entry.get("value")) if "from" in entry else (entry.get("role"), entry.get("content"))
    if not isinstance(told, str) or not isinstance(text, str) or told not in ROLES or told in _CALLS:
        return None
    if _RESPONSE in text and ROLES[told] == "tool":
        return None
    return {"role": ROLES[told], "content": checked_text(text, where)}


def _apart(entry: object) -> Iterator[object]:
    """The messages that one turn of a service stands for: of Anthropic's parts the results of tools, and the rest with
    its calls and what was thought; of Hermes each response of a tool, without the marks that templates write."""
    if not isinstance(entry, Mapping):
        yield entry
        return
    content_key = _key(entry, _CONTENT_KEYS)
    content = entry.get(content_key)
    if isinstance(content, str) and _role_of(entry.get(_key(entry, _ROLE_KEYS))) == "tool":
        yield from ({**entry, content_key: text} for text in _RESPONSES.findall(content) or [content])
        return
    content = content if isinstance(content, list) else []
    parts: dict[str, list[Mapping[str, Any]]] = {"tool_result": [], "tool_use": [], "thinking": []}
    for part in content:
        if isinstance(part, Mapping) and part.get("type") in parts:
            parts[part["type"]].append(part)
    if not any(parts.values()):
        yield entry
        return
    for part in parts["tool_result"]:
        yield {"role": "tool", "content": part.get("content") or "", "tool_call_id": part.get("tool_use_id")}
    rest = [part for part in content if not (isinstance(part, Mapping) and part.get("type") in parts)]
    more: Message = {"tool_calls": parts["tool_use"]} if parts["tool_use"] else {}
    if parts["thinking"]:
        more["thinking"] = "\n".join(str(part.get("thinking", "")) for part in parts["thinking"])
    if rest or more:
        yield {**entry, content_key: rest, **more}


def _message(entry: object, what: str, where: str) -> Message:
    if not isinstance(entry, Mapping):
        raise DataError(f"{what} is {kind_of_value(entry)}, not an object with a role and a content", where=where)
    role_key = _key(entry, _ROLE_KEYS)
    told = entry.get(role_key)
    role = _role_of(told)
    if role is None:
        known = ", ".join(dict.fromkeys(ROLES.values()))
        if told is None:
            keys = f"keys found: {listed(entry)}; " if entry else ""
            raise DataError(f"{what} has no role", where=where, hint=f"{keys}add a role: {known}")
        raise DataError(f"the role of {what} is '{one_line(str(told), 40)}'", where=where, hint=f"known roles: {known}")
    content_key = _key(entry, _CONTENT_KEYS)
    content = entry.get(content_key)
    more = {
        str(name): value
        for name, value in entry.items()
        if value is not None and name != role_key and name != content_key
    }
    if more:
        _normalise(more, role, what, where)
        if content is None and "tool_calls" in more:
            content = ""
    text = content_of(content, f"the content of {what}", where)
    calls = _called(text, what, where) if isinstance(told, str) and told.strip().lower() in _CALLS else None
    if calls:
        return {"role": role, "content": "", "tool_calls": calls}
    return {"role": role, "content": text, **more}


def _normalise(more: Message, role: str, what: str, where: str) -> None:
    """What stands beside role and content: its calls as objects; its marks as one, a `weight` of 0 or 1, and none where
    it says of an answer what is so anyway."""
    # The one call of a turn, as OpenAI's service had it before there were several.
    if call := more.pop("function_call", None):
        more.setdefault("tool_calls", [call])
    if "tool_calls" in more:
        given = transposed(more.pop("tool_calls"))
        if isinstance(given, str):
            given = _parsed(given, f"tool_calls of {what}", where) if given.strip() else None
        if given:
            more["tool_calls"] = [_call(call, what, where) for call in (given if isinstance(given, list) else [given])]
    marks = set[bool]()
    for name in (name for name in _MARKS if name in more):
        value = more.pop(name)
        if (says := _yes_no(value)) is None:
            message = f"the loss flag '{name}' of {what} is {_shown(value)}, but must include or exclude the whole turn"
            raise DataError(message, where=where, hint="write 0 or 1")
        marks.add(says == _MARKS[name])
    if unclear := next((name for name in _UNCLEAR_MARKS if name in more), ""):
        message = f"the loss flag '{unclear}' of {what} is ambiguous: it may include or exclude the turn"
        raise DataError(message, where=where, hint=_MARK_HINT)
    if len(marks) > 1:
        raise DataError(f"the loss flags of {what} contradict each other", where=where, hint=_MARK_HINT)
    if marks and (marks == {False} or role != "assistant"):
        more["weight"] = int(True in marks)


def _role_of(told: object) -> str | None:
    return ROLES.get(told.strip().lower()) if isinstance(told, str) else None


def _key(entry: Mapping[str, Any], names: Sequence[str]) -> str:
    """The first that has a value; a `type` that is no role says what kind of object it is."""
    has = (name for name in names if entry.get(name) is not None)
    return next((name for name in has if name != "type" or _role_of(entry[name])), "")


def _yes_no(value: object) -> bool | None:
    return _YES_NO.get(str(value).strip().lower()) if isinstance(value, bool | int | float | str) else None


def _shown(value: object) -> str:
    return one_line(str(value), 20) if isinstance(value, int | float | str) else kind_of_value(value)


def _turns_of(value: object) -> list[object] | None:
    """The turns of a list as objects, where they can be told: [role, text]; LangChain's and ChatGPT's, which have an
    object inside; one that has several turns by role, {"human": ..., "assistant": ...}. None for no list."""
    value = transposed(value)
    if not isinstance(value, list):
        return None
    if value and isinstance(value[0], Mapping) and ("role" in value[0] or "from" in value[0]):
        return value
    if _are_texts(value):
        return [{"role": _IN_TURN[at % 2], "content": text} for at, text in enumerate(value)]
    found: list[object] = []
    for entry in value:
        if isinstance(entry, list | tuple) and len(entry) == 2 and _role_of(entry[0]):
            found.append({"role": entry[0], "content": entry[1]})
        elif _are_texts(entry) and len(entry) == 2:
            found += _turns_of(entry) or []
        elif not isinstance(entry, Mapping) or not entry:
            found.append(entry)
        elif isinstance(inner := entry.get("data"), Mapping):
            found.append({**inner, "role": entry.get("type")})
        elif isinstance(inner := entry.get("author"), Mapping):
            found.append({**entry, "author": inner.get("role")})
        elif entry.keys() <= _TURN_KEYS.keys():
            has = ((role, entry[name]) for name, role in _TURN_KEYS.items() if name in entry)
            found += [{"role": role, "content": text} for role, text in has if role != "system" or text]
        else:
            found.append(entry)
    return found


def _are_texts(value: object) -> TypeGuard[list[str]]:
    """Whether it is a list of plain texts, which two say in turn."""
    return isinstance(value, list) and len(value) > 0 and all(isinstance(one, str) for one in value)


def _is_tree(value: object) -> bool:
    """Of ChatGPT's export, {id: {"message", "parent", "children"}}, or of OpenAssistant, {"text", "replies": [...]}."""
    if not isinstance(value, Mapping):
        return False
    nodes = [*value.values()][:2]
    is_export = bool(nodes) and all(isinstance(one, Mapping) and {"parent", "children"} <= one.keys() for one in nodes)
    return is_export or "replies" in value


def _parsed(text: str, what: str, where: str) -> Any:
    """What stands in a string as JSON, or as Python writes it. Raises DataError."""
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    with suppress(ValueError):
        if text.lstrip().startswith(("[", "{", "array(")):
            return python_literal(text)
    if not text.strip():
        raise DataError(f"{what} is empty", where=where, hint="remove the row")
    if said := said_by(text):
        turns = [{"role": ROLES[who], "content": one_line(words, 30)} for who, words in said[:2]]
        hint = f'write {{"messages": {json.dumps(turns, ensure_ascii=False)}}}'
        raise DataError(f"{what} is a single text with names of speakers", where=where, hint=hint)
    kind = "a list that numpy printed without commas" if _NO_COMMA.search(text) else "a string that is not valid JSON"
    hint = "write it with json.dumps, or save the table as JSONL or Parquet"
    raise DataError(f"{what} is {kind}", where=where, hint=hint)


def _part(part: object, what: str, where: str) -> str:
    if isinstance(part, Mapping):
        other = next((name for name in _NO_TEXT if part.get(name) is not None), None)
        is_text = part.get("type") in _TEXT_PARTS and other is None
        text = part.get("text") if is_text else None
        kind = one_line(str(part.get("type") or other or f"an object with {listed(part)}"), 60)
    else:
        text, kind = part, kind_of_value(part)
    if isinstance(text, str):
        return checked_text(text, where)
    medium = media_in(kind)
    hint = f"{medium} are not supported: remove the row" if medium else as_one_text(part)
    raise DataError(f"{what} has a part that is not text ({kind})", where=where, hint=hint)


def _called(value: object, what: str, where: str) -> list[Message] | None:
    """The calls of ShareGPT and xLAM: objects with a name, or their JSON as a text."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return None
    calls = found if isinstance(found, list) else [found]
    if not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls):
        return None
    return [_call(call, what, where) for call in calls]


def _call(call: object, what: str, where: str) -> Message:
    """A call as templates read it: {"type", "function": {"name", "arguments"}}, its arguments as an object."""
    if isinstance(call, str):
        call = _parsed(call, f"a tool call of {what}", where)
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise DataError(f"a tool call of {what} has no function name", where=where)
    arguments = function.get(_key(function, ("arguments", "args", "parameters", "input")), {})
    if isinstance(arguments, str) and arguments.strip():
        if not isinstance(read := written_value(arguments), Mapping):
            message = f"the arguments of a tool call of {what} are not a JSON object: '{one_line(arguments, 40)}'"
            raise DataError(message, where=where, hint='write them as an object, such as {"code": "1 + 1"}')
        arguments = read
    more = {"id": call["id"]} if call.get("id") is not None and "function" in call else {}
    return {**more, "type": "function", "function": {"name": function["name"], "arguments": arguments or {}}}


HISTORY = "history"
_REASONING = ("reasoning", "reasoning_content", "thinking", "thought", "thoughts", "rationale", "knowledge")
_NO_PAIR = Pair("", "")
NO_CONVERSATIONS = "no column holds conversations"
EXPECTED = (
    "expected messages, conversations, instruction and output, prompt and completion, or question and answer; for "
    'other names set data.text_column and data.target_column; for plain text set task.type = "causal_lm"'
)


@dataclass(frozen=True, slots=True)
class Conversation:
    """`messages` have "role" and "content", and what else their rows say, such as "tool_calls"; `weight` is 0 where a
    turn is marked as not learnt, and 1 where one is marked as learnt that is no answer."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    lists_tools: bool = False
    """Whether the system's turn has the tools in its text, so that `tools` are left out."""

    @property
    def text(self) -> str:
        """All that is learnt from, by which repeats are found. Parquet has more beside a message than JSON: times."""
        parts = [json.dumps(self.tools, sort_keys=True, default=str)] if self.tools else []
        for message in self.messages:
            more = {name: value for name, value in message.items() if name not in ("role", "content")}
            parts += [message["role"], message["content"]]
            parts += [json.dumps(more, sort_keys=True, ensure_ascii=False, default=str)] if more else []
        return "\n".join(parts)

    @property
    def keys_of_turns(self) -> set[str]:
        """What its turns have besides, where there is something in it: a template may read it."""
        more = (message.items() for message in self.messages if len(message) > 2)
        return {name for items in more for name, value in items if name not in _READ and value not in ("", [], {})}

    def refuse_unlearnable(self, row: Row, loss_on: str) -> None:
        """Raises DataError for what would be learnt otherwise than its row says, by `task.loss_on`."""
        refuse_bad_answer(row)
        if not _ROW_MARKS.isdisjoint(row.values):
            for name in _ROW_MARKS.intersection(row.values):
                _refuse_mark(row, name, loss_on)
        answers = [message for message in self.messages if message["role"] == "assistant"]
        if not answers and loss_on != "all":
            hint = "add an answer (data.target_column sets the column of answers), or remove the row"
            raise DataError("the conversation has no assistant turn to train on", where=row.where, hint=hint)
        for message in answers[-1:] if loss_on == "completion" else answers:
            if _is_blank(message["content"]) and "tool_calls" not in message and message.get("weight") != 0:
                what = f"the content of {self._name(message)}, an assistant turn, is empty"
                raise DataError(what, where=row.where, hint="write the answer, or remove the row")
        for message in [message for message in self.messages if "weight" in message]:
            if loss_on == "all" and not message["weight"]:
                what = f'{self._name(message)} is excluded from training, but task.loss_on = "all" trains on all turns'
                raise DataError(what, where=row.where, hint='set task.loss_on = "assistant"')
            if loss_on != "all" and message["weight"]:
                what = f"{self._name(message)} ({message['role']}) is marked for training, but is not an answer"
                raise DataError(what, where=row.where, hint='remove the mark, or set task.loss_on = "all"')
        asks = [message["content"] for message in self.messages if message["role"] == "user"]
        if asks and all(map(_is_blank, asks)):
            hint = "write the question, or remove the row"
            raise DataError("the user turns are empty", where=row.where, hint=hint)

    def _name(self, message: Message) -> str:
        return f"message {next(at for at, one in enumerate(self.messages, 1) if one is message)}"


def _is_blank(text: str) -> bool:
    return not text or text.isspace()


@dataclass(frozen=True, kw_only=True, slots=True)
class ConversationColumns:
    """Where the conversations of a table stand: in one column, or a question and an answer in some."""

    conversation: str = ""
    pair: Pair = _NO_PAIR
    """A question and its answer, and what stands in the same turn as the question in rows that have it."""
    is_usual: bool = False
    """Whether they have usual names, as what stands beside them has then."""
    opens: bool = False
    """Whether they are languages of a translation."""
    alternates: bool = False
    """Whether conversations are lists of plain texts."""
    system: str = ""
    history: str = ""
    """Earlier questions with their answers, as LLaMA-Factory and ChatGLM have them."""
    tools: str = ""
    wrapper: str = ""
    """The column of objects that hold all others."""
    picks_first: bool = False
    """Whether rows have several answers to a question, as SQuAD has them."""
    names: frozenset[str] = frozenset()
    beside: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    """Of the columns `beside` the turns those that are not read."""

    def note(self) -> str:
        if self.conversation:
            found = f"the conversations are in the column '{one_line(self.conversation, 40)}'"
        else:
            asks = " and ".join(f"'{one_line(name, 40)}'" for name in self.asks)
            first = " (the first of several)" if self.picks_first else ""
            found = f"the questions are in {asks}, the answers in '{one_line(self.pair.target, 40)}'{first}"
        if self.alternates:
            found += ", whose texts alternate between user and assistant"
        beside = {"the history": self.history, "the system prompt": self.system, "the tools": self.tools}
        found += "".join(f", {what} in '{one_line(name, 40)}'" for what, name in beside.items() if name)
        # What may be missed comes first.
        unread = sorted(self.unread, key=lambda name: name.lower() not in _REASONING)
        return f"{found} (not read: {listed(unread)})" if unread else found

    @property
    def asks(self) -> tuple[str, ...]:
        """The columns of the question, in their order in the turn."""
        return (*self.pair.before, self.pair.source, *self.pair.after) if self.pair.source else ()

    def with_columns_of(self, row: Row) -> "ConversationColumns":
        """With those that no row before had: what stands beside the turns may come late."""
        values = _unwrapped(row, self.wrapper).values if self.wrapper else row.values
        return self if self.names.issuperset(values) else self.with_names([*self.asks, *self.beside, *values])

    def with_names(self, names: Iterable[str]) -> "ConversationColumns":
        """With what stands beside the turns in a table with these columns."""
        names = list(dict.fromkeys(names))
        found = replace(self, pair=with_beside(self.pair, names)) if self.is_usual else self
        turns = (found.conversation, found.pair.target, *found.asks)
        beside = [name for name in names if name not in turns]
        first = partial(usual_columns, names=beside)
        system, tools = (next(iter(first(usual)), "") for usual in (SYSTEM_NAMES, TOOLS_NAMES))
        history = "" if self.conversation else next(iter(first((HISTORY,))), "")
        read = {system, tools, history, *_ROW_MARKS}
        if found.opens:
            read.add(TRANSLATION)
        return replace(
            found, names=self.names.union(turns, beside), beside=tuple(beside), system=system, tools=tools,
            history=history, unread=tuple(name for name in beside if name not in read)
        )  # fmt: skip

    def read(self, row: Row) -> Conversation:
        """The conversation of one row. Raises DataError with its place for one that cannot be used."""
        known = self.with_columns_of(row)
        if known is not self:
            return known.read(row)
        if self.wrapper:
            row = _unwrapped(row, self.wrapper)
        row = opened(row) if self.opens else row
        column = self.conversation
        messages = messages_of(value_of(row, column), row.where) if column else self._turns(row)
        system = row.values.get(self.system) if self.system else None
        if system is not None and system != "":
            text = content_of(system, f"the column '{one_line(self.system, 40)}'", row.where)
            if messages[0]["role"] != "system":
                messages.insert(0, {"role": "system", "content": text})
            elif messages[0]["content"].strip() != text.strip():
                what = f"the column '{one_line(self.system, 40)}' and the conversation have different system turns"
                raise DataError(what, where=row.where, hint="remove one of the two")
        tools = _tools(row, self.tools) if self.tools else ()
        # Hermes has the tools in the text of the system as well: a template would write them again.
        lists_tools = bool(tools) and messages[0]["role"] == "system" and "<tools>" in messages[0]["content"]
        return Conversation(tuple(messages), () if lists_tools else tools, lists_tools)

    def _turns(self, row: Row) -> list[Message]:
        turns = _history(row, self.history) if self.history else []
        question, answer = value_of(row, self.pair.source), self.pair.target
        if (listed := _messages_in(question, row.where)) is not None:
            turns += messages_of(listed, row.where)
        else:
            parts = [_text(row, name) for name in self.asks if name == self.pair.source or row.values.get(name)]
            turns += [{"role": "user", "content": "\n\n".join(part for part in parts if part)}]
        if not answer:
            return turns
        if self.tools and (calls := _called(value_of(row, answer), "the answer", row.where)):
            return [*turns, {"role": "assistant", "content": "", "tool_calls": calls}]
        if (listed := _messages_in(value_of(row, answer), row.where)) is not None:
            return turns + messages_of(listed, row.where)
        return [*turns, {"role": "assistant", "content": _answer(row, answer)}]


def find_conversations(
    head: Sequence[Row],
    text_column: str = AUTO,
    target_column: str = AUTO,
    pair_column: str = "",
    *,
    needs_answer: bool = True,
) -> ConversationColumns:
    """The columns of the conversations, by the first rows. Raises DataError, with the nearest name, for none, and for
    turns that stand in rows of their own or in a tree.

    Without `needs_answer` the columns of questions are enough, and any column that holds the text will do.
    """
    label, opens = file_of(head), bool(languages_of(head))
    head = [opened(row) for row in head] if opens else head
    names = columns_of(head)
    refuse_missing(names, label, text=text_column, target=target_column, text_pair=pair_column)
    if text_column == AUTO:
        refuse_unlearnt(head)
    found = _choose(head, names, text_column, target_column, pair_column, needs_answer)
    where = names if found is None else [found.conversation] if found.conversation else []
    wrapper = next((name for name in where if any(_wrapped(row.values.get(name)) for row in head)), "")
    if wrapper:
        if beside := usual_columns(ANSWER_NAMES, names):
            what = f"requests in '{one_line(wrapper, 40)}' and answers in '{one_line(beside[0], 40)}'"
            hint = "write both into one list, in a column named messages"
            raise DataError(f"the rows have {what}, which cannot be combined", where=label, hint=hint)
        head = [_unwrapped(row, wrapper) for row in head]
        names = columns_of(head)
        found = _choose(head, names, AUTO, AUTO, "", needs_answer)
    if found is None and text_column == AUTO:
        _refuse_scattered(head, names, label)
    if found is None and not needs_answer:
        text = ColumnChoices(text_column).choose(head)
        found = ConversationColumns(pair=Pair(text, ""))
    if found is None:
        likely = likely_pair(head, sentences=False)
        hint = f"columns found: {listed(names)}; {f'{as_pair(likely)}; ' if likely else ''}{EXPECTED}"
        raise DataError(NO_CONVERSATIONS, where=label, hint=hint)
    picks_first = any(answers_in(row.values.get(found.pair.target))[0] for row in head)
    alternates = any(_are_texts(row.values.get(found.conversation)) for row in head)
    found = replace(found, wrapper=wrapper, picks_first=picks_first, opens=opens, alternates=alternates)
    found = found.with_names(names)
    return found if needs_answer else replace(found, pair=replace(found.pair, target=""))


def question_of(conversation: Conversation, where: str) -> tuple[Message, ...]:
    """All up to the assistant's last turns, which are what is asked for. Raises DataError where nobody asks."""
    messages = conversation.messages
    while messages and messages[-1]["role"] == "assistant":
        messages = messages[:-1]
    if not any(one["role"] == "tool" or (one["role"] == "user" and one["content"].strip()) for one in messages):
        raise DataError("the conversation has no user turn with text", where=where)
    return messages


def _choose(
    head: Sequence[Row], names: Sequence[str], text: str, target: str, pair: str, needs_answer: bool
) -> ConversationColumns | None:
    by_name = {name.strip().lower(): name for name in reversed(names)}
    if text != AUTO:
        answer = target if target != AUTO else usual_target(text, names)
        # Beside whole conversations a column `answer` has the last word alone.
        is_whole = text.strip().lower() in CONVERSATION_NAMES
        if target == AUTO and (is_whole or not answer) and _is_conversation(head, text):
            return ConversationColumns(conversation=text)
        named = Pair(text, answer, after=tuple(filter(None, [pair])))
        return ConversationColumns(pair=named) if answer or not needs_answer else None
    if target == AUTO:
        for usual in CONVERSATION_NAMES:
            if usual in by_name and _is_conversation(head, by_name[usual]):
                return ConversationColumns(conversation=by_name[usual])
    found = find_pair(head, names, file_of(head), target)
    if not (needs_answer or (found.source and found.target)):
        found = usual_input(names)
    if found.source and (found.target or not needs_answer):
        return ConversationColumns(pair=replace(found, after=(pair,)) if pair else found, is_usual=not pair)
    turns = [name for name in names if any(_holds_turns(row.values.get(name)) for row in head)]
    # UltraChat, as it was published.
    turns = turns or [
        name for name in usual_columns(("data",), names) if any(_are_texts(row.values.get(name)) for row in head)
    ]
    if len(turns) > 1:
        hint = f"set data.text_column to one of them: {listed(turns)}"
        raise DataError("several columns hold conversations", where=file_of(head), hint=hint)
    return ConversationColumns(conversation=turns[0]) if turns and target == AUTO else None


def _is_conversation(head: Sequence[Row], name: str) -> bool:
    """By a name that says so whatever the values are, or by lists and objects, which may be written in strings."""
    return name.strip().lower() in CONVERSATIONS or is_structured(head, name, transcripts=True)


def _holds_turns(value: object) -> bool:
    """A list of which each entry has a known role and something to say. Inputs with outputs may be examples, which are
    no turns of one conversation."""
    if isinstance(value, str) and _TURNS.match(value):
        with suppress(DataError):
            value = _parsed(value, "", "")
    entries = transposed(value)
    if not isinstance(entries, list) or not entries:
        return False
    if any(_are_texts(one) and not _role_of(one[0]) for one in (entries, *entries)):
        return False
    return all(
        isinstance(turn, Mapping) and _role_of(turn.get(_key(turn, _ROLE_KEYS))) and _key(turn, _CONTENT_KEYS)
        for turn in _turns_of(entries) or ()
    ) and not any(isinstance(one, Mapping) and one.keys() <= _TURN_KEYS.keys() for one in entries)


def _wrapped(value: object) -> Mapping[str, Any] | None:
    """{"messages": [...], "tools": ...}, as services get it, or that in a string."""
    if isinstance(value, str) and _WRAPPED.match(value):
        with suppress(DataError):
            value = _parsed(value, "", "")
    if isinstance(value, Mapping) and any(isinstance(value.get(name), list) for name in CONVERSATION_NAMES):
        return value
    return None


def _unwrapped(row: Row, wrapper: str) -> Row:
    others = {name: value for name, value in row.values.items() if name != wrapper}
    return Row(row.where, {**others, **(_wrapped(value_of(row, wrapper)) or {})})


def _refuse_scattered(head: Sequence[Row], names: Sequence[str], label: str) -> None:
    """Raises DataError for conversations of which a row has one turn, or a tree of turns."""
    hint = "write each conversation as one list, in a column named messages"
    by_name = {name.strip().lower(): name for name in reversed(names)}
    roles = [row.values.get(by_name.get("role", "")) for row in head]
    content = next((by_name[name] for name in _CONTENT_KEYS if name in by_name), "")
    if content and all(map(_role_of, roles)):
        found = listed([by_name["role"], content])
        raise DataError(f"each row is one turn of a conversation ({found})", where=label, hint=hint)
    if tree := next((name for name in names if any(_is_tree(row.values.get(name)) for row in head)), ""):
        raise DataError(f"the column '{one_line(tree, 40)}' holds trees of turns", where=label, hint=hint)


def _refuse_mark(row: Row, name: str, loss_on: str) -> None:
    """Raises DataError for a row that is to be learnt in part, or not at all."""
    if (value := row.values[name]) is None:
        return
    says = _yes_no(value)
    if name == "mask_history":
        if says and loss_on == "assistant":
            what = "the column 'mask_history' limits training to the last answer"
            raise DataError(what, where=row.where, hint='set task.loss_on = "completion"')
    elif says is False:
        what = f"the column '{name}' is {_shown(value)}, which excludes the row from training"
        raise DataError(what, where=row.where, hint="remove the row")
    elif says is None:
        what = f"the column '{name}' is {_shown(value)}, but must include or exclude the whole row"
        raise DataError(what, where=row.where, hint="write 0 or 1, or rename the column")


def _history(row: Row, column: str) -> list[Message]:
    """Turns before the question: messages, or pairs of a question and its answer."""
    value, what = row.values.get(column), f"the column '{one_line(column, 40)}'"
    if isinstance(value, str):
        value = _parsed(value, what, row.where) if value.strip() else None
    if not value:
        return []
    if not isinstance(value, list) or not all(isinstance(pair, list | tuple) for pair in value):
        return messages_of(value, row.where)
    turns: list[Message] = []
    for number, pair in enumerate(value, 1):
        if len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            message = f"entry {number} of {what} is not a question with its answer"
            raise DataError(message, where=row.where, hint='expected [["a question", "its answer"], ...]')
        texts = zip(("user", "assistant"), pair, strict=True)
        turns += [{"role": role, "content": checked_text(text, row.where)} for role, text in texts]
    return turns


def _messages_in(value: object, where: str) -> list[Any] | None:
    """A question or an answer that is a list of messages, or one message. One in a string may be any other list.
    Raises DataError for messages in a string that cannot be read: they are no text."""
    if isinstance(value, str):
        return _parsed(value, "the conversation", where) if _TURNS.match(value) else None
    if isinstance(value, Mapping) and answers_in(value)[0] and not _key(value, _ROLE_KEYS):
        return None
    value = transposed(value)
    if isinstance(value, Mapping):
        return [value] if _role_of(value.get(_key(value, _ROLE_KEYS))) else None
    if isinstance(value, list) and any(isinstance(one, Mapping | list) and "text" not in one for one in value):
        return value
    return None


def _text(row: Row, column: str) -> str:
    value, what = value_of(row, column), f"the column '{one_line(column, 40)}'"
    if isinstance(value, str):
        return checked_text(value, row.where)
    if _are_texts(value) and len(value) > 1:
        raise DataError(f"{what} is a list of {len(value)} texts", where=row.where, hint=as_one_text(value))
    return content_of(value, what, row.where)


def _answer(row: Row, column: str) -> str:
    """Return the answer of a row: a string, or the first of several equivalent ones. Raises DataError."""
    value = value_of(row, column)
    if isinstance(value, str) and not _is_blank(value):
        return checked_text(value, row.where)
    texts, are_alike = answers_in(value)
    what = f"the column '{one_line(column, 40)}'"
    if not (are_alike and column.strip().lower() in ALL_RIGHT):
        refuse_several(texts, column, row.where)
    if texts or (isinstance(value, Mapping) and "text" in value):
        value = next(iter(texts), "")
    text = content_of(value, what, row.where)
    if _is_blank(text):
        # In a CSV what is missing is an empty string: a model would learn to answer nothing.
        raise DataError(f"{what} is empty", where=row.where, hint="write the answer, or remove the row")
    return text


def _tools(row: Row, column: str) -> tuple[Mapping[str, Any], ...]:
    """What the conversation may call: a list of JSON schemas, each of which may be a string, or that list as one."""
    found, what = row.values.get(column), f"the column '{one_line(column, 40)}'"
    if isinstance(found, str):
        found = _parsed(found, what, row.where) if found.strip() else None
    if not found:
        return ()
    if isinstance(found, list):
        found = [_parsed(tool, f"a tool of {what}", row.where) if isinstance(tool, str) else tool for tool in found]
    if not isinstance(found, list) or not all(isinstance(tool, Mapping) for tool in found):
        kind = "a list with items that are not objects" if isinstance(found, list) else kind_of_value(found)
        raise DataError(f"{what} is {kind}, not a list of JSON schemas", where=row.where)
    return tuple(found)
