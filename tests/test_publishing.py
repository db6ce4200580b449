"""`tui-trainer publish`: the upload is shown first, and no path of this machine is uploaded.

`tests/test_old_runs.py` and `tests/test_trained_on.py` use FakeApi.
"""

import io
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import errors

from tests.downloading.fake_hub import FakeHub, environment_of, run, serving
from tests.runs.journals import end, run_of, start, steps
from tui_trainer.cli import main
from tui_trainer.errors import InputError
from tui_trainer.exporting import publishing
from tui_trainer.exporting.publishing import _published_files, source_of
from tui_trainer.terminal.safe_text import escape_markdown

TOKEN = "hf_" + "a" * 34


@pytest.fixture
def trained(tmp_path):
    """A run with an adapter whose files name places of this machine."""
    folder = run_of(tmp_path / "runs", "a", start(), *steps(1, 2), end(2))
    folder.plan.write_text(json.dumps({"config": {"model": {"model_name_or_path": "/secret/place/llama"}}}))
    folder.model.mkdir()
    (folder.model / "model.safetensors").write_bytes(b"\x00weights of /secret/place/llama")
    (folder.model / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "/secret/place/llama"}))
    (folder.model / "README.md").write_text(
        f"Trained on {Path.home()}/texts/mine.jsonl in {folder.root}, and on /data/shared/x.txt by https://a.b/data/y."
    )
    (folder.model / ".hidden").write_text("no")
    return folder


def sent(folder):
    files, notes = _published_files(folder, source_of(folder, ""))
    return {
        file.name: file.content if isinstance(file.content, bytes) else file.content.read_bytes() for file in files
    }, notes


def test_paths_of_this_machine_are_removed_and_reported(trained):
    files, notes = sent(trained)
    assert files.keys() == {"model.safetensors", "adapter_config.json", "README.md"}
    assert json.loads(files["adapter_config.json"]) == {"base_model_name_or_path": "llama"}
    card = files["README.md"].decode()
    assert card == "Trained on ~/texts/mine.jsonl in a, and on /data/shared/x.txt by https://a.b/data/y."
    assert "adapter_config.json: /secret/place/llama is replaced by llama" in notes
    assert [note for note in notes if "contains" in note] == ["README.md contains the path /data/shared/x.txt"]
    assert files["model.safetensors"] == (trained.model / "model.safetensors").read_bytes()
    assert str(trained.root) in (trained.model / "README.md").read_text(), "the run's own files stay as they are"


@pytest.mark.parametrize("place", ["/secret/pläce/lla_ma", '/secret/a "b"/lla_ma', r"/secret/back\slash/lla_ma"])
def test_path_is_found_as_json_and_markdown_write_it(place, trained):
    trained.plan.write_text(json.dumps({"config": {"model": {"model_name_or_path": place}}}))
    (trained.model / "config.json").write_text(json.dumps({"of": place}))
    (trained.model / "other.json").write_text(json.dumps({"of": place}, ensure_ascii=False))
    (trained.model / "README.md").write_text(f"For {escape_markdown(place)}, or {place}.")
    files, notes = sent(trained)
    assert json.loads(files["config.json"]) == json.loads(files["other.json"]) == {"of": "lla_ma"}
    assert files["README.md"].decode() in (r"For lla\_ma, or lla_ma.", "For lla_ma, or lla_ma.")
    assert sum("is replaced by lla_ma" in note for note in notes) == 3


def test_base_in_the_cache_of_the_hub_is_named_by_its_repository(trained):
    place = "/home/me/.cache/huggingface/hub/models--meta--llama/snapshots/0a1b"
    trained.plan.write_text(json.dumps({"config": {"model": {"model_name_or_path": place}}}))
    (trained.model / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": place}))
    assert json.loads(sent(trained)[0]["adapter_config.json"]) == {"base_model_name_or_path": "meta/llama"}


def test_file_with_an_access_token_is_not_uploaded(trained):
    (trained.model / "tokenizer_config.json").write_text(json.dumps({"auth": TOKEN}))
    with pytest.raises(InputError, match=r"tokenizer_config.json contains what looks like an access token"):
        sent(trained)


def test_failed_or_missing_export_is_not_uploaded(trained):
    for name in ("merged", "failed-onnx"):
        (trained.root / "export" / name).mkdir(parents=True)
    assert source_of(trained, "merged") == trained.root / "export" / "merged"
    for name, words in [
        ("onnx", "differs from the trained model"),
        ("int8", "has no export"),
        ("../../model", "has no export"),
    ]:
        with pytest.raises(InputError, match=words):
            source_of(trained, name)


def test_impossible_upload_is_refused_in_one_sentence(trained, tmp_path, capsys):
    run_of(tmp_path / "runs", "none", start())
    for words, message in (
        (["a"], "no repository was given"),
        (["a", "--to", "name"], "is not a valid repository name"),
        (["a", "--to", "../x"], "is not a valid repository name"),
        (["a", "--to", "me/model"], "HF_HUB_OFFLINE is set"),
        (["none", "--to", "me/model"], "has no final model yet"),
    ):
        assert main(["publish", *words]) == 2
        assert message in capsys.readouterr().err


class FakeApi:
    """A hub that records its calls."""

    def __init__(self, private=None):
        self.private, self.calls = private, []

    def repo_info(self, name):
        if self.private is None:
            raise errors.RepositoryNotFoundError("none", response=SimpleNamespace(headers={}, request=None))
        return SimpleNamespace(private=self.private)

    def create_repo(self, name, *, private, exist_ok):
        self.calls.append(("create", name, private))
        return f"https://hub/{name}"

    def create_commit(self, name, additions, *, commit_message):
        self.calls.append(("commit", name, sorted(one.path_in_repo for one in additions)))


@pytest.mark.parametrize(("answer", "code"), [("n", 3), ("y", 0)])
def test_nothing_is_uploaded_before_a_yes(trained, monkeypatch, capsys, answer, code):
    api = FakeApi()
    monkeypatch.setattr(publishing, "_api", lambda: api)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{answer}\n"))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert main(["publish", "a", "--to", "me/model"]) == code
    files = ["README.md", "adapter_config.json", "model.safetensors"]
    assert api.calls == ([("create", "me/model", True), ("commit", "me/model", files)] if answer == "y" else [])
    assert "you and people you give access to (private)" in capsys.readouterr().out


def test_public_repository_needs_the_option_public(trained, monkeypatch, capsys):
    api = FakeApi(private=False)
    monkeypatch.setattr(publishing, "_api", lambda: api)
    assert main(["publish", "a", "--to", "me/model", "--yes"]) == 2
    assert "already exists and is public" in capsys.readouterr().err and not api.calls
    assert main(["publish", "a", "--to", "me/model", "--yes", "--public"]) == 0
    assert "everyone (public)" in capsys.readouterr().out and api.calls[0] == ("create", "me/model", False)


@pytest.mark.e2e
def test_upload_is_shown_and_sent_as_one_private_commit(trained, tmp_path):
    (trained.model / "large.safetensors").write_bytes(bytes(2**20 + 1))
    with serving(FakeHub()) as hub:
        environment = environment_of(hub, tmp_path) | {"TUI_TRAINER_HOME": os.environ["TUI_TRAINER_HOME"]}
        arguments = ("-m", "tui_trainer", "publish", "a", "--to", "me/model")
        without = run(*arguments, environment=environment)
        assert without.returncode == 2 and "publishing needs a Hugging Face account" in without.stderr
        environment["HF_TOKEN"] = "secret"
        asked = run(*arguments, environment=environment)
        assert asked.returncode == 2 and "add --yes" in asked.stderr and not hub.created and not hub.received
        assert "you and people you give access to (private)" in asked.stdout and "adapter_config.json" in asked.stdout
        assert (
            "licence  unknown" in asked.stdout
            and "note     README.md contains the path /data/shared/x.txt" in asked.stdout
        )
        wrong = run(*arguments, "--yes", environment=environment | {"HF_TOKEN": "wrong"})
        assert wrong.returncode == 2 and "this account has no write access to me/model" in wrong.stderr
        done = run(*arguments, "--yes", environment=environment)
        assert done.returncode == 0, done.stderr
        assert hub.created == {"me/model": True} and f"a is published at {hub.url}/me/model" in done.stdout
        assert "uploading me/model" in done.stderr and sum("/commit/" in path for path in hub.requests) == 1
        assert sum("/preupload/" in path for path in hub.requests) == 2, "the large file first, and the others together"
    assert hub.received.keys() == {"model.safetensors", "large.safetensors", "adapter_config.json", "README.md"}
    assert not any(b"/secret" in content for name, content in hub.received.items() if "safetensors" not in name)
