"""GGUF exports: the tokens of the file are those of training, and llama.cpp's converter is fetched without git."""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import AddedToken

from tests.served_models import KINDS, save_served_model, served_tokenizer, write_sums
from tui_trainer.cli import main
from tui_trainer.config.load import Request
from tui_trainer.config.sections import Config
from tui_trainer.downloading import converter
from tui_trainer.errors import RunError
from tui_trainer.exporting.formats.gguf import SCRIPT, converter_folder
from tui_trainer.exporting.gguf_tokens import FileTokenizer
from tui_trainer.exporting.measured import ODD_TEXTS
from tui_trainer.exporting.run_converter import merge_scores, pattern_name
from tui_trainer.exporting.serving import ollama_template
from tui_trainer.launching.open_run import load_config, open_new
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.models.chat_rendering import template_text
from tui_trainer.tasks import find_task

NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6


def file_settings(tokenizer: Any) -> dict[str, Any]:
    """Return what the converter writes about a tokenizer."""
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    added = {token["content"]: token for token in content["added_tokens"]}
    ids = tokenizer.get_vocab()
    tokens = sorted(ids, key=lambda token: ids[token])
    kinds = [BYTE if token.startswith("<0x") else NORMAL for token in tokens]
    for number, token in enumerate(tokens):
        if token in added:
            kinds[number] = CONTROL if added[token]["special"] else USER_DEFINED
    settings = {"tokens": tokens, "token_type": kinds, "bos_token_id": 1, "eos_token_id": 2}
    if pattern_name(content):
        return {**settings, "model": "gpt2", "merges": [" ".join(pair) for pair in content["model"]["merges"]]}
    scores = merge_scores(content)
    prefixed = "Prepend" in json.dumps(content["normalizer"])
    return {**settings, "model": "llama", "scores": [scores.get(token, -1e6) for token in tokens],
            "add_space_prefix": prefixed}  # fmt: skip


def test_tokens_of_the_file_are_those_of_training_for_odd_texts_and_added_tokens(subtests):
    for kind in KINDS:
        for added in ([], ["<|sheep|>", "said the", "goat"]):
            tokenizer = served_tokenizer(kind)
            tokenizer.add_tokens([AddedToken(token, normalized=False, special="|" in token) for token in added])
            of_file = FileTokenizer(file_settings(tokenizer), tokenizer)
            texts = [*ODD_TEXTS, "3 plus 4 is 7, said the sheep.", *(f"x{token}y {token} z" for token in added)]
            with subtests.test(kind, added=bool(added)):
                for text in texts:
                    wanted = tokenizer(text, add_special_tokens=False)["input_ids"]
                    assert of_file(text)["input_ids"] == wanted, text
                assert len(texts) > 30 and len({tuple(tokenizer(text)["input_ids"]) for text in texts}) > 30


def test_missing_merges_are_found():
    tokenizer = served_tokenizer("qwen2")
    settings = file_settings(tokenizer)
    settings["merges"] = settings["merges"][:5]
    of_file = FileTokenizer(settings, tokenizer)
    text = "3 plus 4 is 7, said the sheep."
    assert of_file(text)["input_ids"] != tokenizer(text, add_special_tokens=False)["input_ids"]


def test_ollama_template_is_found_where_each_message_stands_between_fixed_texts(subtests):
    expected = {
        "chatml": '{{ range .Messages }}{{ if eq .Role "user" }}<|im_start|>user\n{{ .Content }}{{ else if',
        "llama3": "<|start_header_id|>user<|end_header_id|>\n\n{{ .Content }}{{ else if",
        "mistral": "",
    }
    for name, words in expected.items():
        with subtests.test(name):
            tokenizer = served_tokenizer("llama3")
            tokenizer.chat_template = template_text(name)
            trained: Any = SimpleNamespace(task=find_task("chat"), config=Config())
            found = ollama_template(trained, tokenizer)
            assert words in found and bool(words) == bool(found), found


@pytest.fixture
def index(tmp_path, monkeypatch) -> Iterator[Path]:
    """A package index whose only package has what the converter needs, and another file. Returns the package."""
    folder = tmp_path / "index/llama-cpp-python"
    folder.mkdir(parents=True)
    package = folder / converter._FILE
    with tarfile.open(package, "w:gz") as archive:
        for name in (f"vendor/llama.cpp/{SCRIPT}", "vendor/llama.cpp/conversion/base.py", "vendor/llama.cpp/LICENSE",
                     "vendor/llama.cpp/gguf-py/gguf/vocab.py", "vendor/llama.cpp/src/llama.cpp"):  # fmt: skip
            member = tarfile.TarInfo(f"llama_cpp_python-1/{name}")
            member.size = len(name)
            archive.addfile(member, io.BytesIO(name.encode()))
    (folder / "index.html").write_text(f'<a href="other-1.tar.gz">o</a><a href="./{package.name}#sha256=0">p</a>')
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "index"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://me:secret@127.0.0.1:{server.server_port}")
        yield package
        server.shutdown()


def test_converter_is_fetched_from_the_package_index_and_only_as_the_tested_file(index):
    with pytest.raises(RunError, match="is not the file that this version of tui-trainer was tested with") as error:
        converter.fetch_converter(lambda *_: None)
    assert "secret" not in f"{error.value}{converter.index_url()}"
    assert not converter_folder().exists()
    reports: list[tuple] = []
    digest = hashlib.sha256(index.read_bytes()).hexdigest()
    folder = converter.fetch_converter(lambda *words: reports.append(words), digest)
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert files == ["LICENSE", "conversion/base.py", SCRIPT, "gguf-py/gguf/vocab.py"] and folder == converter_folder()
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert reports[-1][:2] == ("downloading", index.stat().st_size)
    index.rename(index.with_suffix(".gone"))
    (index.parent / "index.html").write_text("")
    with pytest.raises(RunError, match=r"has no file llama_cpp_python-.*: name another package index"):
        converter.fetch_converter(lambda *_: None)
    assert folder.is_dir()


@pytest.mark.e2e
@pytest.mark.skipif(find_spec("gguf") is None, reason="needs `tui-trainer install gguf`")
@pytest.mark.parametrize("kind", KINDS)
def test_gguf_has_the_tokens_and_logits_of_a_trained_chat_model(kind, tmp_path, capsys):
    save_served_model(tmp_path / kind, kind)
    settings = {
        "task.type": "chat", "task.chat_template": "chatml", "data.max_length": 128, "data.eval_fraction": 0.2,
        "training.effective_batch_size": 8, "training.learning_rate": 0.01, "training.max_steps": 4,
        "evaluation.eval_steps": 0, "checkpoint.save_steps": 0, "tuning.method": "lora",
        # transformers' tokenizer of this family adds a token itself.
        "model.add_tokens": '""' if kind == "qwen2" else '"<|sheep|>,said the"',
        "model.model_name_or_path": tmp_path / kind,
        "output.runs_dir": tmp_path / "runs", "output.name": kind,
    }  # fmt: skip
    assignments = tuple(f"{key}={value}" for key, value in settings.items())
    data = str(write_sums(tmp_path / "sums.jsonl"))
    run = open_new(load_config(Request(assignments=assignments, shortcuts={"data.path": data})))
    assert execute_run(run).exit_code == 0
    for name in ("gguf", "gguf-q8"):
        if main(["export", kind, "--to", name, "--json"]) == 2:
            pytest.skip(f"needs the converter: {capsys.readouterr().err}")
        found = json.loads(capsys.readouterr().out.splitlines()[-1])  # libraries may print before
        assert found["is_good"] and "generation stops at <|im_end|>, </s>" in found["notes"]
        folder = Path(found["folder"])
        assert {path.name for path in folder.iterdir()} == {
            "model.gguf", "Modelfile", "README.md", "serving.json", "certificate.json"
        }  # fmt: skip
        assert 'PARAMETER stop "<|im_end|>"' in (folder / "Modelfile").read_text()
        # The servers of these files can read the longest conversation, which is longer than the rows of training.
        facts = json.loads((folder / "serving.json").read_text())
        context = max(len(row["ids"]) for row in facts["conversations"]) + facts["new_tokens"]
        assert context > 128 and f"num_ctx {context}\n" in (folder / "Modelfile").read_text()
        assert f"--ctx-size {context} " in (folder / "README.md").read_text()
