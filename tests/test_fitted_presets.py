"""Task, recipe and columns that follow from the model and the rows if the user names none."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event

import pytest

from tests.tiny_models import save_tiny_model
from tui_trainer.cli import application
from tui_trainer.config.load import Request
from tui_trainer.data.columns.text_columns import head_of
from tui_trainer.errors import ConfigError
from tui_trainer.hardware.probe import probe
from tui_trainer.launching import fitted_presets
from tui_trainer.launching.fitted_presets import change_words, misfit, with_columns_found
from tui_trainer.launching.open_run import load_config
from tui_trainer.planning.conflicts import setting_problems
from tui_trainer.tasks import find_task
from tui_trainer.ui.spans import UNICODE
from tui_trainer.ui.workbench import Workbench, fit_config

DECODER = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "num_hidden_layers": 2}
MODELS = {
    "llama": DECODER,
    "bert": {"model_type": "bert", "architectures": ["BertModel"], "hidden_size": 32, "num_hidden_layers": 2},
    "scorer": {**DECODER, "architectures": ["LlamaForSequenceClassification"]},
    "t5": {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True},
}
TURNS = [{"role": "user", "content": "Sheep?"}, {"role": "assistant", "content": "None."}]
ALPACA = {"instruction": "Count.", "input": "", "output": "One sheep, two sheep, three sheep. " * 9}
LABELLED = {"text": "a sheep", "label": "animal"}
PAIR = {"prompt": "Sheep?", "chosen": "None.", "rejected": "Many."}
ASKED = {"question": "Who?", "context": "Ann sleeps", "answers": {"text": ["Ann"], "answer_start": [0]}}
SPANS = {"text": "Ann sleeps", "entities": [{"start": 0, "end": 3, "label": "PER"}]}
CASES = [
    ("llama", {"text": "a sheep"}, "causal_lm", ""),
    ("llama", LABELLED, "causal_lm", ""),
    ("llama", {"text": "a sheep", "messages": TURNS}, "chat", "the rows are conversations"),
    ("llama", {"messages": TURNS}, "chat", "the rows are conversations"),
    ("llama", ALPACA, "chat", "the rows are pairs of input and answer"),
    ("llama", {"prompt": "Sheep?", "completion": " None."}, "chat", "the rows are pairs of input and answer"),
    ("llama", {"tokens": ["Ann"], "ner_tags": ["B-PER"]}, "token_classification", "the rows are words with their tags"),
    ("llama", PAIR, "preference", "the rows are preferences with a better and a worse answer"),
    ("scorer", PAIR, "reward", "LlamaForSequenceClassification"),
    ("bert", LABELLED, "sequence_classification", "BertModel is an encoder, which cannot be trained to continue text"),
    ("bert", {"tokens": ["Ann"], "labels": ["B-PER"]}, "token_classification", "BertModel is an encoder"),
    ("bert", SPANS, "token_classification", "BertModel is an encoder"),
    ("bert", ASKED, "question_answering", "BertModel is an encoder"),
    ("bert", {**ASKED, "answers": "Ann"}, "question_answering", "BertModel is an encoder"),
    ("llama", ASKED, "chat", "the rows are questions with answers from a context"),
    ("t5", ASKED, "seq2seq", "T5ForConditionalGeneration is an encoder-decoder model"),
    ("t5", ALPACA, "seq2seq", "T5ForConditionalGeneration is an encoder-decoder model"),
    ("t5", {"document": "Many sheep.", "summary": "Sheep."}, "seq2seq", "T5ForConditionalGeneration is"),
    # Nothing fits: the nearest task reports what is wrong.
    ("bert", {"text": "a sheep"}, "sequence_classification", "BertModel is an encoder"),
    ("bert", {"messages": TURNS}, "chat", "the rows are conversations"),
    ("t5", {"text": "a sheep"}, "seq2seq", "T5ForConditionalGeneration is an encoder-decoder model"),
    ("llama", {"id": "a1", "messages": [{"role": "nobody", "content": "a"}]}, "chat", "the rows are conversations"),
    ("llama", {"id": "a1", "conversations": "no list"}, "chat", "the rows are conversations"),
    ("llama", {"number": 1}, "causal_lm", ""),
]


def request(folder: Path, model: str, row: object, **more: str) -> Request:
    """Return the request of a user who names a model and a file with this row nine times."""
    (folder / model).mkdir(parents=True)
    (folder / model / "config.json").write_text(json.dumps(MODELS[model]))
    data = folder / "rows.jsonl"
    data.write_text((json.dumps(row) + "\n") * 9)
    return Request(shortcuts={"model.model_name_or_path": str(folder / model), "data.path": str(data), **more})


def test_task_follows_from_model_and_rows(tmp_path, subtests):
    for number, (model, row, task, reason) in enumerate(CASES):
        with subtests.test(f"{model}, {', '.join(row)}: {task}"):
            loaded = load_config(request(tmp_path / str(number), model, row))
            assert loaded.config.task.type == task
            notes = [note for note in loaded.notes if note.startswith("task.type")]
            assert len(notes) == bool(reason)
            assert all(f"is {task} instead of causal_lm (recipe finetune): {reason}" in note for note in notes)


def test_one_bad_row_does_not_decide_the_task(tmp_path):
    asked = request(tmp_path, "llama", {"prompt": "Sheep?", "completion": " None.", "label": True})
    rows = (tmp_path / "rows.jsonl").read_text()
    (tmp_path / "rows.jsonl").write_text(rows.replace(" None.", "", 1))
    assert load_config(asked).config.task.type == "chat"


def test_slow_disk_is_reported_and_waited_for(tmp_path, monkeypatch):
    asked, reported = request(tmp_path, "llama", {"messages": TURNS}), Event()
    monkeypatch.setattr(application, "_SLOW_SECONDS", 0.0)
    monkeypatch.setattr(application, "print_to_stderr", lambda sentence: reported.set())
    monkeypatch.setattr(fitted_presets, "head_of", lambda rows: (reported.wait(1500), head_of(rows))[1])
    model, data = (asked.shortcuts[key] for key in ("model.model_name_or_path", "data.path"))
    assert application.ConfigOptions(model=model, data=data).load().config.task.type == "chat"
    assert reported.is_set()


def test_a_config_hands_its_data_on_until_other_data_is_named(tmp_path):
    loaded = load_config(request(tmp_path, "llama", {"text": "a sheep"}))
    assert loaded.with_fitted_value("data.max_length", 9, "").data is loaded.data
    (tmp_path / "rows.jsonl").rename(tmp_path / "others.jsonl")
    assert [part.description.partition(" ")[0] for part in loaded.data.parts] == ["rows.jsonl"]
    other = loaded.with_fitted_value("data.path", str(tmp_path / "others.jsonl"), "")
    assert [part.description.partition(" ")[0] for part in other.data.parts] == ["others.jsonl"]


def test_named_task_is_never_changed(tmp_path):
    asked = request(tmp_path, "llama", {"messages": TURNS}, **{"task.type": "causal_lm"})
    assert load_config(asked).config.task.type == "causal_lm"


def refitted(document):
    """Fit the document to model and data, as the screens do in the background after each change."""
    document.set_fitted(*fit_config(document.unfitted))
    return document.loaded


def opened(asked: Request):
    document = Workbench(lambda: asked, probe(), UNICODE)._open_document()
    refitted(document)
    return document


def test_model_and_data_named_on_the_screens_give_the_config_of_the_command_line(tmp_path):
    asked = request(tmp_path, "bert", LABELLED)
    by_command = load_config(asked)
    document = opened(Request())
    before = document.loaded
    assert document.recipe_name == "quickstart" and document.value("task.type") == "char_lm"
    said = []
    for key, value in reversed(asked.shortcuts.items()):
        document.set(key, value)
        said.append(change_words(before, refitted(document)))
        before = document.loaded
    words = "now recipe finetune and task sequence_classification, to fit model and rows.jsonl"
    assert said == ["columns: text text", f"{words}; columns: text text, label label"]
    same = {"profile": "", "output": by_command.config.output}
    assert document.loaded.config.model_copy(update=same) == by_command.config.model_copy(update=same)
    assert not document.is_changed("profile")

    text = tmp_path / "plain.txt"
    text.write_text("Sheep.\n" * 9)
    document.set("model.model_name_or_path", "")
    assert "the task is now char_lm, because no model is set" in change_words(before, refitted(document))
    document.undo()
    assert refitted(document).config == before.config and not change_words(before, document.loaded)
    document.undo()
    document.undo()
    refitted(document)
    assert (document.recipe_name, document.value("task.type")) == ("quickstart", "char_lm")
    document.redo()
    document.redo()
    refitted(document)
    assert document.value("task.type") == "sequence_classification"


def test_named_task_or_recipe_stays_whatever_the_data_is(tmp_path):
    asked = request(tmp_path, "bert", LABELLED)
    document = opened(Request(profile="quickstart"))
    for key, value in asked.shortcuts.items():
        document.set(key, value)
    refitted(document)
    assert document.recipe_name == "quickstart" and document.value("task.type") == "char_lm"
    with pytest.raises(ConfigError, match="is an encoder, which cannot be trained to continue text"):
        find_task("char_lm").problems(document.loaded.config)
    document = opened(Request())
    document.set("task.type", "token_classification")
    before = refitted(document)
    for key, value in asked.shortcuts.items():
        document.set(key, value)
    refitted(document)
    assert document.value("task.type") == "token_classification"
    words = "the recipe is now finetune, because a model is set; columns: text text, label label"
    assert change_words(before, document.loaded) == words


def test_unreadable_data_chooses_nothing(tmp_path):
    asked = request(tmp_path, "llama", {"messages": TURNS})
    (tmp_path / "rows.jsonl").write_bytes(b"\xff\xfe{}")
    assert load_config(asked).config.task.type == "causal_lm"


PAIR = {"premise": "It rains.", "hypothesis": "It is wet.", "label": "yes"}


COLUMNS = [
    ("llama", {"body": "a sheep"}, {"text": "body"}),
    ("llama", LABELLED, {"text": "text"}),
    ("llama", {"messages": TURNS}, {"text": "messages"}),
    ("llama", ALPACA, {"text": "instruction", "text_pair": "input", "target": "output"}),
    ("bert", LABELLED, {"text": "text", "label": "label"}),
    ("bert", PAIR, {"text": "premise", "text_pair": "hypothesis", "label": "label"}),
    ("bert", ASKED, {"text": "question", "text_pair": "context", "target": "answers"}),
    ("bert", SPANS, {"text": "text", "label": "entities"}),
    ("t5", {"document": "Many sheep.", "summary": "Sheep."}, {"text": "document", "target": "summary"}),
    ("t5", {"text": "a sheep"}, {}),
]


def test_found_columns_are_named_by_their_settings(tmp_path, subtests):
    for number, (model, row, columns) in enumerate(COLUMNS):
        with subtests.test(f"{model}, {', '.join(row)}"):
            loaded = with_columns_found(load_config(request(tmp_path / str(number), model, row)))
            assert loaded.columns == {f"data.{role}_column": name for role, name in columns.items()}
            has_note = "columns not used by the task causal_lm: 'label'" in loaded.notes
            assert has_note == ((model, row) == ("llama", LABELLED))


def test_columns_of_other_data_are_reported_and_a_named_column_stays(tmp_path):
    document = opened(request(tmp_path, "bert", LABELLED))
    before, pairs = document.loaded, tmp_path / "pairs.jsonl"
    pairs.write_text((json.dumps(PAIR) + "\n") * 9)
    document.set("data.path", str(pairs))
    after = refitted(document)
    assert change_words(before, after) == "columns: text premise, second text hypothesis, label label"
    assert document.value("data.text_pair_column") == "hypothesis" and not document.is_changed("data.text_pair_column")
    document.undo()
    again = refitted(document)
    assert again.config == before.config and again.columns == before.columns, "one undo takes all of it back"
    assert not document.can_undo

    document.set("data.text_column", "text")
    refitted(document)
    document.set("data.path", str(pairs))
    assert refitted(document).config.data.text_column == "text", "what somebody named is not guessed anew"
    assert document.where("data.text_column") == "edited here" and not document.loaded.columns


def test_recipe_that_does_not_fit_names_its_reason(tmp_path):
    (tmp_path / "rows.jsonl").write_text((json.dumps(LABELLED) + "\n") * 9)
    model = save_tiny_model(tmp_path / "bert", "bert")
    named = {"model.model_name_or_path": str(model), "data.path": str(tmp_path / "rows.jsonl")}
    document = opened(Request(shortcuts=named))
    reasons = {
        "finetune": "",
        "tweet-sentiment": "",
        "chat-scratch": "BertForMaskedLM is a masked language model, which cannot be trained to continue text",
        "t5-summarisation": "bert has no sequence-to-sequence head",
        "ner": "the row has 2 words but 1 tag",
        "python-questions": "no column holds the question",
    }
    assert {name: misfit(fit_config(document.with_recipe(name))[0]) for name in reasons} == reasons


def test_missing_table_or_model_is_a_reason_against_a_recipe(tmp_path):
    text = tmp_path / "plain.txt"
    text.write_text("Sheep.\n" * 9)
    document = opened(Request(shortcuts={"data.path": str(text)}))
    reasons = {name: misfit(fit_config(document.with_recipe(name))[0]) for name in ("ner", "finetune", "scratch-llama")}
    assert reasons == {
        "ner": "it trains on the rows of a table",
        "finetune": "no model is set",
        "scratch-llama": "",
    }
    assert misfit(fit_config(document.with_recipe("ner", keep_own=False))[0]) == "", "its own data is yet to be named"


def test_settings_that_the_run_does_not_read_are_noted_once_per_reason():
    asked = ("tuning.r=12", "tuning.use_dora=true", "tuning.lora_dropout=0.0", "task.doc_stride=9")
    loaded = load_config(Request(profile="quickstart", assignments=asked))
    assert loaded.notes[-2:] == (
        "task.doc_stride (--set) has no effect: the task char_lm does not use it",
        "tuning.r, tuning.use_dora (--set) have no effect: the model starts from random weights",
    ), "what is as it was before is not news"
    assert load_config(Request(profile="quickstart")).notes == ()


def test_column_that_the_task_does_not_read_is_refused():
    loaded = load_config(Request(profile="quickstart", assignments=("data.label_column=kind",)))
    (problem,) = setting_problems(loaded)
    assert "'kind', but the task char_lm does not use it" in str(problem)
