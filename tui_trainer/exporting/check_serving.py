"""Compare how a running server tokenizes and answers conversations with `serving.json`, which a chat export contains.

Servers are llama.cpp's llama-server, vLLM and Ollama. Sources of their answers: tools/server/README.md of llama.cpp,
vLLM's OpenAI-compatible server and its /tokenize, and docs/api.md of Ollama."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tui_trainer.errors import FolderError, InputError, system_reason
from tui_trainer.files.hub_layout import network_reason
from tui_trainer.terminal.safe_text import one_line

SERVING_FILE = "serving.json"
_TIMEOUT_SECONDS = 120.0
_DETECTION_SECONDS = 10.0
# Servers compute in another precision, so that a later token may differ. Below this share something else is wrong.
_LEAST_AGREEMENT, _BASE_MARGIN = 0.5, 0.1
_SHOWN_CHARACTERS = 24
_OTHER_TOKENIZER = "another tokenizer: the text is the same, its tokens are not"


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerReply:
    """Prompt and answer of a server for one conversation. None and "" where it does not report a value.

    `prompt_tokens` counts the tokens of the conversation, and `raw_prompt_tokens` those of the prompt of training. The
    answer follows the prompt of training. `has_stopped` is whether the server ended it by itself, and `answer_ids` may
    end with the token that ended it."""

    prompt_text: str = ""
    prompt_ids: Sequence[int] | None = None
    prompt_tokens: int | None = None
    raw_prompt_tokens: int | None = None
    answer_ids: Sequence[int] | None = None
    answer_text: str = ""
    has_stopped: bool = False


@dataclass(kw_only=True, slots=True)
class ServingCheck:
    """Result of the comparison. `differences` has a sentence for each conversation that differs, with its cause."""

    server: str
    conversations: int = 0
    differences: list[str] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    same_tokens: int = 0
    answer_tokens: int = 0
    base_tokens: int = 0
    stopped: int = 0
    should_stop: int = 0

    def lines(self) -> list[str]:
        greedy = f"{self.same_tokens} of {self.answer_tokens} greedy tokens agree"
        stops = f"{self.stopped} of {self.should_stop} answers stop where training's do"
        heading = f"{self.server}: {self.conversations} conversations, {greedy}, {stops}"
        ranked = [f"likely cause: {cause}" for cause, _ in Counter(self.causes).most_common()]
        return [heading, *self.differences, *(ranked or ["the same tokens as in training"])]


def read_serving(folder: Path) -> dict[str, Any]:
    """Return the content of `serving.json` in an export. Raises FolderError."""
    try:
        content: dict[str, Any] = json.loads((folder / SERVING_FILE).read_bytes())
        if not content["conversations"] or content["new_tokens"] <= 0:
            raise ValueError("no conversations")
    except (OSError, ValueError, LookupError, TypeError) as error:
        hint = "name the folder of a chat model's export; `tui-trainer export` writes this file"
        message = f"{SERVING_FILE} cannot be read: {one_line(system_reason(error), 160)}"
        raise FolderError(message, where=one_line(str(folder)), hint=hint) from None
    return content


def check_serving(url: str, facts: Mapping[str, Any], model: str, show: Callable[[int, int], None]) -> ServingCheck:
    """Ask the server at `url` about each conversation. `model` is the server's name of the model; "" for its only one.

    Raises InputError if no server answers, its kind is unknown, or it refuses a request."""
    url = url.rstrip("/")
    server_kind, ask_about, model = _find_server(url, model)
    model_field = {"model": model} if model else {}

    def ask(path: str, **fields: Any) -> dict[str, Any]:
        return _request(url + path, model_field | fields)

    check, stop_causes = ServingCheck(server=server_kind), list[str]()
    for number, row in enumerate(facts["conversations"]):
        show(number, len(facts["conversations"]))
        try:
            reply = ask_about(ask, row, facts["new_tokens"])
        except (LookupError, TypeError, ValueError) as error:
            message = f"{server_kind} at {url} gives an answer of another form: {type(error).__name__} {error}"
            raise InputError(one_line(message, 200), hint="its version may be too old or too new") from None
        stop_causes += _compare(check, row, reply, facts)
    if check.base_tokens > check.same_tokens + _BASE_MARGIN * check.answer_tokens:
        check.causes.append("the adapter is not loaded: the answers are those of the base model")
        return check
    check.causes += stop_causes
    if check.same_tokens < _LEAST_AGREEMENT * check.answer_tokens:
        check.causes.append("other weights: after the same prompts the answers differ")
    return check


def _compare(check: ServingCheck, row: Mapping[str, Any], reply: ServerReply, facts: Mapping[str, Any]) -> list[str]:
    """Add one conversation. Return the cause of another end of its answer, which the base model would explain too."""
    check.conversations += 1
    if difference := _prompt_difference(row, reply, facts["bos"]["id"]):
        check.differences.append(f"{row['name']}: {difference[0]}")
        check.causes.append(difference[1])
    difference = None
    if answer := row["answer"]:
        stops = {stop["id"]: stop["token"] for stop in facts["stops"]}
        if reply.answer_ids and reply.answer_ids[-1] in stops and reply.has_stopped:
            reply = replace(reply, answer_ids=reply.answer_ids[:-1])
        same_tokens, length = _agreement(answer, reply, stops), len(answer["ids"])
        difference = _stop_difference(answer, reply, same_tokens, " or ".join(stops.values()))
        check.same_tokens += same_tokens
        # An answer that the server cuts is compared up to there.
        check.answer_tokens += same_tokens if difference and same_tokens < length else length + answer["stops"]
        check.base_tokens += _agreement(row["base_answer"], reply, stops) if row["base_answer"] else 0
        check.should_stop += answer["stops"]
        check.stopped += same_tokens > length and difference is None
        if difference:
            check.differences.append(f"{row['name']}: {difference[0]}")
    return [difference[1]] if difference else []


def _stop_difference(
    answer: Mapping[str, Any], reply: ServerReply, same_tokens: int, stop_words: str
) -> tuple[str, str] | None:
    """Return the difference of a server that continues after a stop token of training, or stops elsewhere."""
    length, answer_ids = len(answer["ids"]), reply.answer_ids
    is_longer = len(reply.answer_text) > len(answer["text"]) if answer_ids is None else len(answer_ids) > same_tokens
    stops_here = reply.has_stopped and not is_longer
    if same_tokens > length and not stops_here:
        sentence = f"the server continues after {length} tokens, where {stop_words} ends the answer of training"
        return sentence, f"another stop token: the server does not stop at {stop_words}"
    if stops_here and same_tokens < length:
        sentence = f"the server stops after {same_tokens} tokens, where the answer of training continues"
        return sentence, f"another stop token: the server stops at more than {stop_words}"
    return None


def _agreement(answer: Mapping[str, Any], reply: ServerReply, stops: Mapping[int, str]) -> int:
    """Return how many greedy tokens agree, with the stop token. Without ids of the server, whole tokens of the equal
    text are counted, and a stop token is taken as equal."""
    length, token_ids = len(answer["ids"]), reply.answer_ids
    if token_ids is None:
        characters = _common_prefix(answer["text"], reply.answer_text)
        count = len([end for end in answer["lengths"] if end <= characters])
        return count + int(count == length and answer["stops"])
    count = _common_prefix(answer["ids"], token_ids)
    ends = token_ids[length] in stops if len(token_ids) > length else reply.has_stopped
    return count + int(count == length and answer["stops"] and ends)


def _common_prefix(left: Sequence[Any], right: Sequence[Any]) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((index for index, (x, y) in pairs if x != y), min(len(left), len(right)))


def _prompt_difference(row: Mapping[str, Any], reply: ServerReply, bos: int | None) -> tuple[str, str] | None:
    """Return (description, likely cause) of the first token of the prompt that differs; None if all are equal."""
    ids, tokens, server_ids = row["ids"], row["tokens"], reply.prompt_ids
    if server_ids is None:
        return _count_difference(len(ids), reply)
    if list(server_ids) == ids:
        return None
    index = _common_prefix(ids, server_ids)
    expected = f"{tokens[index]!r} ({ids[index]})" if index < len(ids) else "its end"
    names = {number: f"{token!r} ({number})" for number, token in zip(ids, tokens, strict=True)}
    server_id = server_ids[index] if index < len(server_ids) else None
    actual = "the prompt ends" if server_id is None else f"{names.get(server_id, f'token {server_id}')} comes"
    sentence = f"token {index + 1} of the prompt should be {one_line(expected, 60)}, but {one_line(actual, 60)}"
    if bos is not None and list(server_ids[1:]) == ids and server_ids[0] == bos:
        is_double = ids[0] == bos
        return sentence, "BOS twice: template and tokenizer each add it" if is_double else "a BOS that training had not"
    if bos is not None and [bos, *server_ids] == ids:
        return sentence, "no BOS, which training had"
    bos_token = tokens[0] if ids[0] == bos else ""
    if reply.prompt_text and (cause := _text_difference(row["text"], reply.prompt_text, bos_token)):
        return sentence, cause
    return sentence, _OTHER_TOKENIZER


def _text_difference(text: str, server_text: str, bos: str) -> str:
    """Return the likely cause of two different texts of one prompt; "" if they differ at most in the BOS."""
    text, server_text = text.removeprefix(bos), server_text.removeprefix(bos)
    if text == server_text:
        return ""
    index = _common_prefix(text, server_text)
    before = one_line(text[max(0, index - _SHOWN_CHARACTERS) : index].rstrip("\n").rpartition("\n")[2], 60)
    blanks = text[index : len(text) - len(text[index:].lstrip())]
    for end in range(index + 1, index + len(blanks) + 1):
        if text[end:][:_SHOWN_CHARACTERS] == server_text[index:][:_SHOWN_CHARACTERS]:
            missing_kind = "newline" if set(text[index:end]) == {"\n"} else "blank"
            return f"another chat template: a {missing_kind} is missing after {before!r}"
    expected, actual = (one_line(part[index : index + _SHOWN_CHARACTERS], 60) for part in (text, server_text))
    return f"another chat template: after {before!r} comes {actual!r} instead of {expected!r}"


def _count_difference(expected: int, reply: ServerReply) -> tuple[str, str] | None:
    """Return the difference for a server that reports only how many tokens a prompt has."""
    sentence = "the server reads {} tokens in {}, training {}".format
    if (count := reply.raw_prompt_tokens) is not None and count != expected:
        doubled = "BOS twice: the server adds it to a text that has it, or to one that had none in training"
        cause = doubled if count == expected + 1 else _OTHER_TOKENIZER
        return sentence(count, "the text of training", expected), cause
    if (count := reply.prompt_tokens) is not None and count != expected:
        cause = f"another chat template: {abs(count - expected)} tokens differ"
        return sentence(count, "the conversation", expected), cause
    return None


Ask = Callable[..., dict[str, Any]]
"""Function that sends fields to a path of a server and returns its answer."""


def _ask_llama(ask: Ask, row: Mapping[str, Any], new_tokens: int) -> ServerReply:
    text = ask("/apply-template", **_messages(row))["prompt"]
    ids = ask("/tokenize", content=text, add_special=True, parse_special=True)["tokens"]
    reply = ServerReply(prompt_text=text, prompt_ids=ids)
    if not row["answer"]:
        return reply
    fields = {"temperature": 0, "n_predict": new_tokens, "return_tokens": True, "cache_prompt": False}
    answer = ask("/completion", prompt=row["ids"], **fields)
    has_stopped = answer["stop_type"] in ("eos", "word")
    return replace(reply, answer_ids=answer["tokens"], answer_text=answer["content"], has_stopped=has_stopped)


def _ask_vllm(ask: Ask, row: Mapping[str, Any], new_tokens: int) -> ServerReply:
    ids = ask("/tokenize", **_messages(row), add_generation_prompt=True)["tokens"]
    text = "" if ids == row["ids"] else ask("/detokenize", tokens=ids)["prompt"]
    reply = ServerReply(prompt_text=text, prompt_ids=ids)
    if not row["answer"]:
        return reply
    fields = {"temperature": 0, "max_tokens": new_tokens, "return_token_ids": True}
    [choice] = ask("/v1/completions", prompt=row["ids"], **fields)["choices"]
    return replace(reply, answer_ids=choice["token_ids"], has_stopped=choice["finish_reason"] == "stop")


def _ask_ollama(ask: Ask, row: Mapping[str, Any], new_tokens: int) -> ServerReply:
    options = {"stream": False, "options": {"temperature": 0, "num_predict": new_tokens}}
    prompt_tokens = ask("/api/chat", **_messages(row), **options)["prompt_eval_count"]
    raw = ask("/api/generate", prompt=row["text"], raw=True, **options)
    reply = ServerReply(prompt_tokens=prompt_tokens, raw_prompt_tokens=raw["prompt_eval_count"])
    return replace(reply, answer_text=raw["response"], has_stopped=raw["done_reason"] == "stop")


def _messages(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"messages": row["messages"], **({"tools": row["tools"]} if row["tools"] else {})}


def _find_server(url: str, model: str) -> tuple[str, Callable[[Ask, Mapping[str, Any], int], ServerReply], str]:
    """Return (kind of the server, function that asks about a conversation, model of the server). Raises InputError.

    A kind is recognized by a path that only it answers."""
    if not url.startswith(("http://", "https://")):
        raise InputError(f"{one_line(url, 80)!r} is no address", hint="an address looks like http://127.0.0.1:8080")
    if _get(f"{url}/props"):
        return "llama-server", _ask_llama, model
    if _get(f"{url}/api/version"):
        names = [entry["name"] for entry in _get(f"{url}/api/tags").get("models", [])]
        return "Ollama", _ask_ollama, _served_model(names, model)
    models = _get(f"{url}/v1/models").get("data", [])
    if any(entry.get("owned_by") == "vllm" for entry in models):
        return "vLLM", _ask_vllm, _served_model([entry["id"] for entry in models], model)
    raise InputError(f"the server at {url} is none of llama-server, vLLM and Ollama", hint="start one of these")


def _served_model(names: Sequence[str], model: str) -> str:
    """Return `model`, or the server's only one if it is empty. Raises InputError if the server does not have it."""
    if model in names or (model and f"{model}:latest" in names):
        return model
    if not model and len(names) == 1:
        return names[0]
    message = f"the server has no model {one_line(model, 60)}" if model else "the server has several models or none"
    raise InputError(message, hint=f"choose one with --model: {one_line(', '.join(names), 300) or 'none'}")


class _RefusedError(InputError):
    """Raised if a server refuses a request, for example because it has no such path."""


def _get(url: str) -> dict[str, Any]:
    with suppress(_RefusedError):
        return _request(url)
    return {}


def _request(url: str, fields: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the JSON that a server answers. Raises InputError if it does not answer, or refuses the request."""
    body = None if fields is None else json.dumps(fields).encode()
    try:
        request = Request(url, body, {"Content-Type": "application/json"})
        with urlopen(request, timeout=_DETECTION_SECONDS if body is None else _TIMEOUT_SECONDS) as answer:
            content: dict[str, Any] = json.loads(answer.read())
    except HTTPError as error:
        reason = one_line(error.read(2000).decode(errors="replace"), 200)
        raise _RefusedError(f"{url} refuses the request ({error.code}): {reason}") from None
    except json.JSONDecodeError:
        raise _RefusedError(f"{url} gives an answer that is not JSON") from None
    except (OSError, HTTPException, ValueError) as error:
        hint = "start the server, or check its address and port"
        raise InputError(f"no server answers at {url}: {network_reason(error)}", hint=hint) from None
    return content
