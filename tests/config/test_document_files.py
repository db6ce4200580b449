"""Saving a config document, and drafts that keep unsaved edits."""

from __future__ import annotations

import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tui_trainer.config.changes import PRESET
from tui_trainer.config.document import ConfigDocument
from tui_trainer.config.editing import edit_text
from tui_trainer.config.load import Request, all_settings, load
from tui_trainer.config.paths import with_absolute_paths
from tui_trainer.config.save import document_text, save
from tui_trainer.errors import ConfigError
from tui_trainer.launching.drafts import draft_for, draft_writer, leave_drafts
from tui_trainer.runs.registry import state_folder

NONE = (None, "none")
RATE, SEED, HEADS = "training.learning_rate", "training.seed", "model.scratch.num_attention_heads"
COMMENTED = """# mine
profile = "quickstart"  # why

[training] # here
learning_rate = 0.001   # slow
seed = 4

# the model
[model]
scratch = {hidden_size = 64}
"""


def opened(path: Path | None = None, **more) -> ConfigDocument:
    return ConfigDocument(Request(config_file=path, **more), lambda requested: NONE)


def own_file(text: str = COMMENTED) -> Path:
    path = Path("my.toml")
    path.write_text(text)
    return path


def refused(document: ConfigDocument, path: Path, words: str, **more) -> None:
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(ConfigError, match=words):
        save(document, path, **more)
    assert (path.read_bytes() if path.is_file() else None) == before
    assert not list(Path().glob(".*.tmp")) and document.is_unsaved


def test_a_saved_document_loads_as_the_same_config():
    document = opened(profile="char-lm", assignments=(f"{SEED}=7", "output.name=a \u00e4 \\ b"))
    document.set(RATE, 2e-4)
    document.set(HEADS, 12)
    save(document, Path("new.toml"))
    again = load(Request(config_file=Path("new.toml")), lambda requested: NONE)
    assert again.config == with_absolute_paths(document.loaded.config) and not document.is_unsaved
    assert tomllib.loads(Path("new.toml").read_text()) == {
        "schema_version": 1,
        "profile": "char-lm",
        "model": {"scratch": {"num_attention_heads": 12}},
        "training": {"learning_rate": 2e-4, "seed": 7},
        "output": {"name": "a \u00e4 \\ b"},
    }
    assert document_text(opened(Path("new.toml"))) == Path("new.toml").read_text()
    document = opened()
    document.set(SEED, 5)
    save(document, Path("a.toml"))
    document.undo()
    assert document.unsaved_values() == {SEED: PRESET}
    document.redo()
    assert not document.is_unsaved


def test_saving_keeps_comments_order_mode_spelling_and_links():
    path = own_file()
    path.chmod(0o640)
    document = opened(path)
    document.set(RATE, 2e-4)
    document.reset(SEED)
    document.set(HEADS, 8)
    document.set("data.max_length", 64)
    save(document, path)
    text = path.read_text()
    kept = [
        "# mine",
        'profile = "quickstart"  # why',
        "[training] # here",
        "learning_rate = 2e-4   # slow",
        "# the model",
    ]
    assert [line for line in text.splitlines() if line in kept] == kept
    assert "seed" not in text and stat.S_IMODE(path.stat().st_mode) == 0o640
    again = load(Request(config_file=path), lambda requested: NONE)
    assert again.config == with_absolute_paths(document.loaded.config)
    assert document.where(RATE) == "my.toml"
    path = own_file("[training]\nlearning_rate = 1.0E-3\n")
    document = opened(path)
    document.set(SEED, 1)
    save(document, path)
    assert "learning_rate = 1.0E-3\n" in path.read_text()
    path = own_file()
    link = Path("link.toml")
    link.symlink_to(path)
    document = opened(link)
    document.set(SEED, 1)
    save(document, link)
    assert link.is_symlink() and "seed = 1" in path.read_text()


def test_another_or_a_changed_file_is_overwritten_only_if_forced():
    path = own_file()
    document = opened(path)
    document.set(SEED, 5)
    path.write_text(COMMENTED.replace("0.001", "0.002"))
    refused(document, path, "changed by another program")
    save(document, path, force=True)
    assert tomllib.loads(path.read_text())["training"] == {"learning_rate": 0.001, "seed": 5}
    other = own_file()
    document = opened()
    document.set(SEED, 5)
    refused(document, other, "already exists")
    save(document, other, force=True)
    assert "# mine" in other.read_text() and document.file == other


def test_reload_keeps_the_edits():
    path = own_file()
    document = opened(path)
    document.set(SEED, 5)
    path.write_text(COMMENTED.replace("0.001", "0.002"))
    document.reload()
    assert document.value(RATE) == 0.002 and document.unsaved_values() == {SEED: 5}
    save(document, path)
    assert "0.002" in path.read_text() and "seed = 5" in path.read_text()


def test_saving_makes_no_folder_and_never_replaces_a_file_with_mistakes(subtests):
    document = opened()
    document.set(SEED, 5)
    refused(document, Path("nowhere/my.toml"), "nowhere does not exist; create the folder first")
    Path("folder").mkdir()
    refused(document, Path("folder"), "cannot be written|Is a directory", force=True)
    assert not Path("nowhere").exists()
    # A file with mistakes is not overwritten.
    for text in ["a = = 1\n", "[training]\nlearning_rat = 1\n"]:
        with subtests.test(text=text):
            path = own_file(text)
            document = opened(path)
            document.set(SEED, 5)
            refused(document, path, "cannot be updated|unknown setting")
            Path("other.toml").unlink(missing_ok=True)
            save(document, Path("other.toml"))
            assert "seed = 5" in Path("other.toml").read_text()


def test_unsaved_edits_are_offered_again():
    path = own_file()
    first = opened(path)
    first.set(RATE, 2e-4)
    first.reset(SEED)
    first.set("data.path", "sample:python-reference/x")
    assert draft_writer(first)() is None
    draft = draft_for(Request(config_file=path.absolute()))
    assert draft.at.startswith("20") and draft.digest == first.digest
    second = opened(path)
    assert second.restore(draft.edits) == 3
    assert second.unsaved_values() == first.unsaved_values()
    assert [second.value(key) for key in all_settings()] == [first.value(key) for key in all_settings()]
    assert second.undo() and not second.is_unsaved
    assert draft_for(Request(config_file=Path("other.toml"))) is None is draft_for(Request())
    document = opened()
    assert document.restore({SEED: 5, RATE: "fast", "gone.setting": 1}) == 1
    assert document.unsaved_values() == {SEED: 5}


def test_a_draft_belongs_to_its_model_and_data(tmp_path, monkeypatch):
    document = opened(shortcuts={"model.model_name_or_path": "./llama"})
    save(document, Path("new.toml"))
    document.set(RATE, 2e-4)
    draft_writer(document)()
    assert draft_for(Request(config_file=Path("new.toml"))).subject == "file new.toml"

    def asked(model: str, data: str = "notes.jsonl") -> Request:
        return Request(shortcuts={"model.model_name_or_path": model, "data.path": data})

    (tmp_path / "llama").mkdir()
    first = ConfigDocument(asked("./llama"), lambda requested: NONE)
    first.set(RATE, 2e-4)
    draft_writer(first)()
    draft = draft_for(asked("./llama"))
    assert draft.subject == "recipe finetune, model ./llama, data notes.jsonl"
    assert draft_for(asked("./other")) is None is draft_for(asked("./llama", "other.jsonl"))
    assert draft_for(Request(profile="finetune")) is None is draft_for(Request())
    as_setting = ("model.model_name_or_path=./llama", "data.path=notes.jsonl")
    assert draft_for(Request(assignments=as_setting)) == draft
    second = ConfigDocument(Request(), lambda requested: NONE)
    second.set("model.model_name_or_path", "./llama")
    draft_writer(second)()
    assert draft_for(Request()).subject == "recipe finetune, model ./llama"
    second.set("profile", "ner")
    draft_writer(second)()
    assert draft_for(Request()).subject == "recipe ner, model ./llama"
    monkeypatch.chdir(tmp_path / "llama")
    assert draft_for(asked("./llama")) is None, "another folder of that name"
    for name in ("../llama", str(tmp_path / "llama")):
        assert dict(draft_for(asked(name)).edits) == {RATE: 2e-4}


def test_a_draft_is_removed_with_its_edits_by_saving_or_when_declined():
    document = opened()
    document.set(SEED, 5)
    draft_writer(document)()
    document.undo()
    draft_writer(document)()
    assert draft_for(Request()) is None
    document.set(SEED, 6)
    draft_writer(document)()
    save(document, Path("a.toml"))
    draft_writer(document)()
    assert list((state_folder() / "drafts").iterdir()) == []
    assert draft_writer(opened(), below={SEED: 5})() is None and draft_for(Request()) is not None
    assert draft_writer(opened())() is None and draft_for(Request()) is None, "nobody wants them"


_KEEPS_A_DRAFT = """
from tests.config.test_document_files import SEED, draft_writer, opened
document = opened()
document.set(SEED, 5)
print(draft_writer(document)(), flush=True)
input()
"""


def test_a_draft_of_a_program_that_is_still_open_stays_with_it_and_is_offered_once_afterwards():
    other = subprocess.Popen([sys.executable, "-c", _KEEPS_A_DRAFT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with other:
        assert other.stdout.readline() == b"None\n"
        assert draft_for(Request()) is None is draft_writer(opened())()
        other.kill()
    assert dict(draft_for(Request()).edits) == {SEED: 5}
    # The screens of this process are closed; it may train on.
    leave_drafts()
    (left,) = (state_folder() / "drafts").iterdir()
    assert left.stem.endswith("-left") and dict(draft_for(Request()).edits) == {SEED: 5} and not left.exists()


def test_a_damaged_draft_is_ignored(subtests):
    document = opened()
    document.set(SEED, 5)
    draft_writer(document)()
    (path,) = (state_folder() / "drafts").iterdir()
    assert draft_for(Request()) is not None
    for damage in (b"", b"{", b"[]", b'{"values": 3}', b"[" * 100_000, b"\xff"):
        with subtests.test(repr(damage[:20])):
            path.write_bytes(damage)
            assert draft_for(Request()) is None


def test_a_draft_that_cannot_be_written_is_reported(private_home):
    private_home.write_text("a file")
    document = opened()
    document.set(SEED, 5)
    problem = draft_writer(document)()
    assert "could not be stored" in problem.message and "TUI_TRAINER_HOME" in problem.hint


def test_lists_are_edited_and_saved_as_text():
    path = own_file('[data]\npath = ["a.txt", "b.txt"]  # mine\nweights = [2, 0.5]\n')
    document = opened(path)
    shown = [edit_text(all_settings()[key], document.value(key)) for key in ("data.path", "data.weights")]
    assert shown == ["a.txt, b.txt", "2, 0.5"]
    document.set(SEED, 9)
    save(document, path)
    assert 'path = ["a.txt", "b.txt"]  # mine\nweights = [2, 0.5]\n' in path.read_text()
    document.set("data.weights", "3, 1")
    save(document, path)
    assert opened(path).value("data.weights") == "3, 1" and "# mine" in path.read_text()
