"""Whether a rendered conversation writes all that its row has: templates leave out in silence what they have no place
for.

Contents may be stripped, arguments written in another form; what a part says has to stand there. Parts of a turn are
looked for behind those of the turn before it, or where the turn is known to stand.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tui_trainer.safe_text import one_line

# What a turn has thought before it answers. Source: DeepSeek's and Qwen's templates, OpenRouter's service, gpt-oss.
REASONING = ("reasoning_content", "reasoning", "thinking")
NAMES = "names"
_THOUGHT_BEGINS = re.compile(r"<(?:\w+:)?think(?:ing)?>|\[THINK\]|◁think▷")
_THOUGHT_ENDS = re.compile(r"</(?:\w+:)?think(?:ing)?>|\[/THINK\]|◁/think▷")
_KEYS_READ = re.compile(rf"(?:\.|\[?['\"])({'|'.join(REASONING)})\b")
_NO_WORD = re.compile(r"\W+")


def unwritten_parts(
    text: str, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], answers: Mapping[int, tuple[int, int]]
) -> tuple[str, list[str]]:
    """(the first part that is lost and must not be, else empty; what else is left out: REASONING[0] or NAMES, once for
    each turn). `answers`: where in the text some of the messages are known to stand."""
    for tool in tools:
        function = tool.get("function", tool)
        name = function.get("name") if isinstance(function, Mapping) else None
        if isinstance(name, str) and _end_of(name, text, 0, len(text)) < 0:
            return f"the tool '{one_line(name, 40)}'", []
    thoughts: list[tuple[int, str, int, int]] = []
    left_out: list[str] = []
    ends: list[int] = []
    done, length = 0, len(text)
    for number, message in enumerate(messages):
        role, content = message["role"], message["content"]
        # Some templates lead the first question with it, others the last.
        first, last = (0, length) if role == "system" else answers.get(number, (done, length))
        if role == "assistant" and ("think" in content or "THINK" in content):
            *before, content = _THOUGHT_ENDS.split(content)
            thoughts += [(number, _THOUGHT_BEGINS.sub("", part), first, last) for part in before]
        at = text.find(content, first, last)
        end = at + len(content) if at >= 0 else _end_of(content, text, first, last)
        if end < 0:
            return f"the content of message {number + 1} ({role})", []
        if len(message) > 2:
            for what, part in _more_parts(message):
                if (at := _end_of(part, text, first, last)) < 0:
                    return f"{what} of message {number + 1}", []
                end = max(end, at)
            thoughts += [
                (number, message[name], first, last) for name in REASONING if isinstance(message.get(name), str)
            ]
            name = message.get("name")
            left_out += [NAMES] if isinstance(name, str) and name not in text else []
        ends.append(end)
        # Results of tools may stand in the order of the calls.
        if role not in ("system", "tool"):
            done = max(end, answers[number][1] if number in answers else 0)
    if not thoughts:
        return "", left_out
    lost = {}
    for number, thought, first, last in thoughts:
        following = next((end for end in ends[number + 1 :] if end > first), last)
        if _end_of(thought, text, first, min(last, following)) < 0:
            lost[number] = REASONING[0]
            if not (_THOUGHT_ENDS.split(messages[number]["content"])[-1].strip() or messages[number].get("tool_calls")):
                return f"the reasoning of message {number + 1}, which has nothing else", []
    return "", [*left_out, *lost.values()]


def reasoning_keys(template: str) -> tuple[str, ...]:
    """Under which names a template reads what a turn has thought."""
    read = set(_KEYS_READ.findall(template))
    return tuple(name for name in REASONING if name in read)


def _more_parts(message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for call in message.get("tool_calls") or ():
        function = call["function"]
        name = one_line(function["name"], 40)
        yield f"the tool call '{name}'", function["name"]
        for leaf in _leaves(function["arguments"]):
            yield f"'{one_line(leaf, 40)}' in the tool call '{name}'", leaf


def _leaves(value: object) -> Iterator[str]:
    """Names, texts and whole numbers; fractions and truth values are written in many ways."""
    if isinstance(value, str) or type(value) is int:
        yield str(value)
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield str(name)
            yield from _leaves(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner)


def _end_of(part: str, text: str, first: int, last: int) -> int:
    """Where the first such part of a text ends; -1 for none."""
    part = part.strip()
    at = text.find(part, first, last)
    if at >= 0:
        return at + len(part)
    escaped = json.dumps(part, ensure_ascii=False)[1:-1]
    for form in (escaped, json.dumps(part)[1:-1], json.dumps(escaped, ensure_ascii=False)[1:-1]):
        if (at := text.find(form, first, last)) >= 0:
            return at + len(form)
    words = _NO_WORD.sub(" ", part).strip()
    return first if words and words in _NO_WORD.sub(" ", text[first:last]) else -1
