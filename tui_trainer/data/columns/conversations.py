"""Conversations out of the rows of a table: whatever form they have, they become messages of a role and a content.
Roles have one name each, contents are strings, tool calls objects.

    messages: [{role, content}]             as most data sets and services have it
    conversations: [{from, value}]          ShareGPT
    instruction, input, output              Alpaca; also context and response
    prompt, completion                      strings, or lists of messages
    question, answer, context

Beside them, `system` is what the conversation begins with and `tools` what may be called. A list may also be JSON in a
string, as a CSV has it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tui_trainer.data.columns.row import (
    AUTO,
    Row,
    columns_of,
    file_of,
    kind_of_value,
    listed,
    refuse_bad_answer,
    refuse_missing,
    usual_columns,
    value_of,
)  # fmt: skip
from tui_trainer.data.columns.row_kinds import refuse_unlearnt
from tui_trainer.data.columns.text_column import ColumnChoices, checked_text
from tui_trainer.errors import DataError
from tui_trainer.safe_text import one_line

Message = dict[str, Any]

# Every name that data sets use for a role. Source: the formats of ShareGPT, and of OpenAI's and Anthropic's services.
ROLES = {
    "system": "system", "developer": "system",
    "user": "user", "human": "user",
    "assistant": "assistant", "gpt": "assistant", "chatgpt": "assistant", "model": "assistant", "bot": "assistant",
    "tool": "tool", "function": "tool", "observation": "tool", "function_response": "tool", "tool_response": "tool",
    "function_call": "assistant", "tool_call": "assistant",
}  # fmt: skip
_CALLS = ("function_call", "tool_call")
_READ = ("role", "from", "content", "value")
_LIST = re.compile(r"\s*\[\s*\{")  # a list of objects, written as JSON


def messages_of(value: object, where: str) -> list[Message]:
    """The messages of a list, or of one that is written as JSON. Raises DataError for one that is no conversation."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise DataError("the conversation is a string that is no JSON", where=where) from None
    if not isinstance(value, list):
        raise DataError(f"the conversation is {kind_of_value(value)}, not a list of messages", where=where)
    if not value:
        raise DataError("the conversation has no messages", where=where)
    return [_message(entry, f"message {number}", where) for number, entry in enumerate(value, start=1)]


def content_of(value: object, what: str, where: str) -> str:
    """A string, or the texts of a list of parts. Raises DataError for null, and for what no text model reads."""
    if isinstance(value, list):
        return "".join(_part(part, what, where) for part in value)
    if not isinstance(value, str):
        raise DataError(f"{what} is {kind_of_value(value)}, not a string", where=where)
    return checked_text(value, where)


def _message(entry: object, what: str, where: str) -> Message:
    if not isinstance(entry, Mapping):
        raise DataError(f"{what} is {kind_of_value(entry)}, not an object with a role and a content", where=where)
    told = entry.get("role") if entry.get("role") is not None else entry.get("from")
    role = ROLES.get(told.strip().lower()) if isinstance(told, str) else None
    if role is None:
        shown = "none" if told is None else f"'{one_line(str(told), 40)}'"
        known = ", ".join(dict.fromkeys(ROLES.values()))
        raise DataError(f"the role of {what} is {shown}", where=where, hint=f"roles are {known}")
    more = {str(name): value for name, value in entry.items() if name not in _READ and value is not None}
    # The one call of a turn, as OpenAI's service had it before there were several.
    if call := more.pop("function_call", None):
        more.setdefault("tool_calls", [call])
    content = entry.get("content") if entry.get("content") is not None else entry.get("value")
    if content is None and more.get("tool_calls"):
        content = ""
    text = content_of(content, f"the content of {what}", where)
    calls = _called(text) if isinstance(told, str) and told.strip().lower() in _CALLS else None
    if calls:
        return {"role": role, "content": "", "tool_calls": calls}
    if more.get("tool_calls"):
        given = more["tool_calls"]
        more["tool_calls"] = [_call(call, what, where) for call in (given if isinstance(given, list) else [given])]
    else:
        more.pop("tool_calls", None)
    return {"role": role, "content": text, **more}


def _part(part: object, what: str, where: str) -> str:
    text = part.get("text") if isinstance(part, Mapping) else part
    if isinstance(text, str):
        return checked_text(text, where)
    kind = one_line(str(part.get("type")), 30) if isinstance(part, Mapping) else kind_of_value(part)
    raise DataError(f"{what} has a part that is no text ({kind})", where=where, hint="a text model reads text alone")


def _called(text: str) -> list[Message] | None:
    """ShareGPT's way to write a call: its JSON as the text of the turn."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    calls = found if isinstance(found, list) else [found]
    if not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls):
        return None
    return [_call(call, "", "") for call in calls]


def _call(call: object, what: str, where: str) -> Message:
    """A call as templates read it: {"type", "function": {"name", "arguments"}}, its arguments as an object."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise DataError(f"a tool call of {what} names no function", where=where)
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = function["arguments"]
    more = {"id": call["id"]} if call.get("id") is not None and "function" in call else {}
    return {**more, "type": "function", "function": {"name": function["name"], "arguments": arguments or {}}}


CONVERSATION_NAMES = ("messages", "conversations", "conversation", "dialogue", "dialog", "chat")
ANSWER_NAMES = ("output", "completion", "response", "answer", "answers", "assistant")
SYSTEM, TOOLS = "system", "tools"
EXPECTED = (
    "expected messages, conversations, instruction and output, prompt and completion, or question and answer; name "
    'others in data.text_column and data.target_column, or set task.type = "causal_lm" for plain text'
)


# A column that asks, and the columns that may stand before and after it in the same turn.
_QUESTIONS = {"instruction": ((), ("input", "context")), "prompt": ((), ()), "question": (("context",), ())}


@dataclass(frozen=True, slots=True)
class Conversation:
    """`messages` have "role" and "content", and what else their rows say, such as "tool_calls"."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()

    @property
    def text(self) -> str:
        """All that is learnt from, by which repeats are found. Parquet has more beside a message than JSON: times."""
        parts = [json.dumps(self.tools, sort_keys=True, default=str)] if self.tools else []
        for message in self.messages:
            more = {name: value for name, value in message.items() if name not in ("role", "content")}
            parts += [message["role"], message["content"]]
            parts += [json.dumps(more, sort_keys=True, ensure_ascii=False, default=str)] if more else []
        return "\n".join(parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class ConversationColumns:
    """Where the conversations of a table stand: in one column, or a question and an answer in some."""

    conversation: str = ""
    asks: tuple[str, ...] = ()
    """The columns of the question, in their order in the turn; `needed` is the one that every row has."""
    needed: str = ""
    answer: str = ""
    unread: tuple[str, ...] = ()

    def note(self) -> str:
        if self.conversation:
            found = f"the conversations are in the column '{one_line(self.conversation, 40)}'"
        else:
            asks = " and ".join(f"'{one_line(name, 40)}'" for name in self.asks)
            found = f"the questions are in {asks}, the answers in '{one_line(self.answer, 40)}'"
        return f"{found} (not read: {listed(self.unread)})" if self.unread else found

    def read(self, row: Row) -> Conversation:
        """The conversation of one row. Raises DataError with its place for one that cannot be used."""
        messages = messages_of(value_of(row, self.conversation), row.where) if self.conversation else self._turns(row)
        system = row.values.get(SYSTEM) if SYSTEM not in (self.conversation, self.answer, *self.asks) else None
        if isinstance(system, str) and system and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": checked_text(system, row.where)})
        return Conversation(tuple(messages), _tools(row))

    def _turns(self, row: Row) -> list[Message]:
        question = value_of(row, self.needed)
        if (listed := _messages_in(question)) is not None:
            turns = messages_of(listed, row.where)
        else:
            parts = [_text(row, name) for name in self.asks if name == self.needed or row.values.get(name)]
            turns = [{"role": "user", "content": "\n\n".join(part for part in parts if part)}]
        if not self.answer:
            return turns
        refuse_bad_answer(row, self.needed, self.answer)
        if (listed := _messages_in(value_of(row, self.answer))) is not None:
            return turns + messages_of(listed, row.where)
        text = _text(row, self.answer)
        if not text.strip():
            # In a CSV what is missing is an empty string: a model would learn to answer nothing.
            what = f"the column '{one_line(self.answer, 40)}' is empty"
            raise DataError(what, where=row.where, hint="write the answer, or leave the row out")
        return [*turns, {"role": "assistant", "content": text}]


def find_conversations(
    head: Sequence[Row],
    text_column: str = AUTO,
    target_column: str = AUTO,
    pair_column: str = "",
    *,
    needs_answer: bool = True,
) -> ConversationColumns:
    """The columns of the conversations, by the first rows. Raises DataError, with the nearest name, for none.

    Without `needs_answer` the columns of questions are enough, and any column that holds the text will do.
    """
    names, label = columns_of(head), file_of(head)
    refuse_missing(names, label, text=text_column, target=target_column, text_pair=pair_column)
    if text_column == AUTO:
        refuse_unlearnt(head)
    found = _choose(head, names, text_column, target_column, pair_column, needs_answer)
    if found is None and not needs_answer:
        text = ColumnChoices(text_column).choose(head)
        found = ConversationColumns(asks=(text,), needed=text)
    if found is None:
        hint = f"columns found: {listed(names)}; {EXPECTED}"
        raise DataError("no column holds conversations", where=label, hint=hint)
    read = {found.conversation, found.answer, *found.asks, SYSTEM, TOOLS}
    unread = tuple(name for name in names if name not in read)
    return replace(found, answer=found.answer if needs_answer else "", unread=unread)


def question_of(conversation: Conversation, where: str) -> tuple[Message, ...]:
    """All up to the assistant's last turns, which are what is asked for. Raises DataError where nobody asks."""
    messages = conversation.messages
    while messages and messages[-1]["role"] == "assistant":
        messages = messages[:-1]
    if not any(message["role"] in ("user", "tool") for message in messages):
        raise DataError("nobody asks anything in the conversation", where=where)
    return messages


def _choose(
    head: Sequence[Row], names: Sequence[str], text: str, target: str, pair: str, needs_answer: bool
) -> ConversationColumns | None:
    by_name = {name.strip().lower(): name for name in reversed(names)}
    answer = target if target != AUTO else next(iter(usual_columns(ANSWER_NAMES, names)), "")
    lists = {name for name in names if any(_is_list(row.values.get(name)) for row in head)}
    if text != AUTO:
        # Beside whole conversations a column `answer` has the last word alone.
        is_whole = text.strip().lower() in CONVERSATION_NAMES
        if text in lists and target == AUTO and (is_whole or not answer):
            return ConversationColumns(conversation=text)
        asks = (text, *filter(None, [pair]))
        return ConversationColumns(asks=asks, needed=text, answer=answer) if answer or not needs_answer else None
    if target == AUTO:
        for usual in CONVERSATION_NAMES:
            if by_name.get(usual) in lists:
                return ConversationColumns(conversation=by_name[usual])
    for usual, beside in _QUESTIONS.items():
        needed = by_name.get(usual)
        if needed and (answer or not needs_answer) and needed != answer:
            before, after = ([by_name[name] for name in some if name in by_name] for some in beside)
            asks = (*before, needed, *([pair] if pair else after))
            return ConversationColumns(asks=tuple(dict.fromkeys(asks)), needed=needed, answer=answer)
    return None


def _is_list(value: object) -> bool:
    return isinstance(value, list) or (isinstance(value, str) and bool(_LIST.match(value)))


def _messages_in(value: object) -> list[Any] | None:
    """A question or an answer that is a list of messages: one that is written as JSON may be any other list."""
    if isinstance(value, list):
        return value
    if not (isinstance(value, str) and _is_list(value)):
        return None
    try:
        found: list[Any] = json.loads(value)
    except (ValueError, RecursionError):
        return None
    names = found[0].keys()
    return found if names & {"role", "from"} and names & {"content", "value", "tool_calls"} else None


def _text(row: Row, column: str) -> str:
    """A string; of SQuAD's answers the first."""
    value = value_of(row, column)
    if isinstance(value, Mapping) and isinstance(value.get("text"), list):
        value = next(iter(value["text"]), None)
    return content_of(value, f"the column '{one_line(column, 40)}'", row.where)


def _tools(row: Row) -> tuple[Mapping[str, Any], ...]:
    """What the conversation may call: a list of JSON schemas, or that list as a string."""
    found = row.values.get(TOOLS)
    if isinstance(found, str):
        try:
            found = json.loads(found) if found.strip() else None
        except ValueError:
            raise DataError("the column 'tools' is a string that is no JSON", where=row.where) from None
    if not found:
        return ()
    if not isinstance(found, list) or not all(isinstance(tool, Mapping) for tool in found):
        what = "a list of other things than objects" if isinstance(found, list) else kind_of_value(found)
        raise DataError(f"the column 'tools' is {what}, not a list of JSON schemas", where=row.where)
    return tuple(found)
