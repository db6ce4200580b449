"""`check-serving` against servers that follow the documented answers of llama-server, vLLM and Ollama."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tui_trainer.cli import main
from tui_trainer.exporting.check_serving import SERVING_FILE

BOS, END, OTHER_END = "<s>", "<|end|>", "<|stop|>"
WORDS = re.compile(r"<[^<> ]+>|\w+|\W")
QUESTIONS = {"one question": "who are you", "blanks": "  red or blue", "marks": "a < b & c", "no answer": ""}
NEW_TOKENS = 8


@dataclass(frozen=True)
class StandIn:
    """What a server makes of conversations: a word is a token, and an answer repeats the question."""

    kind: str = "llama-server"
    template: Callable[[str], str] = lambda text: f"{BOS}<|user|>\n\n{text}{END}\n<|assistant|>\n"
    adds_bos: bool = False
    stop: str = END
    first_id: int = 0
    answers: Callable[[str], str] = lambda question: f"{question}!" if question else ""

    def ids(self, text: str, *, frame: bool = True) -> list[int]:
        tokens = [*[BOS] * (self.adds_bos and frame), *WORDS.findall(text)]
        return [VOCABULARY.setdefault(token, len(VOCABULARY)) + self.first_id for token in tokens]

    def words(self, ids: list[int]) -> str:
        names = {number: token for token, number in VOCABULARY.items()}
        return "".join(names.get(number - self.first_id, "?") for number in ids)

    def answer(self, prompt: str) -> tuple[str, bool]:
        """Return the text after a prompt, and whether it ended by itself."""
        question = re.search(r"<\|user\|>\n*(.*)<\|end\|>", prompt)[1]
        text = f"{self.answers(question)}{END} and so on and on and on"
        tokens = WORDS.findall(text)[:NEW_TOKENS]
        return ("".join(tokens).partition(self.stop)[0], True) if self.stop in tokens else ("".join(tokens), False)

    def reply(self, path: str, fields: dict[str, Any]) -> Any:
        """Return the answer to a request; None if this kind of server has no such path."""
        paths = {"llama-server": self.llama_server, "vLLM": self.vllm, "Ollama": self.ollama, "other": lambda *_: None}
        return paths[self.kind](path, fields)

    def rendered(self, fields: dict[str, Any]) -> str:
        return self.template(fields["messages"][-1]["content"])

    def llama_server(self, path: str, fields: dict[str, Any]) -> Any:
        if path == "/props":
            return {"chat_template": "..."}
        if path == "/apply-template":
            return {"prompt": self.rendered(fields)}
        if path == "/tokenize":
            return {"tokens": self.ids(fields["content"], frame=fields["add_special"])}
        if path == "/completion":
            # Ids of training, which this server may read with other tokens.
            text, stops = self.answer(TRAINING.words(fields["prompt"]))
            ending = TRAINING.ids(self.stop) if stops else []
            tokens = [*TRAINING.ids(text), *ending]
            return {"content": text, "tokens": tokens, "stop_type": "eos" if stops else "limit"}
        return None

    def vllm(self, path: str, fields: dict[str, Any]) -> Any:
        if path == "/v1/models":
            return {"data": [{"id": "served", "owned_by": "vllm"}]}
        assert fields.get("model", "served") == "served"
        if path == "/tokenize":
            ids = self.ids(self.rendered(fields)) if "messages" in fields else self.ids(fields["prompt"], frame=False)
            return {"tokens": ids, "count": len(ids)}
        if path == "/detokenize":
            return {"prompt": self.words(fields["tokens"])}
        if path == "/v1/completions":
            text, stops = self.answer(TRAINING.words(fields["prompt"]))
            tokens = [*TRAINING.ids(text), *(TRAINING.ids(self.stop) if stops else [])]
            finish = "stop" if stops else "length"
            return {"choices": [{"text": text, "finish_reason": finish, "token_ids": tokens}]}
        return None

    def ollama(self, path: str, fields: dict[str, Any]) -> Any:
        if path == "/api/version":
            return {"version": "0.12.0"}
        if path == "/api/tags":
            return {"models": [{"name": "mine:latest"}, {"name": "another:latest"}]}
        if path not in ("/api/chat", "/api/generate"):
            return None
        text = self.rendered(fields) if path == "/api/chat" else fields["prompt"]
        answer, stops = self.answer(text)
        count = {"prompt_eval_count": len(self.ids(text)), "done_reason": "stop" if stops else "length"}
        return {"response": answer, **count} if path == "/api/generate" else {"message": {"content": answer}, **count}


VOCABULARY: dict[str, int] = {BOS: 0, END: 1, OTHER_END: 2}
TRAINING = StandIn()
BASE = replace(TRAINING, answers=lambda question: "as a base model I go on without an end")
ONE_LESS_NEWLINE = replace(TRAINING, template=lambda text: f"{BOS}<|user|>\n{text}{END}\n<|assistant|>\n")
# Changes to a server, and a part of the cause that is reported.
PLANTED = {
    "BOS twice": (replace(TRAINING, adds_bos=True), "BOS twice"),
    "template without the newline": (ONE_LESS_NEWLINE, "a newline is missing after '<|user|>'"),
    "another stop token": (
        replace(TRAINING, stop=OTHER_END),
        "another stop token: the server does not stop at <|end|>",
    ),
    "another tokenizer": (replace(TRAINING, first_id=7), "another tokenizer"),
    "adapter not loaded": (BASE, "the adapter is not loaded"),
}


@pytest.fixture
def folder(tmp_path) -> Path:
    """An export with the conversations of training."""

    def answer(server: StandIn, text: str) -> dict[str, Any]:
        answer, stops = server.answer(text)
        ends = [len(answer[: match.end()]) for match in WORDS.finditer(answer)]
        return {"ids": TRAINING.ids(answer), "stops": stops, "text": answer, "lengths": ends}

    rows = []
    for name, question in QUESTIONS.items():
        text = TRAINING.template(question)
        row = {"name": name, "messages": [{"role": "user", "content": question}], "tools": [], "text": text}
        row |= {"ids": TRAINING.ids(text), "tokens": WORDS.findall(text), "answer": answer(TRAINING, text)}
        rows.append(row | {"base_answer": answer(BASE, text)})
    facts = {"bos": {"id": 0, "token": BOS}, "stops": [{"id": 1, "token": END}], "new_tokens": NEW_TOKENS}
    (tmp_path / SERVING_FILE).write_text(json.dumps({**facts, "conversations": rows, "rejected": {}}))
    return tmp_path


@pytest.fixture
def serve() -> Iterator[Callable[[StandIn], str]]:
    """Return `serve(stand_in)`, which starts a server and returns its address."""
    servers = []

    def start(stand_in: StandIn) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.do_POST()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                reply = stand_in.reply(self.path, json.loads(body or b"{}"))
                self.send_response(404 if reply is None else 200)
                self.end_headers()
                self.wfile.write(json.dumps(reply).encode())

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


KINDS = {"llama-server": [], "vLLM": [], "Ollama": ["--model", "mine"]}


@pytest.mark.parametrize("kind", KINDS)
def test_equal_server_passes_and_each_planted_difference_is_named(kind, folder, serve, capsys, subtests):
    assert main(["check-serving", serve(replace(TRAINING, kind=kind)), str(folder), *KINDS[kind], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["is_same"] and found["server"] == kind and not found["differences"]
    assert found["same_tokens"] == found["answer_tokens"] > 8 and found["stopped"] == found["should_stop"] > 0
    for name, (stand_in, cause) in PLANTED.items():
        if kind == "Ollama" and "tokenizer" in name:
            continue  # equal counts
        with subtests.test(name):
            url = serve(replace(stand_in, kind=kind))
            assert main(["check-serving", url, str(folder), *KINDS[kind], "--json"]) == 1
            found = json.loads(capsys.readouterr().out)
            # Ollama reports counts only, so that a missing newline is a missing token.
            expected = "another chat template: 1 tokens differ" if kind == "Ollama" and "newline" in name else cause
            assert any(expected in line for line in found["causes"]), found
            assert len({*found["causes"]}) == 1, found


def test_first_token_that_differs_is_named_with_its_conversation(folder, serve, capsys):
    assert main(["check-serving", serve(PLANTED["template without the newline"][0]), str(folder)]) == 1
    printed = capsys.readouterr().out
    assert "one question: token 4 of the prompt should be '\\n'" in printed and "'who'" in printed
    assert "likely cause: another chat template: a newline is missing after" in printed


def test_servers_that_cannot_be_asked_are_refused_in_one_sentence(folder, serve, tmp_path_factory, capsys, subtests):
    ollama, empty = serve(replace(TRAINING, kind="Ollama")), tmp_path_factory.mktemp("empty")
    for arguments, words in {
        ("http://127.0.0.1:9", str(folder)): "no server answers at http://127.0.0.1:9",
        ("127.0.0.1:8080", str(folder)): "an address looks like",
        (serve(replace(TRAINING, kind="other")), str(folder)): "none of llama-server, vLLM and Ollama",
        (ollama, str(folder)): "choose one with --model: mine:latest, another:latest",
        (ollama, str(folder), "--model", "no"): "the server has no model no",
        (ollama, str(empty)): "serving.json cannot be read",
    }.items():
        with subtests.test(words):
            assert main(["check-serving", *arguments]) == 2
            shown = capsys.readouterr().err
            assert words in shown and shown.count("\n") == 1, shown
