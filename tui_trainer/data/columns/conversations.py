"""Conversations in the rows of a table, converted from every supported form into messages with a role and a content.
Each role has one name, contents are strings, and tool calls are objects.

    messages: [{role, content}]             most data sets and services
    conversations: [{from, value}]          ShareGPT
    [{type, content}], [{role, parts}]      LangChain, Gemini; also [[role, text]] and [{human, assistant}]
    {role: [...], content: [...]}           lists of messages as `datasets` writes them to Parquet
    instruction, input, output              Alpaca; also context, response, and history: [[question, answer]]
    prompt, completion                      strings, or lists of messages
    question, answer, context

Beside these columns, `system` is the first turn, and `tools` are the functions that may be called. In a CSV, a list may
be JSON or a Python literal in a string. Rows in any other form are refused, with the reason.
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
    columns_of,
    file_of,
    is_structured,
    kind_of_value,
    listed,
    media_in,
    one_text_hint,
    python_literal,
    refuse_bad_answer,
    refuse_missing,
    refuse_unsupported_rows,
    split_transcript,
    transposed,
    usual_columns,
    value_of,
    written_value,
)
from tui_trainer.data.columns.text_columns import (
    EQUIVALENT_ANSWERS,
    TRANSLATION,
    ColumnChoices,
    Pair,
    answers_in,
    checked_text,
    find_pair,
    languages_of,
    likely_pair,
    pair_hint,
    refuse_several_answers,
    usual_input,
    usual_target,
    with_further_texts,
    with_languages,
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

# The names that data sets use for each role. Source: the formats of ShareGPT, LangChain, OpenAssistant and Firefly, and
# of OpenAI's, Anthropic's, Google's and Cohere's services.
ROLES = {
    "system": "system", "developer": "system",
    "user": "user", "human": "user", "prompter": "user",
    "assistant": "assistant", "gpt": "assistant", "chatgpt": "assistant", "model": "assistant", "bot": "assistant",
    "ai": "assistant", "chatbot": "assistant",
    "tool": "tool", "function": "tool", "observation": "tool", "function_response": "tool", "tool_response": "tool",
    "ipython": "tool", "function_call": "assistant", "tool_call": "assistant",
}  # fmt: skip
_READ_KEYS = ("role", "content", "weight", "tool_calls")
_CALL_ROLES = ("function_call", "tool_call")
# The first of these keys in a turn is its role, or its content.
_ROLE_KEYS = ("role", "from", "speaker", "author", "type")
_CONTENT_KEYS = ("content", "value", "text", "message", "parts")
_TURN_KEYS = {"system": "system", "user": "user", "human": "user", "input": "user",
              "assistant": "assistant", "bot": "assistant", "output": "assistant"}  # fmt: skip
# Flags that include a turn in training or exclude it, and the meaning of a true value. Source: the formats of OpenAI,
# axolotl, ms-swift, OpenChat and NeMo.
_FLAGS = {
    **dict.fromkeys(("weight", "loss", "loss_weight", "loss_scale"), True),
    **dict.fromkeys(("train", "training", "trainable", "train_on_turn"), True),
    "masked": False,
}
_UNCLEAR_FLAGS = ("mask", "loss_mask", "train_detail", "training_detail")
_ROW_FLAGS = frozenset(("weight", "loss_weight", "sample_weight", "train", "trainable", "mask_history"))
_BOOLEANS = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}
_FLAG_HINT = 'to exclude a turn from training, give it "weight": 0, and give the other turns no flag'

_WRAPPED = re.compile(r"\s*\{\s*['\"]")
_TURNS = re.compile(r"\s*\[\s*\{\s*['\"](role|from|content|value)['\"]\s*:")
_NO_COMMA = re.compile(r"[}\]]\s*\n\s*[{\[]|\barray\(")
_RESPONSE = "<tool_response>"
_RESPONSES = re.compile(r"<tool_response>\s*(.*?)\s*</tool_response>", re.DOTALL)
_TEXT_PARTS = (None, "text", "input_text", "output_text")
_OTHER_PARTS = ("image", "image_url", "audio", "input_audio", "video", "file", "functionCall", "functionResponse")
_ALTERNATING_ROLES = ("user", "assistant")
_EXAMPLE_ROW = 'write {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}'


def messages_of(value: object, where: str) -> list[Message]:
    """Convert a list of turns, or such a list in a string, to messages. Raises DataError for any other value."""
    if isinstance(value, str):
        value = _parse(value, "the conversation", where)
    turns = _turns_of(value)
    if turns is None:
        kind = "a tree of turns" if _is_tree(value) else kind_of_value(value)
        raise DataError(f"the conversation is {kind}, not a list of messages", where=where, hint=_EXAMPLE_ROW)
    if not turns:
        raise DataError("the conversation has no messages", where=where)
    messages: list[Message] = []
    for number, entry in enumerate(turns, start=1):
        if message := _simple_message(entry, where):
            messages.append(message)
        else:
            messages += [_converted_turn(part, f"message {number}", where) for part in _split_turn(entry)]
    return messages


def content_of(value: object, subject: str, where: str) -> str:
    """Return a string, or the joined texts of a list of parts. Raises DataError for null and for parts without text."""
    if isinstance(value, str):
        return checked_text(value, where)
    if isinstance(value, Mapping):
        parts = value.get("parts", transposed(value))
        value = parts if isinstance(parts, list) else [value] if "text" in value or "type" in value else value
    if isinstance(value, list):
        return "".join(_text_of_part(part, subject, where) for part in value)
    hint = "write the value as a string" if isinstance(value, int | float) else ""
    raise DataError(f"{subject} is {kind_of_value(value)}, not a string", where=where, hint=hint)


def _simple_message(entry: Any, where: str) -> Message | None:
    """Convert the most common form, a role and a string, faster than `_converted_turn`; return None for other forms."""
    if type(entry) is not dict or len(entry) != 2:
        return None
    role, text = (entry["from"], entry.get("value")) if "from" in entry else (entry.get("role"), entry.get("content"))
    if not isinstance(role, str) or not isinstance(text, str) or role not in ROLES or role in _CALL_ROLES:
        return None
    if _RESPONSE in text and ROLES[role] == "tool":
        return None
    return {"role": ROLES[role], "content": checked_text(text, where)}


def _split_turn(entry: object) -> Iterator[object]:
    """Yield the messages in one turn. Anthropic's tool results and Hermes's tool responses become one message each."""
    if not isinstance(entry, Mapping):
        yield entry
        return
    content_key = _key_in(entry, _CONTENT_KEYS)
    content = entry.get(content_key)
    if isinstance(content, str) and _role_of(entry.get(_key_in(entry, _ROLE_KEYS))) == "tool":
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
    other_parts = [part for part in content if not (isinstance(part, Mapping) and part.get("type") in parts)]
    extras: Message = {"tool_calls": parts["tool_use"]} if parts["tool_use"] else {}
    if parts["thinking"]:
        extras["thinking"] = "\n".join(str(part.get("thinking", "")) for part in parts["thinking"])
    if other_parts or extras:
        yield {**entry, content_key: other_parts, **extras}


def _converted_turn(entry: object, subject: str, where: str) -> Message:
    """Convert one turn of any form to a message. Raises DataError for an unknown role or content."""
    if not isinstance(entry, Mapping):
        raise DataError(f"{subject} is {kind_of_value(entry)}, not an object with a role and a content", where=where)
    role_key = _key_in(entry, _ROLE_KEYS)
    role_name = entry.get(role_key)
    role = _role_of(role_name)
    if role is None:
        roles = ", ".join(dict.fromkeys(ROLES.values()))
        if role_name is None:
            keys_note = f"keys found: {listed(entry)}; " if entry else ""
            raise DataError(f"{subject} has no role", where=where, hint=f"{keys_note}add one of the roles {roles}")
        message = f"the role '{one_line(str(role_name), 40)}' of {subject} is unknown"
        raise DataError(message, where=where, hint=f"known roles: {roles}")
    content_key = _key_in(entry, _CONTENT_KEYS)
    content = entry.get(content_key)
    other_items = ((name, value) for name, value in entry.items() if name not in (role_key, content_key))
    extras = {str(name): value for name, value in other_items if value is not None}
    if extras:
        _normalize_extras(extras, role, subject, where)
        if content is None and "tool_calls" in extras:
            content = ""
    text = content_of(content, f"the content of {subject}", where)
    is_call = str(role_name).strip().lower() in _CALL_ROLES
    if is_call and (calls := _calls_in(text, subject, where)):
        return {"role": role, "content": "", "tool_calls": calls}
    return {"role": role, "content": text, **extras}


def _normalize_extras(extras: Message, role: str, subject: str, where: str) -> None:
    """Normalize the keys of a turn other than role and content, in place: tool calls become objects, and loss flags
    become a `weight` of 0 or 1, or nothing if that is the default."""
    # OpenAI's service had a single call per turn before it had `tool_calls`.
    if call := extras.pop("function_call", None):
        extras.setdefault("tool_calls", [call])
    if "tool_calls" in extras:
        calls = transposed(extras.pop("tool_calls"))
        if isinstance(calls, str):
            calls = _parse(calls, f"tool_calls of {subject}", where) if calls.strip() else None
        if calls:
            calls = calls if isinstance(calls, list) else [calls]
            extras["tool_calls"] = [_call(call, subject, where) for call in calls]
    includes_turn = set[bool]()
    for name in (name for name in _FLAGS if name in extras):
        value = extras.pop(name)
        if (flag := _boolean(value)) is None:
            message = f"the loss flag '{name}' of {subject} is {_shown(value)}"
            raise DataError(f"{message}, but must include or exclude the whole turn", where=where, hint="write 0 or 1")
        includes_turn.add(flag == _FLAGS[name])
    if unclear_flag := next((name for name in _UNCLEAR_FLAGS if name in extras), ""):
        message = f"the loss flag '{unclear_flag}' of {subject} is ambiguous: it may include or exclude the turn"
        raise DataError(message, where=where, hint=_FLAG_HINT)
    if len(includes_turn) > 1:
        raise DataError(f"the loss flags of {subject} contradict each other", where=where, hint=_FLAG_HINT)
    if includes_turn and (includes_turn == {False} or role != "assistant"):
        extras["weight"] = int(True in includes_turn)


def _role_of(name: object) -> str | None:
    return ROLES.get(name.strip().lower()) if isinstance(name, str) else None


def _key_in(entry: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return the first of these keys that has a value in `entry`, or "". A `type` must have a role as its value."""
    filled_names = (name for name in names if entry.get(name) is not None)
    return next((name for name in filled_names if name != "type" or _role_of(entry[name])), "")


def _boolean(value: object) -> bool | None:
    return _BOOLEANS.get(str(value).strip().lower()) if isinstance(value, bool | int | float | str) else None


def _shown(value: object) -> str:
    return one_line(str(value), 20) if isinstance(value, int | float | str) else kind_of_value(value)


def _turns_of(value: object) -> list[object] | None:
    """Return the list of turns, or None if the value is not a list. Converts [role, text], {"human": ..., "assistant":
    ...}, and the nested objects of LangChain and ChatGPT to turns with a role and a content."""
    value = transposed(value)
    if not isinstance(value, list):
        return None
    if value and isinstance(value[0], Mapping) and ("role" in value[0] or "from" in value[0]):
        return value
    if _are_texts(value):
        return [{"role": _ALTERNATING_ROLES[position % 2], "content": text} for position, text in enumerate(value)]
    turns: list[object] = []
    for entry in value:
        if isinstance(entry, list | tuple) and len(entry) == 2 and _role_of(entry[0]):
            turns.append({"role": entry[0], "content": entry[1]})
        elif _are_texts(entry) and len(entry) == 2:
            turns += _turns_of(entry) or []
        elif not isinstance(entry, Mapping) or not entry:
            turns.append(entry)
        elif isinstance(inner_entry := entry.get("data"), Mapping):
            turns.append({**inner_entry, "role": entry.get("type")})
        elif isinstance(inner_entry := entry.get("author"), Mapping):
            turns.append({**entry, "author": inner_entry.get("role")})
        elif entry.keys() <= _TURN_KEYS.keys():
            texts_by_role = ((role, entry[name]) for name, role in _TURN_KEYS.items() if name in entry)
            turns += [{"role": role, "content": text} for role, text in texts_by_role if role != "system" or text]
        else:
            turns.append(entry)
    return turns


def _are_texts(value: object) -> TypeGuard[list[str]]:
    """Return whether the value is a list of plain texts, in which two speakers alternate."""
    return isinstance(value, list) and len(value) > 0 and all(isinstance(item, str) for item in value)


def _is_tree(value: object) -> bool:
    """Return whether the value is a tree of turns: ChatGPT's {id: {"parent", "children", ...}}, or OpenAssistant's."""
    if not isinstance(value, Mapping):
        return False
    nodes = [*value.values()][:2]
    is_node_tree = nodes and all(isinstance(node, Mapping) and {"parent", "children"} <= node.keys() for node in nodes)
    return bool(is_node_tree) or "replies" in value


def _parse(text: str, subject: str, where: str) -> Any:
    """Parse a string that is JSON or a Python literal. Raises DataError."""
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    with suppress(ValueError):
        if text.lstrip().startswith(("[", "{", "array(")):
            return python_literal(text)
    if not text.strip():
        raise DataError(f"{subject} is empty", where=where, hint="remove the row")
    if turns := split_transcript(text):
        examples = [{"role": ROLES[speaker], "content": one_line(words, 30)} for speaker, words in turns[:2]]
        hint = f'write {{"messages": {json.dumps(examples, ensure_ascii=False)}}}'
        raise DataError(f"{subject} is a single text with names of speakers", where=where, hint=hint)
    kind = "a list that numpy printed without commas" if _NO_COMMA.search(text) else "a string that is not valid JSON"
    hint = "write the value with json.dumps, or save the table as JSONL or Parquet"
    raise DataError(f"{subject} is {kind}", where=where, hint=hint)


def _text_of_part(part: object, subject: str, where: str) -> str:
    """Return the text of a part of a turn's content. Raises DataError for images and other parts that are not text."""
    if isinstance(part, Mapping):
        other_kind = next((name for name in _OTHER_PARTS if part.get(name) is not None), None)
        is_text = part.get("type") in _TEXT_PARTS and other_kind is None
        text = part.get("text") if is_text else None
        kind = one_line(str(part.get("type") or other_kind or f"an object with {listed(part)}"), 60)
    else:
        text, kind = part, kind_of_value(part)
    if isinstance(text, str):
        return checked_text(text, where)
    medium = media_in(kind)
    hint = f"{medium} are not supported: remove the row" if medium else one_text_hint(part)
    raise DataError(f"{subject} has a part that is not text ({kind})", where=where, hint=hint)


def _calls_in(value: object, subject: str, where: str) -> list[Message] | None:
    """Return the tool calls of ShareGPT and xLAM, objects with a name or their JSON; None for any other content."""
    try:
        parsed_value = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return None
    calls = parsed_value if isinstance(parsed_value, list) else [parsed_value]
    if not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls):
        return None
    return [_call(call, subject, where) for call in calls]


def _call(call: object, subject: str, where: str) -> Message:
    """Convert a tool call to the form of chat templates: {"type", "function": {"name", "arguments"}}."""
    if isinstance(call, str):
        call = _parse(call, f"a tool call of {subject}", where)
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise DataError(f"a tool call of {subject} has no function name", where=where)
    arguments = function.get(_key_in(function, ("arguments", "args", "parameters", "input")), {})
    if isinstance(arguments, str) and arguments.strip():
        if not isinstance(parsed_arguments := written_value(arguments), Mapping):
            message = f"the arguments of a tool call of {subject} are not a JSON object: '{one_line(arguments, 40)}'"
            raise DataError(message, where=where, hint='write the arguments as an object, such as {"code": "1 + 1"}')
        arguments = parsed_arguments
    call_id = {"id": call["id"]} if call.get("id") is not None and "function" in call else {}
    return {**call_id, "type": "function", "function": {"name": function["name"], "arguments": arguments or {}}}


HISTORY = "history"
_REASONING = ("reasoning", "reasoning_content", "thinking", "thought", "thoughts", "rationale", "knowledge")
_NO_PAIR = Pair("", "")
NO_CONVERSATIONS = "no column holds conversations"
EXPECTED_COLUMNS_HINT = (
    "expected columns: messages, conversations, instruction and output, prompt and completion, or question and answer; "
    'for other names set data.text_column and data.target_column; for plain text set task.type = "causal_lm"'
)


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages of a row. `weight` is 0 in an answer to skip in training, and 1 in another turn to train on."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    lists_tools: bool = False
    """Whether the system turn already lists the tools in its text. `tools` is then empty."""

    @property
    def text(self) -> str:
        """All texts, tools and keys of the conversation as one string, which identifies duplicates."""
        parts = [json.dumps(self.tools, sort_keys=True, default=str)] if self.tools else []
        for message in self.messages:
            extras = {name: value for name, value in message.items() if name not in ("role", "content")}
            parts += [message["role"], message["content"]]
            parts += [json.dumps(extras, sort_keys=True, ensure_ascii=False, default=str)] if extras else []
        return "\n".join(parts)

    @property
    def keys_of_turns(self) -> set[str]:
        """Names of keys of the turns, besides those read here, that have a value and that a chat template may read."""
        entries = (item for message in self.messages if len(message) > 2 for item in message.items())
        return {name for name, value in entries if name not in _READ_KEYS and value not in ("", [], {})}

    def refuse_unlearnable(self, row: Row, loss_on: str) -> None:
        """Raise DataError if `task.loss_on` contradicts a flag of the row, or if turns to learn from are empty."""
        refuse_bad_answer(row)
        if not _ROW_FLAGS.isdisjoint(row.values):
            for name in _ROW_FLAGS.intersection(row.values):
                _refuse_flag(row, name, loss_on)
        answers = [message for message in self.messages if message["role"] == "assistant"]
        if not answers and loss_on != "all":
            hint = "add an answer (data.target_column sets the column of answers), or remove the row"
            raise DataError("the conversation has no assistant turn to train on", where=row.where, hint=hint)
        for message in answers[-1:] if loss_on == "completion" else answers:
            if _is_blank(message["content"]) and "tool_calls" not in message and message.get("weight") != 0:
                problem = f"the content of {self._name(message)}, an assistant turn, is empty"
                raise DataError(problem, where=row.where, hint="write the answer, or remove the row")
        for message in [message for message in self.messages if "weight" in message]:
            if loss_on == "all" and not message["weight"]:
                problem = f"{self._name(message)} is excluded from training"
                explanation = f'{problem}, but task.loss_on = "all" trains on all turns'
                raise DataError(explanation, where=row.where, hint='set task.loss_on = "assistant"')
            if loss_on != "all" and message["weight"]:
                problem = f"{self._name(message)} ({message['role']}) is marked for training, but is not an answer"
                raise DataError(problem, where=row.where, hint='remove the mark, or set task.loss_on = "all"')
        questions = [message["content"] for message in self.messages if message["role"] == "user"]
        if questions and all(map(_is_blank, questions)):
            hint = "write the question, or remove the row"
            raise DataError("the user turns are empty", where=row.where, hint=hint)

    def _name(self, message: Message) -> str:

        return f"message {next(number for number, other in enumerate(self.messages, 1) if other is message)}"


def _is_blank(text: str) -> bool:
    return not text or text.isspace()


@dataclass(frozen=True, kw_only=True, slots=True)
class ConversationColumns:
    """The columns of a table that hold conversations: one column, or a pair of question and answer."""

    conversation: str = ""
    pair: Pair = _NO_PAIR
    """The columns of question and answer, and the columns whose texts join the question in its turn."""
    is_usual: bool = False
    """Whether the pair has usual names. The usual further texts of the question are then read as well."""
    is_translation: bool = False
    """Whether question and answer are two languages of a column `translation`."""
    alternates: bool = False
    """Whether conversations are lists of plain texts, in which two speakers alternate."""
    system: str = ""
    history: str = ""
    """The column of earlier questions with their answers, as in LLaMA-Factory and ChatGLM."""
    tools: str = ""
    wrapper: str = ""
    """The column of objects that contain all other columns, such as requests to a service; empty if there is none."""
    picks_first: bool = False
    """Whether rows have several answers, as in SQuAD. The first one is then used."""
    names: frozenset[str] = frozenset()
    other_columns: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    """The columns that are not read, apart from those of the turns."""

    def note(self, *, has_answers: bool = True) -> str:
        """Return a sentence that names the columns. Without `has_answers`, they hold prompts."""
        if not has_answers:
            prompts = " and ".join(
                f"'{one_line(name, 40)}'" for name in (self.conversation, *self.question_columns) if name
            )
            sentence = f"the prompts are in {prompts}"
        elif self.conversation:
            sentence = f"the conversations are in the column '{one_line(self.conversation, 40)}'"
        else:
            questions = " and ".join(f"'{one_line(name, 40)}'" for name in self.question_columns)
            first = " (the first answer of each row)" if self.picks_first else ""
            sentence = f"the questions are in {questions}, the answers in '{one_line(self.pair.target, 40)}'{first}"
        if self.alternates:
            sentence += ", whose texts alternate between user and assistant"
        other_columns = {"the history": self.history, "the system prompt": self.system, "the tools": self.tools}
        sentence += "".join(f", {title} in '{one_line(name, 40)}'" for title, name in other_columns.items() if name)
        # Columns with reasoning come first, because users may expect them to be read.
        unread_columns = sorted(self.unread, key=lambda name: name.lower() not in _REASONING)
        return f"{sentence} (not read: {listed(unread_columns)})" if unread_columns else sentence

    @property
    def question_columns(self) -> tuple[str, ...]:
        """Columns whose texts form the turn of the question, in this order."""
        return (*self.pair.before, self.pair.source, *self.pair.after) if self.pair.source else ()

    def with_columns_of(self, row: Row) -> "ConversationColumns":
        """Return the columns for a table that also has the columns of this row."""
        values = _unwrapped(row, self.wrapper).values if self.wrapper else row.values
        if self.names.issuperset(values):
            return self
        return self.with_names([*self.question_columns, *self.other_columns, *values])

    def with_names(self, names: Iterable[str]) -> "ConversationColumns":
        """Return the columns for a table with these column names: also those of system prompt, tools and history."""
        names = list(dict.fromkeys(names))
        columns = replace(self, pair=with_further_texts(self.pair, names)) if self.is_usual else self
        turns = (columns.conversation, columns.pair.target, *columns.question_columns)
        other_names = [name for name in names if name not in turns]
        columns_among = partial(usual_columns, names=other_names)
        system, tools = (next(iter(columns_among(names_of_kind)), "") for names_of_kind in (SYSTEM_NAMES, TOOLS_NAMES))
        history = "" if self.conversation else next(iter(columns_among((HISTORY,))), "")
        read_names = {system, tools, history, *_ROW_FLAGS}
        if columns.is_translation:
            read_names.add(TRANSLATION)
        unread = tuple(name for name in other_names if name not in read_names)
        columns = replace(columns, system=system, tools=tools, history=history, unread=unread)
        return replace(columns, names=self.names.union(turns, other_names), other_columns=tuple(other_names))

    def read(self, row: Row) -> Conversation:
        """Return the conversation of a row. Raises DataError, with the position of the row, if it cannot be used."""
        columns = self.with_columns_of(row)
        if columns is not self:
            return columns.read(row)
        if self.wrapper:
            row = _unwrapped(row, self.wrapper)
        row = with_languages(row) if self.is_translation else row
        column = self.conversation
        messages = messages_of(value_of(row, column), row.where) if column else self._turns(row)
        system_value = row.values.get(self.system) if self.system else None
        if system_value is not None and system_value != "":
            text = content_of(system_value, f"the column '{one_line(self.system, 40)}'", row.where)
            if messages[0]["role"] != "system":
                messages.insert(0, {"role": "system", "content": text})
            elif messages[0]["content"].strip() != text.strip():
                problem = f"the column '{one_line(self.system, 40)}' and the conversation have different system turns"
                raise DataError(problem, where=row.where, hint="remove one of the system turns")
        tools = _tools_in(row, self.tools) if self.tools else ()
        # Hermes lists the tools in the system prompt, too: a template would write them a second time.
        lists_tools = bool(tools) and messages[0]["role"] == "system" and "<tools>" in messages[0]["content"]
        return Conversation(tuple(messages), () if lists_tools else tools, lists_tools)

    def _turns(self, row: Row) -> list[Message]:
        turns = _history_turns(row, self.history) if self.history else []
        question_value, answer_column = value_of(row, self.pair.source), self.pair.target
        if (messages := _embedded_messages(question_value, row.where)) is not None:
            turns += messages_of(messages, row.where)
        else:
            values = row.values
            names = [name for name in self.question_columns if name == self.pair.source or values.get(name)]
            parts = [_text_in(row, name) for name in names]
            turns += [{"role": "user", "content": "\n\n".join(part for part in parts if part)}]
        answers = answer_messages(row, answer_column, may_call=bool(self.tools)) if answer_column else []
        if answers and turns[-1]["role"] == "user" and answers[0]["role"] in ("system", "user"):
            message = (
                f"the column '{one_line(answer_column, 40)}' holds a whole conversation, not an answer to the prompt"
            )
            hint = "set data.text_column to it to read it alone, or remove the turns before the answer"
            raise DataError(message, where=row.where, hint=hint)
        return turns + answers


def answer_messages(row: Row, column: str, *, may_call: bool) -> list[Message]:
    """Return the messages in a column of answers: usually one turn. `may_call`: the row has tools, so the answer may be
    a call of one. Raises DataError."""
    if may_call and (calls := _calls_in(value_of(row, column), "the answer", row.where)):
        return [{"role": "assistant", "content": "", "tool_calls": calls}]
    if (messages := _embedded_messages(value_of(row, column), row.where)) is not None:
        return messages_of(messages, row.where)
    return [{"role": "assistant", "content": _answer_in(row, column)}]


def find_conversations(
    head: Sequence[Row],
    text_column: str = AUTO,
    target_column: str = AUTO,
    pair_column: str = "",
    *,
    needs_answer: bool = True,
) -> ConversationColumns:
    """Choose the columns of the conversations from the first rows.

    Raises DataError, with the nearest name, if there are none, or if each row is one turn or a tree of turns. Without
    `needs_answer`, questions without answers are accepted, and so is any column of text."""
    label, has_languages = file_of(head), bool(languages_of(head))
    head = [with_languages(row) for row in head] if has_languages else head
    names = columns_of(head)
    refuse_missing(names, label, text=text_column, target=target_column, text_pair=pair_column)
    if text_column == AUTO:
        refuse_unsupported_rows(head)
    columns = _choose(head, names, text_column, target_column, pair_column, needs_answer)
    candidates = names if columns is None else [columns.conversation or columns.pair.source]
    wrapper = next((name for name in candidates if any(_wrapper_object(row.values.get(name)) for row in head)), "")
    if wrapper:
        if answer_columns := usual_columns(ANSWER_NAMES, names):
            subject = f"requests in '{one_line(wrapper, 40)}' and answers in '{one_line(answer_columns[0], 40)}'"
            hint = "write requests and answers into one list, in a column named messages"
            raise DataError(f"the rows have {subject}, which cannot be combined", where=label, hint=hint)
        head = [_unwrapped(row, wrapper) for row in head]
        names = columns_of(head)
        columns = _choose(head, names, AUTO, AUTO, "", needs_answer)
    if columns is None and text_column == AUTO:
        _refuse_scattered(head, names, label)
    if columns is None and not needs_answer:
        text_name = ColumnChoices(text_column).choose(head)
        columns = ConversationColumns(pair=Pair(text_name, ""))
    if columns is None:
        likely_columns = likely_pair(head, sentences=False)
        pair_text = f"{pair_hint(likely_columns)}; " if likely_columns else ""
        hint = f"columns found: {listed(names)}; {pair_text}{EXPECTED_COLUMNS_HINT}"
        raise DataError(NO_CONVERSATIONS, where=label, hint=hint)
    picks_first = any(answers_in(row.values.get(columns.pair.target))[0] for row in head)
    alternates = any(_are_texts(row.values.get(columns.conversation)) for row in head)
    columns = replace(columns, wrapper=wrapper, picks_first=picks_first, alternates=alternates)
    columns = replace(columns, is_translation=has_languages).with_names(names)
    return columns if needs_answer else replace(columns, pair=replace(columns.pair, target=""))


def question_of(conversation: Conversation, where: str) -> tuple[Message, ...]:
    """Return the messages before the last answer. Raises DataError if none of them is a user turn with text."""
    messages = conversation.messages
    while messages and messages[-1]["role"] == "assistant":
        messages = messages[:-1]
    if not any(turn["role"] == "tool" or (turn["role"] == "user" and turn["content"].strip()) for turn in messages):
        raise DataError("the conversation has no user turn with text", where=where)
    return messages


def _choose(
    head: Sequence[Row], names: Sequence[str], text: str, target: str, pair: str, needs_answer: bool
) -> ConversationColumns | None:
    columns_by_name = {name.strip().lower(): name for name in reversed(names)}
    if text != AUTO:
        answer_column = target if target != AUTO else usual_target(text, names)
        # Next to whole conversations, a column `answer` only repeats the last turn.
        is_whole = text.strip().lower() in CONVERSATION_NAMES
        if target == AUTO and (is_whole or not answer_column) and _is_conversation(head, text):
            return ConversationColumns(conversation=text)
        pair_columns = Pair(text, answer_column, after=tuple(filter(None, [pair])))
        return ConversationColumns(pair=pair_columns) if answer_column or not needs_answer else None
    if target == AUTO:
        for usual_name in CONVERSATION_NAMES:
            if usual_name in columns_by_name and _is_conversation(head, columns_by_name[usual_name]):
                return ConversationColumns(conversation=columns_by_name[usual_name])
    usual_pair = find_pair(head, names, file_of(head), target)
    if not (needs_answer or (usual_pair.source and usual_pair.target)):
        usual_pair = usual_input(names)
    if usual_pair.source and (usual_pair.target or not needs_answer):
        return ConversationColumns(pair=replace(usual_pair, after=(pair,)) if pair else usual_pair, is_usual=not pair)
    turn_columns = [name for name in names if any(_holds_turns(row.values.get(name)) for row in head)]
    # UltraChat's original form.
    turn_columns = turn_columns or [
        name for name in usual_columns(("data",), names) if any(_are_texts(row.values.get(name)) for row in head)
    ]
    if len(turn_columns) > 1:
        hint = f"set data.text_column to one of {listed(turn_columns)}"
        raise DataError("several columns hold conversations", where=file_of(head), hint=hint)
    return ConversationColumns(conversation=turn_columns[0]) if turn_columns and target == AUTO else None


def _is_conversation(head: Sequence[Row], name: str) -> bool:
    """Return whether a column holds conversations, judging by its name, or else by its values."""
    return name.strip().lower() in CONVERSATIONS or is_structured(head, name, transcripts=True)


def _holds_turns(value: object) -> bool:
    """Return whether every entry of a list is a turn with a known role and a content. A list of {"input", "output"}
    does not count, because it may hold separate examples."""
    if isinstance(value, str) and _TURNS.match(value):
        with suppress(DataError):
            value = _parse(value, "", "")
    entries = transposed(value)
    if not isinstance(entries, list) or not entries:
        return False
    if any(_are_texts(entry) and not _role_of(entry[0]) for entry in (entries, *entries)):
        return False
    return all(
        isinstance(turn, Mapping) and _role_of(turn.get(_key_in(turn, _ROLE_KEYS))) and _key_in(turn, _CONTENT_KEYS)
        for turn in _turns_of(entries) or ()
    ) and not any(isinstance(entry, Mapping) and entry.keys() <= _TURN_KEYS.keys() for entry in entries)


def _wrapper_object(value: object) -> Mapping[str, Any] | None:
    """Return the object {"messages": [...], "tools": ...} of a request to a service, also from a string; else None."""
    if isinstance(value, str) and _WRAPPED.match(value):
        with suppress(DataError):
            value = _parse(value, "", "")
    if isinstance(value, Mapping) and any(isinstance(value.get(name), list) for name in CONVERSATION_NAMES):
        return value
    return None


def _unwrapped(row: Row, wrapper: str) -> Row:
    other_values = {name: value for name, value in row.values.items() if name != wrapper}
    return Row(row.where, {**other_values, **(_wrapper_object(value_of(row, wrapper)) or {})})


def _refuse_scattered(head: Sequence[Row], names: Sequence[str], label: str) -> None:
    """Raise DataError if each row is only one turn of a conversation, or holds a tree of turns."""
    hint = "write each conversation as one list, in a column named messages"
    columns_by_name = {name.strip().lower(): name for name in reversed(names)}
    roles = [row.values.get(columns_by_name.get("role", "")) for row in head]
    content_column = next((columns_by_name[name] for name in _CONTENT_KEYS if name in columns_by_name), "")
    if content_column and all(map(_role_of, roles)):
        turn_columns = listed([columns_by_name["role"], content_column])
        raise DataError(f"each row is one turn of a conversation ({turn_columns})", where=label, hint=hint)
    if tree_column := next((name for name in names if any(_is_tree(row.values.get(name)) for row in head)), ""):
        raise DataError(f"the column '{one_line(tree_column, 40)}' holds trees of turns", where=label, hint=hint)


def _refuse_flag(row: Row, name: str, loss_on: str) -> None:
    """Raise DataError if the flag in the column `name` excludes a part of the row, or all of it, from training."""
    if (value := row.values[name]) is None:
        return
    flag = _boolean(value)
    if name == "mask_history":
        if flag and loss_on == "assistant":
            problem = "the column 'mask_history' limits training to the last answer"
            raise DataError(problem, where=row.where, hint='set task.loss_on = "completion"')
    elif flag is False:
        problem = f"the column '{name}' is {_shown(value)}, which excludes the row from training"
        raise DataError(problem, where=row.where, hint="remove the row")
    elif flag is None:
        problem = f"the column '{name}' is {_shown(value)}, but must include or exclude the whole row"
        raise DataError(problem, where=row.where, hint="write 0 or 1, or rename the column")


def _history_turns(row: Row, column: str) -> list[Message]:
    """Return the turns before the question, from a column of messages or of [question, answer] pairs."""
    value, subject = row.values.get(column), f"the column '{one_line(column, 40)}'"
    if isinstance(value, str):
        value = _parse(value, subject, row.where) if value.strip() else None
    if not value:
        return []
    if not isinstance(value, list) or not all(isinstance(pair, list | tuple) for pair in value):
        return messages_of(value, row.where)
    turns: list[Message] = []
    for entry_number, pair in enumerate(value, 1):
        if len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            message = f"entry {entry_number} of {subject} is not a question with its answer"
            raise DataError(message, where=row.where, hint='expected [["a question", "its answer"], ...]')
        texts = zip(("user", "assistant"), pair, strict=True)
        turns += [{"role": role, "content": checked_text(text, row.where)} for role, text in texts]
    return turns


def _embedded_messages(value: object, where: str) -> list[Any] | None:
    """Return the messages of a question or an answer that is a list of messages; None for other values. Raises
    DataError for a string that begins like a list of messages, but cannot be parsed."""
    if isinstance(value, str):
        return _parse(value, "the conversation", where) if _TURNS.match(value) else None
    if isinstance(value, Mapping) and answers_in(value)[0] and not _key_in(value, _ROLE_KEYS):
        return None
    value = transposed(value)
    if isinstance(value, Mapping):
        return [value] if _role_of(value.get(_key_in(value, _ROLE_KEYS))) else None
    if isinstance(value, list) and any(isinstance(item, Mapping | list) and "text" not in item for item in value):
        return value
    return None


def _text_in(row: Row, column: str) -> str:
    """Return the text in a column of the question. Raises DataError if it is not a single text."""
    value, subject = value_of(row, column), f"the column '{one_line(column, 40)}'"
    if isinstance(value, str):
        return checked_text(value, row.where)
    if _are_texts(value) and len(value) > 1:
        raise DataError(f"{subject} is a list of {len(value)} texts", where=row.where, hint=one_text_hint(value))
    return content_of(value, subject, row.where)


def _answer_in(row: Row, column: str) -> str:
    """Return the answer of a row: a string, or the first of several that are all correct. Raises DataError."""
    value = value_of(row, column)
    if isinstance(value, str) and not _is_blank(value):
        return checked_text(value, row.where)
    texts, are_alike = answers_in(value)
    subject = f"the column '{one_line(column, 40)}'"
    if not (are_alike and column.strip().lower() in EQUIVALENT_ANSWERS):
        refuse_several_answers(texts, column, row.where)
    if texts or (isinstance(value, Mapping) and "text" in value):
        value = next(iter(texts), "")
    text = content_of(value, subject, row.where)
    if _is_blank(text):
        # A CSV has an empty string for a missing value. The model would learn to answer nothing.
        raise DataError(f"{subject} is empty", where=row.where, hint="write the answer, or remove the row")
    return text


def _tools_in(row: Row, column: str) -> tuple[Mapping[str, Any], ...]:
    """Return the tools of a row: a list of JSON schemas. Each of them, or the whole list, may be a string."""
    tools, subject = row.values.get(column), f"the column '{one_line(column, 40)}'"
    if isinstance(tools, str):
        tools = _parse(tools, subject, row.where) if tools.strip() else None
    if not tools:
        return ()
    if isinstance(tools, list):
        tools = [_parse(tool, f"a tool of {subject}", row.where) if isinstance(tool, str) else tool for tool in tools]
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        kind = "a list with items that are not objects" if isinstance(tools, list) else kind_of_value(tools)
        raise DataError(f"{subject} is {kind}, not a list of JSON schemas", where=row.where)
    return tuple(tools)
