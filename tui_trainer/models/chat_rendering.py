"""A conversation as text, and which of its characters carry loss.

An assistant turn begins where generation would: behind the conversation up to it, rendered with the generation prompt.
It ends with the first token that stops generation. A template that marks these turns itself ({% generation %}) is
believed; of any other, the conversation up to a turn, with the prompt, must be the beginning of the conversation with
it (renders must nest).

What a template does not write of a conversation is never learnt from in silence: `chat_parts` looks for each part.

Text of the data that spells a special token stays text: before rendering, such spellings are broken by a sign that no
text has, so that those which the template writes can be told from them.
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

# The chat template of a run: the tokenizer's own, one of the files in chat_templates/, or a file of the user.
#
# The named ones are written after the formats that their models document, in plain Jinja that other programs read too.

TEMPLATE_KEY = "task.chat_template"
_FOLDER = Path(__file__).parent / "chat_templates"
_ENDING = ".jinja"
_LARGEST = MIB
# How config.json, or the tokenizer, calls the family, and the named template that its chat models were trained with.
_OF_FAMILY = {
    "llama": "llama3", "mistral": "mistral", "mixtral": "mistral", "gemma": "gemma", "gemma2": "gemma", "phi3": "phi3",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """`text` is Jinja; `special` what it may name, such as eos_token. `for_tools` replaces it for conversations
    with tools, where a tokenizer has a template of its own for them."""

    name: str
    text: str
    special: Mapping[str, str] = field(default_factory=dict)
    for_tools: str = ""

    def text_for(self, tools: object) -> str:
        return self.for_tools if tools and self.for_tools else self.text


def template_names() -> list[str]:
    return sorted(path.stem for path in _FOLDER.glob(f"*{_ENDING}"))


def template_text(wanted: str) -> str:
    """The text of a named template, or of a file. Raises ConfigError with the nearest name."""
    if wanted in template_names():
        return (_FOLDER / f"{wanted}{_ENDING}").read_text(encoding="utf-8")
    is_file = "/" in wanted or wanted.endswith(_ENDING)
    if not is_file:
        near = difflib.get_close_matches(wanted, template_names(), n=1)
        guess = f"did you mean {near[0]}? " if near else ""
        hint = f"{guess}available: {', '.join(template_names())}, or the path to a {_ENDING} file"
        raise _problem(f"unknown chat template {one_line(wanted, 60)!r}", hint)
    try:
        with Path(wanted).expanduser().open("rb") as file:
            content = file.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise _problem(f"{one_line(wanted, 120)} is too large for a chat template (over 1 MiB)", "choose another")
        return content.decode("utf-8")
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "no home folder"
        raise _problem(f"{one_line(wanted, 120)} cannot be read: {reason}", _hint()) from None
    except UnicodeDecodeError:
        raise _problem(f"{one_line(wanted, 120)} is not UTF-8", "save it as UTF-8") from None


def stored_template(folder: Path) -> str:
    """The text of the template that lies beside a tokenizer, as transformers writes and reads it; empty without one."""
    with suppress(OSError, UnicodeDecodeError):
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    told = (read_json(folder / "tokenizer_config.json") or {}).get("chat_template")
    told = told or (read_json(folder / "chat_template.json") or {}).get("chat_template")
    if isinstance(told, list):
        named = {one.get("name"): one.get("template") for one in told if isinstance(one, dict)}
        told = named.get("default")
    return told if isinstance(told, str) else ""


def template_problems(wanted: str, folder: Path | None, family: str) -> list[Problem]:
    """What is wrong with a choice. `folder` is that of a model whose own template is meant where none is named."""
    if wanted:
        try:
            template_text(wanted)
        except ConfigError as error:
            return list(error.problems)
        return []
    found = tokenizer_facts(folder) if folder else None
    if found is None or found.has_chat_template:
        return []
    return list(no_template(str(folder), family).problems)


def no_template(model: str, family: str = "") -> ConfigError:
    """For a model whose tokenizer has no template, and none was named."""
    likely = _OF_FAMILY.get(family)
    hint = f"{_hint()}; chat models of this family use {likely}" if likely else _hint()
    return _problem("the tokenizer has no chat template", hint, one_line(model, 120), likely)


def _hint() -> str:
    return f"set it to one of {', '.join(template_names())}, or to a {_ENDING} file"


def _problem(message: str, hint: str, where: str = "", suggested: object = None) -> ConfigError:
    return ConfigError(Problem(message=message, key=TEMPLATE_KEY, hint=hint, where=where, suggested=suggested))


# A limit on the processor time that one rendering of a chat template takes: a loop in it may have no end.
#
# Each loop, macro and block of a template looks at the time whenever it begins, and so do filters for each value that
# they read. It is processor time, because a program may be suspended, and a machine may be busy with others.

T = TypeVar("T")
# The longest conversations take a fraction of a second.
LIMIT_SECONDS = 5.0
# A name that no template gives to anything else.
_CHECK = "tui_trainer_check_time"
# The filters of Jinja that are loops of their own.
_LOOPING_FILTERS = ("map", "select", "reject", "selectattr", "rejectattr")
_deadline = threading.local()


class RenderingTooLongError(Exception):
    """A rendering took more than `LIMIT_SECONDS` of processor time."""


def limited(template: str, render: Callable[[], T]) -> T:
    """Return the result of `render`, which renders this template. Raises RenderingTooLongError, and TemplateError for a
    template that is not valid Jinja."""
    _add_checks(template)
    _deadline.seconds = time.thread_time() + LIMIT_SECONDS
    try:
        return render()
    finally:
        del _deadline.seconds


def _add_checks(template: str) -> None:
    """Let the compiled template, which transformers keeps by its text, call `_check_time` wherever it may loop."""
    from jinja2 import nodes
    from transformers.utils import chat_template_utils

    compiled: Any = chat_template_utils._compile_jinja_template(template)
    if _CHECK in compiled.globals:
        return
    # It writes as many words as it is asked for in one call.
    compiled.environment.globals.pop("lipsum", None)
    for name in _LOOPING_FILTERS:
        compiled.environment.filters[name] = _checked(compiled.environment.filters[name])
    tree = compiled.environment.parse(template)
    for node in tree.find_all((nodes.For, nodes.Macro, nodes.Block)):
        call = nodes.Call(nodes.Name(_CHECK, "load"), [], [], None, None)
        node.body.insert(0, nodes.ExprStmt(call).set_lineno(node.lineno))
    checked = compiled.environment.from_string(tree, {_CHECK: _check_time})
    compiled.root_render_func, compiled.blocks = checked.root_render_func, checked.blocks
    compiled.globals = checked.globals


def _checked(looping_filter: Callable[..., Iterable[Any]]) -> Callable[..., Iterator[Any]]:
    @wraps(looping_filter)
    def checked(*arguments: Any, **options: Any) -> Iterator[Any]:
        for value in looping_filter(*arguments, **options):
            _check_time()
            yield value

    return checked


def _check_time() -> None:
    if time.thread_time() > getattr(_deadline, "seconds", math.inf):
        raise RenderingTooLongError


# Whether a rendered conversation writes all that its row has: templates leave out in silence what they have no place
# for.
#
# Contents may be stripped, arguments written in another form; what a part says has to stand there. Parts of a turn are
# looked for behind those of the turn before it, or where the turn is known to stand.

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
                return f"the reasoning of message {number + 1}, which has no other content", []
    return "", [*left_out, *lost.values()]


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


Span = tuple[int, int]

_SIGN = "\ufdd0"  # one of Unicode's noncharacters: never part of a text that is exchanged
_ENDS_OF_PYTHON = (ArithmeticError, RecursionError, MemoryError)
_MARKS = re.compile(r"\{%-?\s*generation\s*-?%\}")
_PROBE = "wb3vq"
_SHOWN = 24


@dataclass(frozen=True, slots=True)
class Rendered:
    """`trained` are the characters that carry loss. `controls` are the special tokens that the template wrote, `spelt`
    how many the data only spells. `adds_end`: the end token follows, and carries loss. `left_out`: what the template
    does not write, once for each turn, as `chat_parts` names it."""

    text: str
    trained: tuple[Span, ...]
    controls: tuple[Span, ...]
    spelt: int = 0
    adds_end: bool = False
    left_out: tuple[str, ...] = ()


class ConversationRenderer:
    """Renders conversations with one template for one tokenizer.

    `special` are the texts of the tokenizer's special tokens, `added` those of all that it never cuts, `stops` those
    that end generation.
    """

    def __init__(
        self, template: ChatTemplate, special: Sequence[str], added: Sequence[str], stops: Sequence[str], loss_on: str
    ) -> None:
        """Raises ConfigError for a template that cannot render a question and an answer."""
        _refuse_powers(template)
        self._template, self._loss_on = template, loss_on
        self.turn_end, self._tail = self._find_end(added)
        # What the template ends a turn with where that is no token of the tokenizer.
        plain_end = "" if self.turn_end else self._tail.strip()
        self._untold = plain_end if self.turn_end in ("", *special) else self.turn_end
        self.stops = tuple(dict.fromkeys([*([self.turn_end] if self.turn_end else []), *stops]))
        longest_first = sorted({*special, *self.stops}, key=len, reverse=True)
        self._controls = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        read = set(_KEYS_READ.findall(template.text))
        # Under which names the template reads what a turn has thought.
        self._reasoning_keys = tuple(name for name in REASONING if name in read)

    def reads(self, key: str) -> bool:
        """Whether the template may read this key of a turn."""
        if not re.search(rf"\b{re.escape(key)}\b", self._template.text + self._template.for_tools):
            return False
        if key != "name":
            return True
        # A function has a name as well.
        for roles in (("user", "assistant"), ("user", "assistant", "tool")):
            with suppress(DataError):
                if _PROBE in self._text([{"role": role, "content": "Q", key: _PROBE} for role in roles], []):
                    return True
        return False

    def render_prompt(self, messages: Sequence[Message], tools: Sequence[Any] = ()) -> Rendered:
        """A conversation up to where the assistant goes on. Raises DataError, without a place, as `render`."""
        safe_messages, spelt = self._broken(self._renamed(messages))
        safe_tools, more = self._broken(list(tools))
        text, signs = _without_signs(self._text(safe_messages, safe_tools, prompt=True))
        left_out = self._left_out(text, messages, tools, {})
        return Rendered(text, (), tuple(self._controls_in(text, signs)), spelt + more, left_out=left_out)

    def render(self, conversation: Conversation) -> Rendered:
        """Raises DataError, without a place, for a conversation that the template does not take, does not write whole
        or does not nest in."""
        if self._untold and any(self._untold in message["content"] for message in conversation.messages):
            message = f"the text contains {self._untold!r}, which ends turns in the chat template {self._template.name}"
            hint = "remove it from the row: as it is not a special token, the model would read it as the end of a turn"
            raise DataError(message, hint=hint)
        messages, spelt = self._broken(self._renamed(conversation.messages))
        tools, more = self._broken(list(conversation.tools))
        if self._loss_on == "all":
            text, spans = self._text(messages, tools), None
        elif is_marked := bool(_MARKS.search(self._template.text_for(tools))):
            text, spans = self._marked(messages, tools)
        else:
            text, spans = self._compared(messages, tools)
        text, signs = _without_signs(text)
        answers: dict[int, Span] = {}
        if spans is not None:
            spans = [(_moved(start, signs), _moved(end, signs)) for start, end in spans]
            if not is_marked:
                numbers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
                answers = dict(zip(numbers[-len(spans) :], spans, strict=False))
            spans = self._learnt(spans, messages)
        left_out = self._left_out(text, conversation.messages, conversation.tools, answers)
        ended = self._ended(text, spans, self._controls_in(text, signs), spelt + more)
        return replace(ended, left_out=left_out) if left_out else ended

    def _renamed(self, messages: Sequence[Message]) -> list[Message]:
        """With the reasoning of each turn under the name that the template reads it by."""
        if not self._reasoning_keys:
            return list(messages)
        return [
            {self._reasoning_keys[0] if name in REASONING else name: value for name, value in message.items()}
            if len(message) > 2 and message.keys().isdisjoint(self._reasoning_keys)
            else message
            for message in messages
        ]

    def _left_out(
        self, text: str, messages: Sequence[Message], tools: Sequence[Any], answers: Mapping[int, Span]
    ) -> tuple[str, ...]:
        """What may be, of all that a text lacks. Raises DataError for the rest."""
        lost, left_out = unwritten_parts(text, messages, tools, answers)
        if lost:
            hint = f"set {TEMPLATE_KEY} to a template that includes it, such as chatml, or remove the row"
            raise DataError(f"the chat template {self._template.name} omits {lost}", hint=hint)
        return tuple(left_out)

    def _learnt(self, spans: list[Span], messages: list[Any]) -> list[Span]:
        """Without the answers that the data leaves out, whose `weight` is 0."""
        answers = [message for message in messages if message["role"] == "assistant"]
        if self._loss_on == "completion":
            answers = answers[-1:]
        learnt = [message.get("weight", 1) != 0 for message in answers]
        if all(learnt):
            return spans
        if len(learnt) != len(spans):
            message = f"a turn has weight 0, but the chat template {self._template.name} does not delimit each turn"
            raise DataError(message, hint=f"set {TEMPLATE_KEY} to another, such as chatml, or remove the row")
        return [span for span, learns in zip(spans, learnt, strict=True) if learns]

    def _controls_in(self, text: str, signs: Sequence[int]) -> list[Span]:
        """The special tokens that the template wrote: no sign stood inside of them."""
        broken = [place - number for number, place in enumerate(signs)]
        return [
            found.span()
            for found in self._controls.finditer(text)
            if not any(found.start() < place < found.end() for place in broken)
        ]

    def _ended(self, text: str, spans: list[Span] | None, controls: list[Span], spelt: int) -> Rendered:
        """Each answer up to the token that stops generation; the last one gets one where the template writes none."""
        stops = [(start, end) for start, end in controls if text[start:end] in self.stops]
        if spans is None:
            closed = bool(stops) and not text[stops[-1][1] :].strip()
            end = stops[-1][1] if closed else self._tail_cut(text, len(text))
            return Rendered(text[:end], ((0, end),), _within(controls, end), spelt, adds_end=not closed)
        trained, adds_end = [], False
        for start, end in spans:
            stop = next((stop for first, stop in stops if start <= first <= end), None)
            adds_end = stop is None and end == spans[-1][1] and not text[end:].strip()
            trained.append((start, stop if stop is not None else self._tail_cut(text, end)))
        if adds_end:
            text = text[: trained[-1][1]]
        return Rendered(text, tuple(trained), _within(controls, len(text)), spelt, adds_end=adds_end)

    def _tail_cut(self, text: str, end: int) -> int:
        """Without the blank that the template writes behind a turn."""
        blank = len(self._tail) - len(self._tail.rstrip())
        return end - blank if self._tail and text[:end].endswith(self._tail) else end

    def _marked(self, messages: list[Any], tools: list[Any]) -> tuple[str, list[Span]]:
        text, found = self._rendered(messages, tools, marks=True)
        spans: list[Span] = []
        for start, end in found:
            if spans and start <= spans[-1][1]:
                spans[-1] = (spans[-1][0], end)
            else:
                spans.append((start, end))
        return text, spans[-1:] if self._loss_on == "completion" else spans

    def _compared(self, messages: list[Any], tools: list[Any]) -> tuple[str, list[Span]]:
        """By comparing renders of the conversation up to each answer, and with it."""
        text = self._text(messages, tools)
        answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        if answers and answers[0] == 0:
            raise DataError(
                "the conversation begins with an assistant turn", hint="add a user turn before it, or remove the row"
            )
        spans = []
        for place in answers[-1:] if self._loss_on == "completion" else answers:
            before = self._text(messages[:place], tools, prompt=True)
            until = text if place == len(messages) - 1 else self._text(messages[: place + 1], tools)
            if not until.startswith(before) or not text.startswith(until):
                last = place != answers[-1] and text.startswith(self._text(messages[: answers[-1]], tools, prompt=True))
                raise self._not_nested(answers.index(place) + 1, before, until, text, last_is_clear=last)
            spans.append((len(before), len(until)))
        return text, spans

    def _not_nested(self, number: int, before: str, until: str, text: str, *, last_is_clear: bool) -> DataError:
        if until.startswith(before):
            what, shorter, longer = f"changes assistant turn {number} when the conversation continues", until, text
        else:
            what = f"changes the text before assistant turn {number} when that turn is added"
            shorter, longer = before, until
        pairs = enumerate(zip(shorter, longer, strict=False))
        at = next((place for place, (one, other) in pairs if one != other), min(len(shorter), len(longer)))
        texts = (part[max(0, at - _SHOWN // 2) : at + _SHOWN // 2].replace(_SIGN, "") for part in (shorter, longer))
        shown = ", then ".join(f"\u00ab{one_line(part, _SHOWN)}\u00bb" for part in texts)
        message = f"the chat template {self._template.name} {what} ({shown}), so the tokens of the turn are unknown"
        way = 'task.loss_on = "completion" to train on the last turn only, or ' if last_is_clear else ""
        return DataError(message, hint=f"set {way}{TEMPLATE_KEY} to another, such as chatml")

    def _text(self, messages: list[Any], tools: list[Any], *, prompt: bool = False) -> str:
        return self._rendered(messages, tools, prompt=prompt)[0]

    def _rendered(
        self, messages: list[Any], tools: list[Any], *, prompt: bool = False, marks: bool = False
    ) -> tuple[str, list[Span]]:
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
            texts, spans = limited(template, render)
        except RenderingTooLongError:
            seconds = format_number(LIMIT_SECONDS)
            message = f"the chat template {self._template.name} did not render one conversation within {seconds} s"
            hint = f"remove the endless loop from the template, or set {TEMPLATE_KEY} to another, such as chatml"
            raise ConfigError(Problem(message=message, key=TEMPLATE_KEY, hint=hint)) from None
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError, *_ENDS_OF_PYTHON) as error:
            number, reason = getattr(error, "lineno", None), str(error).strip().rstrip(".") or type(error).__name__
            name = f"{self._template.name}, line {number}," if number else self._template.name
            message = f"the chat template {name} rejects this conversation: {one_line(reason, 160)}"
            hint = f"change the conversation, or choose another {TEMPLATE_KEY}, such as chatml"
            raise DataError(message, hint=hint) from None
        return str(texts[0]), [(start, end) for start, end in spans[0]] if marks else []

    def _broken(self, value: Any) -> tuple[Any, int]:
        """A copy in which no string spells a special token, and how many did."""
        count = 0

        def each(part: Any) -> Any:
            nonlocal count
            if isinstance(part, str):
                if _SIGN in part:
                    raise DataError("the text contains U+FDD0, which is not a character", hint="remove the row")
                text, found = self._controls.subn(lambda match: match[0][0] + _SIGN + match[0][1:], part)
                count += found
                return text
            if isinstance(part, Mapping):
                return {name: each(inner) for name, inner in part.items()}
            return [each(inner) for inner in part] if isinstance(part, list | tuple) else part

        return each(value), count

    def _find_end(self, added: Sequence[str]) -> tuple[str, str]:
        """(the token that ends a turn or "", all that stands behind an answer)."""
        messages = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": _PROBE}]
        try:
            text = self._text(messages, [])
        except DataError as error:
            problem = error.problems[0]
            raise ConfigError(Problem(message=problem.message, key=TEMPLATE_KEY, hint=problem.hint)) from None
        if _PROBE not in text:
            message = f"the chat template {self._template.name} omits the text of the assistant"
            raise ConfigError(Problem(message=message, key=TEMPLATE_KEY, hint="choose another, such as chatml"))
        tail = text.rpartition(_PROBE)[2]
        begins = [token for token in added if token and not token.isspace() and tail.lstrip().startswith(token)]
        return max(begins, key=len, default=""), tail


def _refuse_powers(template: ChatTemplate) -> None:
    """Raises ConfigError: one operation on whole numbers that takes hours cannot be ended from outside."""
    from jinja2 import Environment, TemplateError

    with suppress(TemplateError):
        for text in filter(None, (template.text, template.for_tools)):
            for line, kind, word in Environment().lex(text):
                if (kind, word) == ("operator", "**"):
                    message = f"the chat template {template.name}, line {line}, uses the operator **"
                    hint = f"powers may take forever and are not allowed: set {TEMPLATE_KEY} to another, such as chatml"
                    raise ConfigError(Problem(message=message, key=TEMPLATE_KEY, hint=hint))


def sections(rendered: Rendered) -> list[tuple[int, int, bool]]:
    """The text cut where loss begins and ends: (start, end, carries loss), none of them empty."""
    found = []
    edges = [0, *(place for span in rendered.trained for place in span), len(rendered.text)]
    for number, (start, end) in enumerate(pairwise(edges)):
        if end > start:
            found.append((start, end, number % 2 == 1))
    return found


def _without_signs(text: str) -> tuple[str, list[int]]:
    """The text, and where signs stood in the longer one."""
    signs = [found.start() for found in re.finditer(_SIGN, text)]
    return (text.replace(_SIGN, ""), signs) if signs else (text, signs)


def _moved(place: int, signs: Sequence[int]) -> int:
    return place - sum(sign < place for sign in signs)


def _within(spans: Sequence[Span], end: int) -> tuple[Span, ...]:
    return tuple(span for span in spans if span[1] <= end)
