"""Conversations with the tokens of training: `serving.json` in a chat export, with which `check-serving` compares what
a server makes of them, and the files that Ollama needs."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tui_trainer.errors import DataError
from tui_trainer.exporting.trained_model import TrainedModel
from tui_trainer.models.writing import answer_in_batches, stop_ids
from tui_trainer.terminal.safe_text import one_line

MODELFILE = "Modelfile"
NEW_TOKENS = 32
"""Number of tokens of each greedy answer."""
_USER, _ASSISTANT, _SYSTEM = "user", "assistant", "system"
_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Return the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_CALL = {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Bern"}}}


def _turns(*contents: str, system: str = "") -> list[dict[str, Any]]:
    roles = (_USER, _ASSISTANT)
    messages = [{"role": roles[number % 2], "content": content} for number, content in enumerate(contents)]
    return [*([{"role": _SYSTEM, "content": system}] if system else []), *messages]


CONVERSATIONS: Mapping[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "one question": (_turns("What is the capital of Switzerland?"), []),
    "a system prompt": (_turns("Who are you?", system="You are a helpful assistant."), []),
    "three turns": (_turns("Hi", "Hello! How can I help?", "Name a colour."), []),
    "five turns": (_turns("1", "one", "2", "two", "3", system="Write numbers as words."), []),
    "blanks at the ends": (_turns("  spaces around  ", "\n\nlines around\n", " and here "), []),
    "lines and tabs": (_turns("first line\nsecond line\n\n\tindented\n\n\n- a\n- b"), []),
    "code": (_turns("Fix this:\n```python\ndef f(x):\n    return {'a': [x, -1.5e-3]}\n```"), []),
    "other scripts": (_turns("\u4f60\u597d\uff0c \u041f\u0440\u0438\u0432\u0435\u0442 \u0645\u0631\u062d"), []),
    "emoji": (_turns("\U0001f600\U0001f680 \U0001f469\u200d\U0001f4bb \U0001f1e8\U0001f1ed"), []),
    "marks": (_turns("<b>{{ x }}</b> {% if %} [INST] \"quoted\" \\n & | $HOME", system="Use <tags> & {braces}."), []),
    "a tool": (_turns("How is the weather in Bern?"), [_TOOL]),
    "a tool's result": (
        [*_turns("How is the weather in Bern?"), {"role": _ASSISTANT, "content": "", "tool_calls": [_CALL]},
         {"role": "tool", "name": "get_weather", "content": '{"sky": "clear", "degrees": 21}'}],
        [_TOOL],
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A conversation up to the next answer, as training renders it: its text and its token ids."""

    name: str
    text: str
    ids: list[int]


def chat_prompts(trained: TrainedModel, tokenizer: Any) -> tuple[list[RenderedPrompt], dict[str, str]]:
    """Return the prompts of all conversations, and why the chat template rejects the others, by name."""
    task: Any = trained.task
    reader = task.input_reader(trained.config, tokenizer)
    prompts, rejected = [], {}
    for name, (messages, tools) in CONVERSATIONS.items():
        try:
            rendered = reader.of_messages(messages, tools)
            [ids] = task.prompt_ids(tokenizer, [rendered])
        except DataError as error:
            rejected[name] = one_line(error.problems[0].message, 200)
        else:
            prompts.append(RenderedPrompt(name, rendered.text, ids))
    return prompts, rejected


def _answerable(prompts: Sequence[RenderedPrompt], model_config: Any) -> list[RenderedPrompt]:
    """Return the prompts after which the model has positions for an answer."""
    positions = getattr(model_config.get_text_config(), "max_position_embeddings", None) or 1 << 30
    return [prompt for prompt in prompts if len(prompt.ids) + NEW_TOKENS <= positions]


def context_length(trained: TrainedModel, tokenizer: Any, model_config: Any) -> int:
    """Return the context that a server needs, in tokens: that of training, or more if a conversation needs it."""
    prompts = _answerable(chat_prompts(trained, tokenizer)[0], model_config)
    return max([trained.config.data.max_length, *(len(prompt.ids) + NEW_TOKENS for prompt in prompts)])


def serving_facts(trained: TrainedModel, model: Any, tokenizer: Any) -> dict[str, Any]:
    """Return the content of `serving.json`: each conversation with its tokens and greedy answers, and stop tokens.

    An answer has its greedy ids without the stop token, whether it stops, its text, and its length in characters after
    each token. After LoRA, `base_answer` is that of the base model, which a server without the adapter would give."""
    prompts, rejected = chat_prompts(trained, tokenizer)
    short = _answerable(prompts, model.config)

    def answer_facts() -> dict[str, dict[str, Any]]:
        facts: dict[str, dict[str, Any]] = {}
        answers = answer_in_batches(model, tokenizer, [prompt.ids for prompt in short], new_tokens=NEW_TOKENS)
        for prompt, answer in zip(short, answers, strict=True):
            ids = list(answer.ids)
            texts = ["", *(str(tokenizer.decode(ids[:count])) for count in range(1, len(ids) + 1))]
            lengths = list(map(len, texts[1:]))
            facts[prompt.name] = {"ids": ids, "stops": answer.has_stopped, "text": texts[-1], "lengths": lengths}
        return facts

    own, base = answer_facts(), dict[str, dict[str, Any]]()
    if trained.base and hasattr(model, "disable_adapter"):
        with model.disable_adapter():
            base = answer_facts()
    stops = stop_ids(model)
    bos = tokenizer.bos_token_id
    rows = []
    for prompt in prompts:
        messages, tools = CONVERSATIONS[prompt.name]
        row: dict[str, Any] = {"name": prompt.name, "messages": messages, "tools": tools, "text": prompt.text,
                               "ids": prompt.ids, "tokens": tokenizer.convert_ids_to_tokens(prompt.ids)}  # fmt: skip
        rows.append(row | {"answer": own.get(prompt.name), "base_answer": base.get(prompt.name)})
    return {
        "bos": {"id": bos, "token": tokenizer.bos_token},
        "stops": [{"id": number, "token": tokenizer.convert_ids_to_tokens(number)} for number in stops],
        "new_tokens": NEW_TOKENS,
        "conversations": rows,
        "rejected": rejected,
    }


# Ollama's templates are Go's, not Jinja. Most chat templates write each message between two fixed texts, which can be
# found by rendering, and confirmed by rendering the conversations above.

_PROBE = "wb3vq"


def ollama_template(trained: TrainedModel, tokenizer: Any) -> str:
    """Return the chat template in Ollama's language without the BOS, which Ollama adds; "" if it has no such form."""
    reader: Any = trained.task.input_reader(trained.config, tokenizer)

    def rendered(messages: list[dict[str, Any]]) -> str:
        return str(reader.of_messages(messages).text).removeprefix(tokenizer.bos_token or "\0")

    try:
        first, *more = rendered(_turns(_PROBE, _PROBE, _PROBE)).split(_PROBE)
        alone = rendered(_turns(_PROBE)).split(_PROBE)
    except DataError:
        return ""
    if len(more) != 3 or alone != [first, more[2]] or not more[1].endswith(first) or not first:
        return ""
    # After a question comes what begins an answer, after an answer its end and what begins a question.
    parts = {_USER: (first, ""), _ASSISTANT: (more[0], more[1].removesuffix(first))}
    with suppress(DataError):  # a template without system prompts
        system_start, system_end, *rest = rendered(_turns(_PROBE, system=_PROBE)).split(_PROBE)
        if rest != [more[2]] or not system_end.endswith(first):
            return ""
        parts[_SYSTEM] = (system_start, system_end.removesuffix(first))
    if more[0] != more[2] or any('"""' in text or "{{" in text for pair in parts.values() for text in pair):
        return ""
    for messages, tools in CONVERSATIONS.values():
        plain = [message | {"content": message["content"].strip()} for message in messages]
        if tools or any(message["role"] not in parts for message in plain):
            continue
        joined = "".join(_between(parts, message["role"], message["content"]) for message in plain)
        try:
            if joined + more[2] != rendered(plain):
                return ""
        except DataError:
            continue
    lines = "".join(
        f'{{{{ {"else " * bool(number)}if eq .Role "{role}" }}}}{_between(parts, role, "{{ .Content }}")}'
        for number, role in enumerate(parts)
    )
    return f"{{{{ range .Messages }}}}{lines}{{{{ end }}}}{{{{ end }}}}{more[2]}"


def _between(parts: Mapping[str, tuple[str, str]], role: str, content: str) -> str:
    return f"{parts[role][0]}{content}{parts[role][1]}"


def modelfile(
    trained: TrainedModel, tokenizer: Any, model_file: str, stops: Sequence[str], context: int, settings: Any
) -> str:
    """Return Ollama's description of a model file: its template, its stop tokens and its parameters."""
    lines = [f"FROM ./{model_file}"]
    if template := ollama_template(trained, tokenizer):
        lines.append(f'TEMPLATE """{template}"""')
    else:
        lines.append("# This chat template has no form in Ollama's language: Ollama looks for one like it.")
    return "\n".join([*lines, *_parameters(stops, context, settings), ""])


def _parameters(stops: Sequence[str], context: int, settings: Mapping[str, Any]) -> Iterator[str]:
    for stop in stops:
        yield f"PARAMETER stop {json.dumps(stop, ensure_ascii=False)}"
    yield f"PARAMETER num_ctx {context}"
    for name in ("temperature", "top_k", "top_p", "min_p"):
        if settings.get("do_sample") and settings.get(name) is not None:
            yield f"PARAMETER {name} {settings[name]:g}"
