"""Conversations with the tokens of training: `serving.json` in a chat export, with which `check-serving` compares what
a server makes of them, and the files that Ollama needs."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
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


def chat_prompts(trained: TrainedModel, tokenizer: Any) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the conversations that the chat template accepts, each as a row of `serving.json` with the text and the
    ids of its prompt, and why the template rejects the others, by name."""
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
            row: dict[str, Any] = {
                "name": name,
                "messages": messages,
                "tools": tools,
                "text": rendered.text,
                "ids": ids,
            }
            prompts.append(row)
    return prompts, rejected


def _answerable(prompts: Sequence[dict[str, Any]], model_config: Any) -> list[dict[str, Any]]:
    """Return the prompts after which the model has positions for an answer."""
    positions = getattr(model_config.get_text_config(), "max_position_embeddings", None) or 1 << 30
    return [prompt for prompt in prompts if len(prompt["ids"]) + NEW_TOKENS <= positions]


def context_length(trained: TrainedModel, tokenizer: Any, model_config: Any) -> int:
    """Return the context that a server needs, in tokens: that of training, or more if a conversation needs it."""
    prompts = _answerable(chat_prompts(trained, tokenizer)[0], model_config)
    return max([trained.config.data.max_length, *(len(prompt["ids"]) + NEW_TOKENS for prompt in prompts)])


def serving_facts(trained: TrainedModel, model: Any, tokenizer: Any) -> dict[str, Any]:
    """Return the content of `serving.json`: each conversation with its tokens and greedy answers, and stop tokens.

    An answer has its greedy ids without the stop token, whether it stops, its text, and its length in characters after
    each token. After LoRA, `base_answer` is that of the base model, which a server without the adapter would give."""
    prompts, rejected = chat_prompts(trained, tokenizer)
    fitting_ids = {row["name"]: row["ids"] for row in _answerable(prompts, model.config)}

    def answer_facts() -> dict[str, dict[str, Any]]:
        facts: dict[str, dict[str, Any]] = {}
        answers = answer_in_batches(model, tokenizer, list(fitting_ids.values()), new_tokens=NEW_TOKENS)
        for name, answer in zip(fitting_ids, answers, strict=True):
            ids = list(answer.ids)
            texts = ["", *(str(tokenizer.decode(ids[:count])) for count in range(1, len(ids) + 1))]
            lengths = list(map(len, texts[1:]))
            facts[name] = {"ids": ids, "stops": answer.has_stopped, "text": texts[-1], "lengths": lengths}
        return facts

    answers, base_answers = answer_facts(), dict[str, dict[str, Any]]()
    if trained.base and hasattr(model, "disable_adapter"):
        with model.disable_adapter():
            base_answers = answer_facts()
    for row in prompts:
        row["tokens"] = tokenizer.convert_ids_to_tokens(row["ids"])
        row |= {"answer": answers.get(row["name"]), "base_answer": base_answers.get(row["name"])}
    return {
        "bos": {"id": tokenizer.bos_token_id, "token": tokenizer.bos_token},
        "stops": [{"id": stop, "token": tokenizer.convert_ids_to_tokens(stop)} for stop in stop_ids(model)],
        "new_tokens": NEW_TOKENS,
        "conversations": prompts,
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
        user_start, *gaps = rendered(_turns(_PROBE, _PROBE, _PROBE)).split(_PROBE)
        single_turn = rendered(_turns(_PROBE)).split(_PROBE)
    except DataError:
        return ""
    if len(gaps) != 3 or not user_start:
        return ""
    # After a question comes what begins an answer, after an answer its end and what begins a question.
    answer_start, between_turns, prompt_end = gaps
    if answer_start != prompt_end or single_turn != [user_start, prompt_end] or not between_turns.endswith(user_start):
        return ""
    parts = {_USER: (user_start, ""), _ASSISTANT: (answer_start, between_turns.removesuffix(user_start))}
    with suppress(DataError):  # a template without system prompts
        system_start, system_end, *rest = rendered(_turns(_PROBE, system=_PROBE)).split(_PROBE)
        if rest != [prompt_end] or not system_end.endswith(user_start):
            return ""
        parts[_SYSTEM] = (system_start, system_end.removesuffix(user_start))
    if any('"""' in text or "{{" in text for pair in parts.values() for text in pair):
        return ""
    for messages, tools in CONVERSATIONS.values():
        stripped = [message | {"content": message["content"].strip()} for message in messages]
        if tools or any(message["role"] not in parts for message in stripped):
            continue
        joined = "".join(message["content"].join(parts[message["role"]]) for message in stripped)
        with suppress(DataError):
            if joined + prompt_end != rendered(stripped):
                return ""
    branches = "".join(
        f'{{{{ {"else " * bool(number)}if eq .Role "{role}" }}}}{"{{ .Content }}".join(pair)}'
        for number, (role, pair) in enumerate(parts.items())
    )
    return f"{{{{ range .Messages }}}}{branches}{{{{ end }}}}{{{{ end }}}}{prompt_end}"


def modelfile(
    trained: TrainedModel, tokenizer: Any, model_file: str, stops: Sequence[str], context: int, settings: Any
) -> str:
    """Return Ollama's description of a model file: its template, its stop tokens and its parameters."""
    template = ollama_template(trained, tokenizer)
    no_template = "# This chat template has no form in Ollama's language: Ollama looks for one like it."
    lines = [f"FROM ./{model_file}", f'TEMPLATE """{template}"""' if template else no_template]
    lines += [f"PARAMETER stop {json.dumps(stop, ensure_ascii=False)}" for stop in stops]
    lines.append(f"PARAMETER num_ctx {context}")
    sampling_names = ("temperature", "top_k", "top_p", "min_p") if settings.get("do_sample") else ()
    lines += [f"PARAMETER {name} {settings[name]:g}" for name in sampling_names if settings.get(name) is not None]
    return "\n".join([*lines, ""])
