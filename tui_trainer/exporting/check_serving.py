"""Compare what a running server makes of conversations with `serving.json`, the tokens of training in a chat export.

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """Prompt and answer of a server for one conversation. None and "" where it does not report a value.

    `ids` is the whole prompt. The answer follows the prompt of training, and `has_stopped` is whether the server ended
    it by itself. Its ids may end with the token that ended it."""

    text: str = ""
    ids: Sequence[int] | None = None
    count: int | None = None
    raw_count: int | None = None
    answer: Sequence[int] | None = None
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
    name, serve, model = _find_server(url, model)
    check, stop_causes = ServingCheck(server=name), list[str]()
    for number, row in enumerate(facts["conversations"]):
        show(number, len(facts["conversations"]))
        try:
            served = serve(
                lambda path, **fields: _request(url + path, ({"model": model} if model else {}) | fields),
                row,
                facts["new_tokens"],
            )
        except (LookupError, TypeError, ValueError) as error:
            message = f"{name} at {url} gives an answer of another form: {type(error).__name__} {error}"
            raise InputError(one_line(message, 200), hint="its version may be too old or too new") from None
        stop_causes += _compare(check, row, served, facts)
    if check.base_tokens > check.same_tokens + _BASE_MARGIN * check.answer_tokens:
        check.causes.append("the adapter is not loaded: the answers are those of the base model")
        return check
    check.causes += stop_causes
    if check.same_tokens < _LEAST_AGREEMENT * check.answer_tokens:
        check.causes.append("other weights: after the same prompts the answers differ")
    return check


def _compare(check: ServingCheck, row: Mapping[str, Any], served: Served, facts: Mapping[str, Any]) -> list[str]:
    """Add one conversation. Return the cause of another end of its answer, which the base model would explain too."""
    check.conversations += 1
    if difference := _prompt_difference(row, served, facts["bos"]["id"]):
        check.differences.append(f"{row['name']}: {difference[0]}")
        check.causes.append(difference[1])
    difference = None
    if answer := row["answer"]:
        stops = {stop["id"]: stop["token"] for stop in facts["stops"]}
        if served.answer and served.answer[-1] in stops and served.has_stopped:
            served = replace(served, answer=served.answer[:-1])
        count, length = _agreement(answer, served, stops), len(answer["ids"])
        difference = _stop_difference(check, answer, served, count, stops)
        check.same_tokens += count
        # An answer that the server cuts is compared up to there.
        check.answer_tokens += count if difference and count < length else length + answer["stops"]
        check.base_tokens += _agreement(row["base_answer"], served, stops) if row["base_answer"] else 0
        check.should_stop += answer["stops"]
        if difference:
            check.differences.append(f"{row['name']}: {difference[0]}")
    return [difference[1]] if difference else []


def _stop_difference(
    check: ServingCheck, answer: Mapping[str, Any], served: Served, count: int, stops: Mapping[int, str]
) -> tuple[str, str] | None:
    """Return the difference of a server that continues after a stop token of training, or stops elsewhere. Count the
    answers that stop as they should."""
    length, names = len(answer["ids"]), " or ".join(stops.values())
    is_longer = len(served.answer_text) > len(answer["text"]) if served.answer is None else len(served.answer) > count
    if count > length:
        if served.has_stopped and not is_longer:
            check.stopped += 1
            return None
        sentence = f"the server continues after {length} tokens, where {names} ends the answer of training"
        return sentence, f"another stop token: the server does not stop at {names}"
    if served.has_stopped and not is_longer and count < length:
        sentence = f"the server stops after {count} tokens, where the answer of training continues"
        return sentence, f"another stop token: the server stops at more than {names}"
    return None


def _agreement(answer: Mapping[str, Any], served: Served, stops: Mapping[int, str]) -> int:
    """Return how many greedy tokens agree, with the stop token. Without ids of the server, whole tokens of the equal
    text are counted, and a stop token is taken as equal."""
    length, token_ids = len(answer["ids"]), served.answer
    if token_ids is None:
        characters = _equal_start(answer["text"], served.answer_text)
        count = len([end for end in answer["lengths"] if end <= characters])
        return count + int(count == length and answer["stops"])
    count = _equal_start(answer["ids"], token_ids)
    ends = token_ids[length] in stops if len(token_ids) > length else served.has_stopped
    return count + int(count == length and answer["stops"] and ends)


def _equal_start(one: Sequence[Any], other: Sequence[Any]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (x, y) in pairs if x != y), min(len(one), len(other)))


def _prompt_difference(row: Mapping[str, Any], served: Served, bos: int | None) -> tuple[str, str] | None:
    """Return (description, likely cause) of the first token of the prompt that differs; None if all are equal."""
    ids, tokens, theirs = row["ids"], row["tokens"], served.ids
    if theirs is None:
        return _count_difference(len(ids), served)
    if list(theirs) == ids:
        return None
    index = _equal_start(ids, theirs)
    own_word = f"{tokens[index]!r} ({ids[index]})" if index < len(ids) else "its end"
    names = {number: f"{token!r} ({number})" for number, token in zip(ids, tokens, strict=True)}
    served_id = theirs[index] if index < len(theirs) else None
    served_word = "the prompt ends" if served_id is None else f"{names.get(served_id, f'token {served_id}')} comes"
    sentence = f"token {index + 1} of the prompt should be {one_line(own_word, 60)}, but {one_line(served_word, 60)}"
    if bos is not None and list(theirs[1:]) == ids and theirs[0] == bos:
        is_double = ids[0] == bos
        return sentence, "BOS twice: template and tokenizer each add it" if is_double else "a BOS that training had not"
    if bos is not None and [bos, *theirs] == ids:
        return sentence, "no BOS, which training had"
    if served.text and (cause := _text_difference(row["text"], served.text, tokens[0] if ids[0] == bos else "")):
        return sentence, cause
    return sentence, "another tokenizer: the text is the same, its tokens are not"


def _text_difference(text: str, served: str, bos: str) -> str:
    """Return the likely cause of two different texts of one prompt; "" if they differ at most in the BOS."""
    text, served = text.removeprefix(bos), served.removeprefix(bos)
    if text == served:
        return ""
    index = _equal_start(text, served)
    before = one_line(text[max(0, index - _SHOWN_CHARACTERS) : index].rstrip("\n").rpartition("\n")[2], 60)
    blanks = text[index : len(text) - len(text[index:].lstrip())]
    for end in range(index + 1, index + len(blanks) + 1):
        if text[end:][:_SHOWN_CHARACTERS] == served[index:][:_SHOWN_CHARACTERS]:
            missing_kind = "newline" if set(text[index:end]) == {"\n"} else "blank"
            return f"another chat template: a {missing_kind} is missing after {before!r}"
    wanted, come = (one_line(part[index : index + _SHOWN_CHARACTERS], 60) for part in (text, served))
    return f"another chat template: after {before!r} comes {come!r} instead of {wanted!r}"


def _count_difference(count: int, served: Served) -> tuple[str, str] | None:
    """Return the difference for a server that reports only how many tokens a prompt has."""
    for served_count, read_text in ((served.raw_count, "the text of training"), (served.count, "the conversation")):
        if served_count is None or served_count == count:
            continue
        sentence = f"the server reads {served_count} tokens in {read_text}, training {count}"
        if read_text == "the conversation":
            return sentence, f"another chat template: {abs(served_count - count)} tokens differ"
        if served_count == count + 1:
            return sentence, "BOS twice: the server adds it to a text that has it, or to one that had none in training"
        return sentence, "another tokenizer: the text is the same, its tokens are not"
    return None


Ask = Callable[..., dict[str, Any]]
"""Function that sends fields to a path of a server and returns its answer."""


def _serve_llama(ask: Ask, row: Mapping[str, Any], new_tokens: int) -> Served:
    text = ask("/apply-template", **_messages(row))["prompt"]
    ids = ask("/tokenize", content=text, add_special=True, parse_special=True)["tokens"]
    if not row["answer"]:
        return Served(text=text, ids=ids)
    fields = {"temperature": 0, "n_predict": new_tokens, "return_tokens": True, "cache_prompt": False}
    answer = ask("/completion", prompt=row["ids"], **fields)
    stopped = answer["stop_type"] in ("eos", "word")
    return Served(text=text, ids=ids, answer=answer["tokens"], answer_text=answer["content"], has_stopped=stopped)


def _serve_vllm(ask: Ask, row: Mapping[str, Any], new_tokens: int) -> Served:
    ids = ask("/tokenize", **_messages(row), add_generation_prompt=True)["tokens"]
    text = "" if ids == row["ids"] else ask("/detokenize", tokens=ids)["prompt"]
    if not row["answer"]:
        return Served(text=text, ids=ids)
    fields = {"temperature": 0, "max_tokens": new_tokens, "return_token_ids": True}
    [choice] = ask("/v1/completions", prompt=row["ids"], **fields)["choices"]
    return Served(text=text, ids=ids, answer=choice["token_ids"], has_stopped=choice["finish_reason"] == "stop")


def _serve_ollama(ask: Ask, row: Mapping[str, Any], new_tokens: int) -> Served:
    options = {"stream": False, "options": {"temperature": 0, "num_predict": new_tokens}}
    count = ask("/api/chat", **_messages(row), **options)["prompt_eval_count"]
    raw = ask("/api/generate", prompt=row["text"], raw=True, **options)
    stopped = raw["done_reason"] == "stop"
    return Served(count=count, raw_count=raw["prompt_eval_count"], answer_text=raw["response"], has_stopped=stopped)


def _messages(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"messages": row["messages"], **({"tools": row["tools"]} if row["tools"] else {})}


def _find_server(url: str, model: str) -> tuple[str, Callable[[Ask, Mapping[str, Any], int], Served], str]:
    """Return (kind of the server, function that asks it, its name of the model). Raises InputError.

    A kind is recognized by a path that only it answers."""
    if not url.startswith(("http://", "https://")):
        raise InputError(f"{one_line(url, 80)!r} is no address", hint="an address looks like http://127.0.0.1:8080")
    if _answer(url, "/props"):
        return "llama-server", _serve_llama, model
    if _answer(url, "/api/version"):
        names = [entry["name"] for entry in (_answer(url, "/api/tags") or {}).get("models", [])]
        return "Ollama", _serve_ollama, _only(names, model)
    models = (_answer(url, "/v1/models") or {}).get("data", [])
    if any(entry.get("owned_by") == "vllm" for entry in models):
        return "vLLM", _serve_vllm, _only([entry["id"] for entry in models], model)
    raise InputError(f"the server at {url} is none of llama-server, vLLM and Ollama", hint="start one of these")


def _only(names: Sequence[str], model: str) -> str:
    if model in names or (model and f"{model}:latest" in names):
        return model
    if not model and len(names) == 1:
        return names[0]
    message = f"the server has no model {one_line(model, 60)}" if model else "the server has several models or none"
    raise InputError(message, hint=f"choose one with --model: {one_line(', '.join(names), 300) or 'none'}")


class _RefusedError(InputError):
    """Raised if a server refuses a request, for example because it has no such path."""


def _answer(url: str, path: str) -> dict[str, Any] | None:
    with suppress(_RefusedError):
        return _request(f"{url}{path}")
    return None


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
