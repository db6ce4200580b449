"""The turns of one conversation as messages: roles by one name each, contents as strings, tool calls as objects."""

import json
from collections.abc import Mapping
from typing import Any

from tui_trainer.data.columns.row import kind_of_value
from tui_trainer.data.columns.text_column import checked_text
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
