"""Render conversations as text with a chat template, and find the characters that carry loss.

An assistant turn begins where generation would begin: after the conversation before it, rendered with the generation
prompt. It ends with the first token that stops generation. If a template marks its assistant turns ({% generation %}),
those marks are used. For any other template, the conversation before a turn, with the generation prompt, must be the
beginning of the conversation with that turn (the renders must nest). Templates silently omit what they do not support,
so `unwritten_parts` looks for each part of a row in its text.

Text of the data that spells a special token stays text. Before rendering, each such spelling is broken by a sign that
occurs in no text, which distinguishes it from the special tokens that the template writes. Encoding is left to
`token_ids.py`.
"""

import difflib
import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from tui_trainer.data.columns.conversations import Conversation, Message
from tui_trainer.errors import ConfigError, DataError, Problem
from tui_trainer.models.config_json import read_json
from tui_trainer.models.tokenizer import tokenizer_facts
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import MIB, format_number

# The chat template of a run is the tokenizer's own, one of the files in chat_templates/, or a file of the user. The
# files in chat_templates/ follow the formats that the models document, in plain Jinja that other programs can read.

TEMPLATE_KEY = "task.chat_template"
# A value of `loss_on` for models that read whole conversations, as the template writes them, and score them.
NO_LOSS = "nothing"
_FOLDER = Path(__file__).parent / "chat_templates"
_EXTENSION = ".jinja"
_MOST_TEMPLATE_BYTES = MIB
# The template that a family's chat models were trained with, by the family's name in config.json or the tokenizer.
_FAMILY_TEMPLATES = {
    "llama": "llama3", "mistral": "mistral", "mixtral": "mistral", "gemma": "gemma", "gemma2": "gemma", "phi3": "phi3",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A Jinja template. `special` holds the special tokens that it may use, such as eos_token. `tools_text` replaces
    `text` for conversations with tools, if the tokenizer has a separate template for them."""

    name: str
    text: str
    special: Mapping[str, str] = field(default_factory=dict)
    tools_text: str = ""

    def text_for(self, tools: object) -> str:
        return self.tools_text if tools and self.tools_text else self.text


def template_names() -> list[str]:
    return sorted(path.stem for path in _FOLDER.glob(f"*{_EXTENSION}"))


def template_text(name: str) -> str:
    """Return the text of a named template or of a file. Raise ConfigError with the nearest name for any other name."""
    if name in template_names():
        return (_FOLDER / f"{name}{_EXTENSION}").read_text(encoding="utf-8")
    is_file = "/" in name or name.endswith(_EXTENSION)
    if not is_file:
        similar_names = difflib.get_close_matches(name, template_names(), n=1)
        suggestion = f"did you mean {similar_names[0]}? " if similar_names else ""
        hint = f"{suggestion}available: {', '.join(template_names())}, or the path to a {_EXTENSION} file"
        raise _problem(f"unknown chat template {one_line(name, 60)!r}", hint)
    try:
        with Path(name).expanduser().open("rb") as file:
            content = file.read(_MOST_TEMPLATE_BYTES + 1)
        if len(content) > _MOST_TEMPLATE_BYTES:
            raise _problem(f"{one_line(name, 120)} is too large for a chat template (over 1 MiB)", _hint())
        return content.decode("utf-8")
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "no home folder"
        raise _problem(f"{one_line(name, 120)} cannot be read: {reason}", _hint()) from None
    except UnicodeDecodeError:
        raise _problem(f"{one_line(name, 120)} is not UTF-8", "save it as UTF-8") from None


def stored_template(folder: Path) -> str:
    """Return the template that is saved beside a tokenizer in transformers' format, else ""."""
    with suppress(OSError, UnicodeDecodeError):
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    template_field = (read_json(folder / "tokenizer_config.json") or {}).get("chat_template")
    template_field = template_field or (read_json(folder / "chat_template.json") or {}).get("chat_template")
    if isinstance(template_field, list):
        text_by_name = {entry.get("name"): entry.get("template") for entry in template_field if isinstance(entry, dict)}
        template_field = text_by_name.get("default")
    return template_field if isinstance(template_field, str) else ""


def template_problems(name_or_path: str, folder: Path | None, family: str) -> list[Problem]:
    """Return the problems of the chosen template. `folder` is the model's, whose own template is the default."""
    if name_or_path:
        try:
            template_text(name_or_path)
        except ConfigError as error:
            return list(error.problems)
        return []
    facts = tokenizer_facts(folder) if folder else None
    if facts is None or facts.has_chat_template:
        return []
    return list(no_template(str(folder), family).problems)


def no_template(model: str, family: str = "") -> ConfigError:
    """Return the error for a tokenizer without a template, when no template is named."""
    family_template = _FAMILY_TEMPLATES.get(family)
    hint = f"{_hint()}; chat models of this family use {family_template}" if family_template else _hint()
    return _problem("the tokenizer has no chat template", hint, one_line(model, 120), family_template)


def _hint() -> str:
    return f"set it to one of {', '.join(template_names())}, or to a {_EXTENSION} file"


def _problem(message: str, hint: str, where: str = "", suggested: str | None = None) -> ConfigError:
    settings = ((TEMPLATE_KEY, suggested),) if suggested else ()
    return ConfigError(Problem(message=message, key=TEMPLATE_KEY, hint=hint, where=where, suggested=settings))


# A loop in a template may be endless, so the processor time of one rendering is limited. Each loop, macro and block
# checks the time when it begins, and so do filters for each value that they read. The limit is processor time, because
# the program may be suspended and the machine may be busy with other work.

T = TypeVar("T")
# The longest conversations take a fraction of a second.
LIMIT_SECONDS = 5.0
# A name that no template uses.
_CHECK = "tui_trainer_check_time"
# Jinja's filters that loop over their input.
_LOOPING_FILTERS = ("map", "select", "reject", "selectattr", "rejectattr")
_deadline = threading.local()


class RenderingTooLongError(Exception):
    """An error for a rendering that took more than `LIMIT_SECONDS` of processor time."""


def render_with_limit(template: str, render: Callable[[], T]) -> T:
    """Return the result of `render` for this template. Raise RenderingTooLongError, or TemplateError if invalid."""
    _add_checks(template)
    _deadline.seconds = time.thread_time() + LIMIT_SECONDS
    try:
        return render()
    finally:
        del _deadline.seconds


def _add_checks(template: str) -> None:
    """Make the compiled template, which transformers caches by its text, call `_check_time` wherever it may loop."""
    from jinja2 import nodes
    from transformers.utils import chat_template_utils

    compiled: Any = chat_template_utils._compile_jinja_template(template)
    if _CHECK in compiled.globals:
        return
    # One call of lipsum can write any number of words.
    compiled.environment.globals.pop("lipsum", None)
    for filter_name in _LOOPING_FILTERS:
        compiled.environment.filters[filter_name] = _with_time_checks(compiled.environment.filters[filter_name])
    syntax_tree = compiled.environment.parse(template)
    for node in syntax_tree.find_all((nodes.For, nodes.Macro, nodes.Block)):
        check_call = nodes.Call(nodes.Name(_CHECK, "load"), [], [], None, None)
        node.body.insert(0, nodes.ExprStmt(check_call).set_lineno(node.lineno))
    checked_template = compiled.environment.from_string(syntax_tree, {_CHECK: _check_time})
    compiled.root_render_func, compiled.blocks = checked_template.root_render_func, checked_template.blocks
    compiled.globals = checked_template.globals


def _with_time_checks(looping_filter: Callable[..., Iterable[Any]]) -> Callable[..., Iterator[Any]]:
    @wraps(looping_filter)
    def filter_with_checks(*arguments: Any, **options: Any) -> Iterator[Any]:
        for value in looping_filter(*arguments, **options):
            _check_time()
            yield value

    return filter_with_checks


def _check_time() -> None:
    if time.thread_time() > getattr(_deadline, "seconds", math.inf):
        raise RenderingTooLongError


# The search for parts of a row in its rendered text tolerates stripped contents and arguments in another notation. It
# looks for the parts of a turn after those of the turn before it, or within the turn's span if that is known.

# Keys of a turn's reasoning. Source: DeepSeek's and Qwen's templates, OpenRouter's service, gpt-oss.
REASONING = ("reasoning_content", "reasoning", "thinking")
TOOL_NAMES = "names"
_THOUGHT_BEGINS = re.compile(r"<(?:\w+:)?think(?:ing)?>|\[THINK\]|◁think▷")
_THOUGHT_ENDS = re.compile(r"</(?:\w+:)?think(?:ing)?>|\[/THINK\]|◁/think▷")
_KEYS_READ = re.compile(rf"(?:\.|\[?['\"])({'|'.join(REASONING)})\b")
_NO_WORD = re.compile(r"\W+")


def unwritten_parts(
    text: str, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], answers: Mapping[int, tuple[int, int]]
) -> tuple[str, list[str]]:
    """Look for each part of a conversation in its rendered text. Return the first missing part that must not be
    omitted, else "", and the kinds of missing parts that may be omitted: REASONING[0] or NAMES, once for each turn.
    `answers` maps message numbers to known spans in the text."""
    for tool in tools:
        function = tool.get("function", tool)
        name = function.get("name") if isinstance(function, Mapping) else None
        if isinstance(name, str) and _end_of(name, text, 0, len(text)) < 0:
            return f"the tool '{one_line(name, 40)}'", []
    reasoning_passages: list[tuple[int, str, int, int]] = []
    omitted_parts: list[str] = []
    part_ends: list[int] = []
    search_start, length = 0, len(text)
    for number, message in enumerate(messages):
        role, content = message["role"], message["content"]
        # Some templates write the system prompt before the first question, others before the last.
        begin, limit = (0, length) if role == "system" else answers.get(number, (search_start, length))
        if role == "assistant" and ("think" in content or "THINK" in content):
            *reasoning_parts, content = _THOUGHT_ENDS.split(content)
            reasoning_passages += [(number, _THOUGHT_BEGINS.sub("", part), begin, limit) for part in reasoning_parts]
        start = text.find(content, begin, limit)
        end = start + len(content) if start >= 0 else _end_of(content, text, begin, limit)
        if end < 0:
            return f"the content of message {number + 1} ({role})", []
        if len(message) > 2:
            for description, part in _tool_call_parts(message):
                if (part_end := _end_of(part, text, begin, limit)) < 0:
                    return f"{description} of message {number + 1}", []
                end = max(end, part_end)
            reasoning_texts = [message[name] for name in REASONING if isinstance(message.get(name), str)]
            reasoning_passages += [(number, reasoning, begin, limit) for reasoning in reasoning_texts]
            name = message.get("name")
            omitted_parts += [TOOL_NAMES] if isinstance(name, str) and name not in text else []
        part_ends.append(end)
        # Templates may reorder the results of tools to match the order of the calls.
        if role not in ("system", "tool"):
            search_start = max(end, answers[number][1] if number in answers else 0)
    if not reasoning_passages:
        return "", omitted_parts
    missing_reasoning = {}
    for number, reasoning, begin, limit in reasoning_passages:
        next_end = next((end for end in part_ends[number + 1 :] if end > begin), limit)
        if _end_of(reasoning, text, begin, min(limit, next_end)) < 0:
            missing_reasoning[number] = REASONING[0]
            if not (_THOUGHT_ENDS.split(messages[number]["content"])[-1].strip() or messages[number].get("tool_calls")):
                return f"the reasoning of message {number + 1}, which has no other content", []
    return "", [*omitted_parts, *missing_reasoning.values()]


def _tool_call_parts(message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (description, text) of each function name and argument in the tool calls of a message."""
    for call in message.get("tool_calls") or ():
        function = call["function"]
        name = one_line(function["name"], 40)
        yield f"the tool call '{name}'", function["name"]
        for argument in _values_in_json(function["arguments"]):
            yield f"'{one_line(argument, 40)}' in the tool call '{name}'", argument


def _values_in_json(value: object) -> Iterator[str]:
    """Yield the names, texts and whole numbers in JSON. Fractions and booleans have too many notations to look for."""
    if isinstance(value, str) or type(value) is int:
        yield str(value)
    elif isinstance(value, Mapping):
        for name, element in value.items():
            yield str(name)
            yield from _values_in_json(element)
    elif isinstance(value, list | tuple):
        for element in value:
            yield from _values_in_json(element)


def _end_of(part: str, text: str, first: int, last: int) -> int:
    """Return the end of the first `part` in text[first:last]; `first` if only its words occur there; else -1."""
    part = part.strip()
    start = text.find(part, first, last)
    if start >= 0:
        return start + len(part)
    json_text = json.dumps(part, ensure_ascii=False)[1:-1]
    for notation in (json_text, json.dumps(part)[1:-1], json.dumps(json_text, ensure_ascii=False)[1:-1]):
        if (start := text.find(notation, first, last)) >= 0:
            return start + len(notation)
    plain_words = _NO_WORD.sub(" ", part).strip()
    return first if plain_words and plain_words in _NO_WORD.sub(" ", text[first:last]) else -1


Span = tuple[int, int]

_SIGN = "\ufdd0"  # one of Unicode's noncharacters, which are never part of exchanged text
_PYTHON_LIMITS = (ArithmeticError, RecursionError, MemoryError)
_MARKS = re.compile(r"\{%-?\s*generation\s*-?%\}")
_PROBE = "wb3vq"
_SHOWN_CHARACTERS = 24


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered conversation. `trained_spans` holds the spans of characters that carry loss, `control_spans` the spans
    of special tokens that the template wrote. `spelled_token_count` counts special tokens that the data only spells. If
    `adds_end`, the end token follows the text and carries loss. `omitted_parts` is as in `unwritten_parts`."""

    text: str
    trained_spans: tuple[Span, ...]
    control_spans: tuple[Span, ...]
    spelled_token_count: int = 0
    adds_end: bool = False
    omitted_parts: tuple[str, ...] = ()


class ConversationRenderer:
    """A renderer of conversations with one template for one tokenizer. `special` holds the texts of the tokenizer's
    special tokens, `added` those of all tokens that it never splits, and `stops` those that end generation."""

    def __init__(
        self, template: ChatTemplate, special: Sequence[str], added: Sequence[str], stops: Sequence[str], loss_on: str
    ) -> None:
        """Raise ConfigError for a template that cannot render a question and an answer."""
        _refuse_powers(template)
        self._template, self._loss_on = template, loss_on
        self.turn_end, self._text_after_answer = self._find_end(added)
        # Text that ends a turn without being a special token: it must not occur in the data.
        plain_end = "" if self.turn_end else self._text_after_answer.strip()
        self._plain_turn_end = plain_end if self.turn_end in ("", *special) else self.turn_end
        self.stops = tuple(dict.fromkeys([*([self.turn_end] if self.turn_end else []), *stops]))
        longest_first = sorted({*special, *self.stops}, key=len, reverse=True)
        self._controls = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        keys_in_template = set(_KEYS_READ.findall(template.text))
        # The keys under which the template reads the reasoning of a turn.
        self._reasoning_keys = tuple(name for name in REASONING if name in keys_in_template)

    def reads(self, key: str) -> bool:
        """Return whether the template may read this key of a turn."""
        if not re.search(rf"\b{re.escape(key)}\b", self._template.text + self._template.tools_text):
            return False
        if key != "name":
            return True
        # The template may only read the `name` of a function, so render a turn with a name.
        for roles in (("user", "assistant"), ("user", "assistant", "tool")):
            with suppress(DataError):
                if _PROBE in self._text([{"role": role, "content": "Q", key: _PROBE} for role in roles], []):
                    return True
        return False

    def render_prompt(self, messages: Sequence[Message], tools: Sequence[Any] = ()) -> Rendered:
        """Render a conversation up to the point where the assistant continues. Raise DataError as `render` does."""
        safe_messages, message_spellings = self._break_spellings(self._rename_reasoning(messages))
        safe_tools, tool_spellings = self._break_spellings(list(tools))
        text, signs = _without_signs(self._text(safe_messages, safe_tools, prompt=True))
        controls, omitted_parts = self._controls_in(text, signs), self._omitted_parts(text, messages, tools, {})
        return Rendered(text, (), tuple(controls), message_spellings + tool_spellings, omitted_parts=omitted_parts)

    def render(self, conversation: Conversation) -> Rendered:
        """Return the conversation as text with the spans that carry loss. Raise DataError, which does not name the row,
        if the template rejects the conversation, omits a part of it or does not nest."""
        turn_end = self._plain_turn_end
        if turn_end and any(turn_end in message["content"] for message in conversation.messages):
            message = f"the text contains {turn_end!r}, which ends turns in the chat template {self._template.name}"
            hint = "remove it from the row, because the model would read it as the end of a turn"
            raise DataError(message, hint=hint)
        messages, spelt_count = self._break_spellings(self._rename_reasoning(conversation.messages))
        tools, tool_spelt_count = self._break_spellings(list(conversation.tools))
        spans: list[Span] | None = [] if self._loss_on == NO_LOSS else None
        is_marked = False
        if self._loss_on in ("all", NO_LOSS):
            text = self._text(messages, tools)
        elif is_marked := bool(_MARKS.search(self._template.text_for(tools))):
            text, spans = self._spans_by_marks(messages, tools)
        else:
            text, spans = self._spans_by_nesting(messages, tools)
        text, signs = _without_signs(text)
        spans_by_number: dict[int, Span] = {}
        if spans is not None and self._loss_on != NO_LOSS:
            spans = [(_without_sign_offset(start, signs), _without_sign_offset(end, signs)) for start, end in spans]
            if not is_marked:
                answer_numbers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
                spans_by_number = dict(zip(answer_numbers[-len(spans) :], spans, strict=False))
            spans = self._without_zero_weights(spans, messages)
        omitted_parts = self._omitted_parts(text, conversation.messages, conversation.tools, spans_by_number)
        rendered = self._end_at_stops(text, spans, self._controls_in(text, signs), spelt_count + tool_spelt_count)
        return replace(rendered, omitted_parts=omitted_parts) if omitted_parts else rendered

    def _rename_reasoning(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages with the reasoning of each turn under the key that the template reads."""
        if not self._reasoning_keys:
            return list(messages)
        return [
            {self._reasoning_keys[0] if name in REASONING else name: value for name, value in message.items()}
            if len(message) > 2 and message.keys().isdisjoint(self._reasoning_keys)
            else message
            for message in messages
        ]

    def _omitted_parts(
        self, text: str, messages: Sequence[Message], tools: Sequence[Any], answers: Mapping[int, Span]
    ) -> tuple[str, ...]:
        """Return the parts that a text omits and may omit. Raise DataError for a part that it must not omit."""
        missing_part, omitted_parts = unwritten_parts(text, messages, tools, answers)
        if missing_part:
            hint = f"set {TEMPLATE_KEY} to a template that includes it, such as chatml, or remove the row"
            raise DataError(f"the chat template {self._template.name} omits {missing_part}", hint=hint)
        return tuple(omitted_parts)

    def _without_zero_weights(self, spans: list[Span], messages: list[Any]) -> list[Span]:
        """Drop the spans of answers whose `weight` in the data is 0."""
        answer_turns = [message for message in messages if message["role"] == "assistant"]
        if self._loss_on == "completion":
            answer_turns = answer_turns[-1:]
        learnt_flags = [message.get("weight", 1) != 0 for message in answer_turns]
        if all(learnt_flags):
            return spans
        if len(learnt_flags) != len(spans):
            message = f"a turn has weight 0, but the chat template {self._template.name} does not delimit each turn"
            raise DataError(message, hint=f"set {TEMPLATE_KEY} to another template, such as chatml, or remove the row")
        return [span for span, is_learnt in zip(spans, learnt_flags, strict=True) if is_learnt]

    def _controls_in(self, text: str, marked_positions: Sequence[int]) -> list[Span]:
        """Return the spans of special tokens that the template wrote. Those that the data spells contained a sign."""
        sign_positions = [position - number for number, position in enumerate(marked_positions)]
        spans = (match.span() for match in self._controls.finditer(text))
        return [(start, end) for start, end in spans if not any(start < position < end for position in sign_positions)]

    def _end_at_stops(self, text: str, spans: list[Span] | None, controls: list[Span], spelt_count: int) -> Rendered:
        """Return the rendering with each answer extended to its stop token. The last answer gets one if it has none."""
        stop_spans = [(start, end) for start, end in controls if text[start:end] in self.stops]
        if spans is None:
            is_closed = bool(stop_spans) and not text[stop_spans[-1][1] :].strip()
            end = stop_spans[-1][1] if is_closed else self._cut_blank_tail(text, len(text))
            return Rendered(text[:end], ((0, end),), _clip_spans(controls, end), spelt_count, adds_end=not is_closed)
        trained_spans, adds_end = [], False
        for start, end in spans:
            stop_end = next((stop_end for stop_start, stop_end in stop_spans if start <= stop_start <= end), None)
            adds_end = stop_end is None and end == spans[-1][1] and not text[end:].strip()
            trained_spans.append((start, stop_end if stop_end is not None else self._cut_blank_tail(text, end)))
        if adds_end:
            text = text[: trained_spans[-1][1]]
        return Rendered(text, tuple(trained_spans), _clip_spans(controls, len(text)), spelt_count, adds_end=adds_end)

    def _cut_blank_tail(self, text: str, end: int) -> int:
        """Return `end` moved to the left, over the blanks that the template writes after a turn."""
        blank_length = len(self._text_after_answer) - len(self._text_after_answer.rstrip())
        return end - blank_length if self._text_after_answer and text[:end].endswith(self._text_after_answer) else end

    def _spans_by_marks(self, messages: list[Any], tools: list[Any]) -> tuple[str, list[Span]]:
        text, marked_spans = self._render(messages, tools, marks=True)
        spans: list[Span] = []
        for start, end in marked_spans:
            if spans and start <= spans[-1][1]:
                spans[-1] = (spans[-1][0], end)
            else:
                spans.append((start, end))
        return text, spans[-1:] if self._loss_on == "completion" else spans

    def _spans_by_nesting(self, messages: list[Any], tools: list[Any]) -> tuple[str, list[Span]]:
        """Return the rendered text and the spans of its answers, found by rendering only a part of the turns."""
        text = self._text(messages, tools)
        indices = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        if indices and indices[0] == 0:
            problem = "the conversation begins with an assistant turn"
            raise DataError(problem, hint="add a user turn before it, or remove the row")
        spans = []
        for index in indices[-1:] if self._loss_on == "completion" else indices:
            prompt = self._text(messages[:index], tools, prompt=True)
            answered_text = text if index == len(messages) - 1 else self._text(messages[: index + 1], tools)
            if not answered_text.startswith(prompt) or not text.startswith(answered_text):
                prompt_of_last = self._text(messages[: indices[-1]], tools, prompt=True)
                last_nests = index != indices[-1] and text.startswith(prompt_of_last)
                raise self._not_nested(indices.index(index) + 1, prompt, answered_text, text, last_nests=last_nests)
            spans.append((len(prompt), len(answered_text)))
        return text, spans

    def _not_nested(self, number: int, prompt: str, answered: str, text: str, *, last_nests: bool) -> DataError:
        change = f"changes the text before assistant turn {number} when that turn is added"
        shorter, longer = prompt, answered
        if answered.startswith(prompt):
            change = f"changes assistant turn {number} when the conversation continues"
            shorter, longer = answered, text
        pairs = enumerate(zip(shorter, longer, strict=False))
        first_difference = next((index for index, (x, y) in pairs if x != y), min(len(shorter), len(longer)))
        window = slice(max(0, first_difference - _SHOWN_CHARACTERS // 2), first_difference + _SHOWN_CHARACTERS // 2)
        texts = (part[window].replace(_SIGN, "") for part in (shorter, longer))
        parts = ", then ".join(f"\u00ab{one_line(part, _SHOWN_CHARACTERS)}\u00bb" for part in texts)
        message = f"the chat template {self._template.name} {change} ({parts}), so the tokens of the turn are unknown"
        last_only = 'task.loss_on = "completion" to train on the last turn only, or ' if last_nests else ""
        return DataError(message, hint=f"set {last_only}{TEMPLATE_KEY} to another template, such as chatml")

    def _text(self, messages: list[Any], tools: list[Any], *, prompt: bool = False) -> str:
        return self._render(messages, tools, prompt=prompt)[0]

    def _render(
        self, messages: list[Any], tools: list[Any], *, prompt: bool = False, marks: bool = False
    ) -> tuple[str, list[Span]]:
        """Return the rendered text and, with `marks`, the spans that the template marks as generated."""
        from jinja2 import TemplateError
        from transformers.utils import chat_template_utils

        render_template: Any = chat_template_utils.render_jinja_template
        template = self._template.text_for(tools)
        render = partial(
            render_template,
            conversations=[messages],
            tools=tools or None,
            chat_template=template,
            return_assistant_tokens_mask=marks,
            add_generation_prompt=prompt,
            **self._template.special,
        )
        try:
            texts, spans = render_with_limit(template, render)
        except RenderingTooLongError:
            seconds = format_number(LIMIT_SECONDS)
            message = f"the chat template {self._template.name} did not render one conversation within {seconds} s"
            hint = f"remove the endless loop from this template, or set {TEMPLATE_KEY} to another one, such as chatml"
            raise ConfigError(Problem(message=message, key=TEMPLATE_KEY, hint=hint)) from None
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError, *_PYTHON_LIMITS) as error:
            line_number, reason = getattr(error, "lineno", None), str(error).strip().rstrip(".") or type(error).__name__
            template_name = f"{self._template.name}, line {line_number}," if line_number else self._template.name
            message = f"the chat template {template_name} rejects this conversation: {one_line(reason, 160)}"
            hint = f"change the conversation, or choose another {TEMPLATE_KEY}, such as chatml"
            raise DataError(message, hint=hint) from None
        return str(texts[0]), [(start, end) for start, end in spans[0]] if marks else []

    def _break_spellings(self, value: Any) -> tuple[Any, int]:
        """Return a copy with a sign inside each spelling of a special token, and the number of such spellings."""
        spelling_count = 0

        def break_in(part: Any) -> Any:
            nonlocal spelling_count
            if isinstance(part, str):
                if _SIGN in part:
                    raise DataError("the text contains U+FDD0, which is not a character", hint="remove the row")
                text, spellings = self._controls.subn(lambda match: match[0][0] + _SIGN + match[0][1:], part)
                spelling_count += spellings
                return text
            if isinstance(part, Mapping):
                return {name: break_in(inner) for name, inner in part.items()}
            return [break_in(inner) for inner in part] if isinstance(part, list | tuple) else part

        return break_in(value), spelling_count

    def _find_end(self, added: Sequence[str]) -> tuple[str, str]:
        """Return (the token that ends a turn or "", all text after an answer)."""
        messages = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": _PROBE}]
        try:
            text = self._text(messages, [])
        except DataError as error:
            problem = error.problems[0]
            raise ConfigError(Problem(message=problem.message, key=TEMPLATE_KEY, hint=problem.hint)) from None
        if _PROBE not in text:
            message = f"the chat template {self._template.name} omits the text of the assistant"
            raise _problem(message, "choose another template, such as chatml")
        ending = text.rpartition(_PROBE)[2]
        end_tokens = [token for token in added if token and not token.isspace() and ending.lstrip().startswith(token)]
        return max(end_tokens, key=len, default=""), ending


def _refuse_powers(template: ChatTemplate) -> None:
    """Raise ConfigError for the operator **: one power of whole numbers can take hours and cannot be interrupted."""
    from jinja2 import Environment, TemplateError

    with suppress(TemplateError):
        for text in filter(None, (template.text, template.tools_text)):
            for line, kind, word in Environment().lex(text):
                if (kind, word) == ("operator", "**"):
                    message = f"the chat template {template.name}, line {line}, uses the operator **"
                    hint = f"set {TEMPLATE_KEY} to another template, such as chatml, because powers may take forever"
                    raise ConfigError(Problem(message=message, key=TEMPLATE_KEY, hint=hint))


def loss_sections(rendered: Rendered) -> list[tuple[int, int, bool]]:
    """Cut the text where loss begins and ends. Return (start, end, carries loss) of each section that is not empty."""
    sections = []
    positions = [0, *(edge for span in rendered.trained_spans for edge in span), len(rendered.text)]
    for number, (start, end) in enumerate(pairwise(positions)):
        if end > start:
            sections.append((start, end, number % 2 == 1))
    return sections


def _without_signs(text: str) -> tuple[str, list[int]]:
    """Return the text without signs, and the positions of the signs in the original text."""
    sign_positions = [match.start() for match in re.finditer(_SIGN, text)]
    return (text.replace(_SIGN, ""), sign_positions) if sign_positions else (text, sign_positions)


def _without_sign_offset(position: int, signs: Sequence[int]) -> int:
    """Convert a position in a text with signs into one in the text without them."""
    return position - sum(sign < position for sign in signs)


def _clip_spans(spans: Sequence[Span], end: int) -> tuple[Span, ...]:
    return tuple(span for span in spans if span[1] <= end)
