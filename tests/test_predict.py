"""Predictions for the rows of a file: in their order, whatever the batch, and whole however often it was killed."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.programs import run_program, start_program
from tests.tiny_models import save_tiny_byte_model, save_tiny_model, tiny_tokenizer
from tests.trained_runs import asked_row, train, write_rows
from tui_trainer.cli import main
from tui_trainer.config.sections import Config
from tui_trainer.exporting import predicting
from tui_trainer.exporting.predicting import Predictor
from tui_trainer.models.writing import NO_SAMPLING, Sampling, generate_texts, ignores_left_padding
from tui_trainer.runs.folder import RunFolder
from tui_trainer.tasks import find_task

ROWS = 37
TASKS = ("sequence_classification", "token_classification", "seq2seq", "chat", "char_lm")


def predictions(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def asked(tmp_path: Path, task: str, rows: int = ROWS) -> Path:
    return write_rows(tmp_path / "asked.jsonl", [asked_row(task, n) for n in range(rows)])


def predict(run: RunFolder, data: Path, out: Path, *more: str) -> int:
    return main(["predict", str(run.root), "--data", str(data), "--out", str(out), "--max-new-tokens", "6", *more])


@pytest.mark.parametrize("task", [TASKS[0], *(pytest.param(task, marks=pytest.mark.full) for task in TASKS[1:])])
def test_batches_predict_what_single_rows_do_in_the_order_of_the_rows(task, finished, tmp_path, capsys):
    run, data = finished(task), asked(tmp_path, task)
    assert predict(run, data, tmp_path / "batched.jsonl") == 0, capsys.readouterr().err
    assert predict(run, data, tmp_path / "single.jsonl", "--batch-size", "1") == 0
    batched, single = (predictions(tmp_path / f"{name}.jsonl") for name in ("batched", "single"))
    assert len(batched) == ROWS and [row["id"] for row in batched] == list(range(ROWS))
    for one, other, n in zip(batched, single, range(ROWS), strict=True):
        assert {name: one[name] for name in asked_row(task, n)} == asked_row(task, n)
        one, other = one["prediction"], other["prediction"]
        for found in (one, other):
            found.pop("probability", None)
        assert one.pop("probabilities", {}) == pytest.approx(other.pop("probabilities", {}), abs=1e-4)
        assert one == other and one
    assert not list(tmp_path.glob("*.partial*"))


@pytest.mark.full
@pytest.mark.parametrize(
    ("family", "task", "method"), [("byt5", "seq2seq", "lora"), ("canine", "sequence_classification", "full")]
)
def test_model_with_a_tokenizer_of_bytes_trains_and_predicts(family, task, method, tmp_path, capsys):
    model = save_tiny_byte_model(tmp_path / family, family)
    changes = {"model.init": "pretrained", "model.model_name_or_path": model, "tuning.method": method}
    run = train(tmp_path, task, {**changes, "training.max_steps": 2, "evaluation.generate_rows": 2})
    plan = json.loads((run.root / "plan.json").read_text())
    assert plan["vocabulary"]["value"] == {"byt5": 384, "canine": 0x110000}[family]
    data = asked(tmp_path, task, 5)
    assert predict(run, data, tmp_path / "out.jsonl", "--batch-size", "1") == 0, capsys.readouterr().err
    assert len(predictions(tmp_path / "out.jsonl")) == 5
    assert main(["evaluate", str(run.root)]) == 0
    assert main(["generate", str(run.root), "The hen runs home", "--max-new-tokens", "6"]) == 0
    assert method == "full" or main(["export", str(run.root), "--to", "merged"]) == 0
    assert not (run.root / "model/tokenizer.json").exists()


# What is written at a time: one batch.
SMALL_PARTS = """
from tui_trainer.exporting import predicting
predicting._BATCHES_OF_A_PART = 1
"""


class Killed(BaseException):
    """An exception that nobody catches."""


@pytest.fixture
def classifier(finished, monkeypatch):
    """A finished classifier, whose predictions are written two batches at a time."""
    monkeypatch.setattr(predicting, "_BATCHES_OF_A_PART", 2)
    return finished("sequence_classification")


def test_killed_prediction_resumes_without_losing_or_repeating_a_row(classifier, tmp_path, monkeypatch, capsys):
    data, out = asked(tmp_path, "sequence_classification"), tmp_path / "out.jsonl"
    options = ("--batch-size", "4")
    assert predict(classifier, data, tmp_path / "whole.jsonl", *options) == 0
    real, passes = Predictor.predict, []

    def fails(self, contents, told):
        passes.append(len(contents))
        if len(passes) == 3:
            raise Killed
        return real(self, contents, told)

    monkeypatch.setattr(Predictor, "predict", fails)
    with pytest.raises(Killed):
        predict(classifier, data, out, *options)
    partial = tmp_path / "out.jsonl.partial"
    assert len(predictions(partial)) == 16 and not out.exists()
    with partial.open("a") as file:
        file.write('{"id": 16, "prediction": {}}\n{"id": 17, "pred')
    capsys.readouterr()
    for other in (("--batch-size", "5"), (*options, "--field", "guess"), (*options, "--seed", "1")):
        assert predict(classifier, data, out, *other) == 2
        assert "was started with different settings (" in capsys.readouterr().err
    assert predict(classifier, data, out, *options, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["rows"], result["rows_before"]) == (ROWS, 16)
    assert passes[3:] == [8, 8, 5]
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert not list(tmp_path.glob("*.partial*"))


@pytest.mark.full
def test_second_process_is_refused_the_same_predictions(classifier, tmp_path, monkeypatch, capsys):
    data, out = asked(tmp_path, "sequence_classification"), tmp_path / "out.jsonl"
    real, refused = Predictor.predict, []

    def predict_while_another_starts(self, contents, told):
        more = ["--data", str(data), "--out", str(out), "--overwrite"]
        refused.append(run_program(["predict", str(classifier.root), *more]))
        return real(self, contents, told)

    monkeypatch.setattr(Predictor, "predict", predict_while_another_starts)
    assert predict(classifier, data, out) == 0
    (done,) = refused
    assert done.returncode == 2 and f"out.jsonl: in use by `predict`, process {os.getpid()} on this host" in done.stderr
    assert len(predictions(out)) == ROWS and not list(tmp_path.glob("*.partial*"))


def test_killed_prediction_does_not_resume_with_changed_data(classifier, tmp_path, monkeypatch, capsys):
    data, out = asked(tmp_path, "sequence_classification"), tmp_path / "out.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(Predictor, "predict", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            predict(classifier, data, out)
    asked(tmp_path, "sequence_classification", rows=3)
    capsys.readouterr()
    assert predict(classifier, data, out) == 2
    assert "was started with different settings (data" in capsys.readouterr().err
    assert predict(classifier, data, out, "--overwrite") == 0
    assert len(predictions(out)) == 3
    assert predict(classifier, data, out, "--overwrite") == 0


def test_progress_is_written_to_a_log_file_line_by_line(classifier, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tui_trainer.cli.trying._SECONDS_BETWEEN_LINES", 0)
    data = asked(tmp_path, "sequence_classification", rows=9)
    assert predict(classifier, data, tmp_path / "out.jsonl", "--batch-size", "4") == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "predicting" in line]
    assert len(lines) >= 3 and "predicting 8 of 9 rows, " in lines[2] and "rows/s, " in lines[2]
    assert lines[-1].endswith("left")


def test_bad_rows_are_reported_before_the_model_predicts(classifier, tmp_path, capsys):
    data, out = asked(tmp_path, "sequence_classification", rows=6), tmp_path / "out.jsonl"
    lines = data.read_text().splitlines()
    lines[1], lines[3], lines[4] = '{"text": "bro', '{"id": 3}', '{"text": " ", "id": 4}'
    data.write_text("\n".join(lines) + "\n")
    before = sorted(path.name for path in tmp_path.iterdir())
    assert predict(classifier, data, out) == 2
    message = capsys.readouterr().err
    assert (
        "asked.jsonl, line 2: broken JSON" in message and "asked.jsonl, line 4: the row has no column 'text'" in message
    )
    assert "asked.jsonl, line 5: the column 'text' is empty" in message and "use --on-bad-rows skip" in message
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert predict(classifier, data, out, "--on-bad-rows", "skip") == 0
    assert [row["id"] for row in predictions(out)] == [0, 2, 5]
    assert "3 unusable rows were skipped: asked.jsonl, line 2" in capsys.readouterr().err


def test_impossible_prediction_is_refused_in_one_sentence_and_leaves_nothing(classifier, tmp_path, capsys):
    data, name = asked(tmp_path, "sequence_classification", rows=2), classifier
    twice = write_rows(tmp_path / "twice.jsonl", [{"a": "one text here", "b": "and other words"}])
    (tmp_path / "empty.jsonl").write_text("")
    before = sorted(path.name for path in tmp_path.iterdir())
    out = tmp_path / "out.jsonl"
    cases = [
        ((data, tmp_path), "is a folder"),
        ((data, tmp_path / "no/where.jsonl"), "its folder does not exist"),
        ((data, data), "is one of the input files"),
        ((data, twice), "already exists; use --overwrite to replace it"),
        ((data, out, "--field", "id"), "line 1: the row already has a field 'id'"),
        ((data, out, "--column", "txet"), "there is no column 'txet'; did you mean 'text'?"),
        ((twice, out), "several columns could be the text; set --column to one of a, b"),
        ((tmp_path / "empty.jsonl", out), "no rows found"),
        ((tmp_path / "gone.jsonl", out), "gone.jsonl"),
        ((data, out, "--batch-size", "many"), "--batch-size must be auto or a number of rows"),
    ]
    for arguments, sentence in cases:
        assert predict(name, *arguments) == 2, arguments
        message = capsys.readouterr().err
        assert sentence in message and message.count("\n") == 1 and "Traceback" not in message, message
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert main(["predict", "nobody", "--data", str(data), "--out", str(out)]) == 2


def test_named_column_is_read_and_other_columns_are_kept(classifier, tmp_path):
    rows = [{"a": "The sheep runs home", "b": "other words", "label": "cow", "n": 1.5}]
    assert predict(classifier, write_rows(tmp_path / "rows.jsonl", rows), tmp_path / "o", "--column", "a") == 0
    [found] = predictions(tmp_path / "o")
    assert {name: found[name] for name in rows[0]} == rows[0] and found["prediction"]["label"]


@pytest.mark.full
def test_beams_and_seed_choose_the_text(finished, tmp_path):
    data = asked(tmp_path, "causal_lm", rows=5)
    texts = {}
    for name, options in {
        "greedy": (),
        "beams": ("--beams", "3"),
        "one": ("--temperature", "3", "--seed", "1"),
        "again": ("--temperature", "3", "--seed", "1"),
        "other": ("--temperature", "3", "--seed", "2"),
    }.items():
        assert predict(finished("causal_lm"), data, tmp_path / name, *options) == 0
        texts[name] = [row["prediction"]["text"] for row in predictions(tmp_path / name)]
    assert texts["one"] == texts["again"] != texts["other"]
    assert texts["greedy"] != texts["one"] and len(texts["beams"]) == 5


def test_out_of_memory_halves_the_batch_and_models_that_read_padding_get_none():
    asked_of = []

    class Writing:
        masks_padding = False

        def encode_inputs(self, config, model, tokenizer, contents, sampling):
            from tui_trainer.tasks.contract import InputRow

            return [InputRow([1] * length, length) for length in contents]

        def predict(self, config, model, tokenizer, rows, sampling):
            if len(rows) > 2:
                raise torch.OutOfMemoryError
            asked_of.append([len(row) for row in rows])
            return [{"text": str(len(row))} for row in rows]

    task = Writing()
    predictor = Predictor(task, None, None, None, NO_SAMPLING, 8, _pads=True)
    contents = [3, 9, 3, 4, 9, 1, 3, 3]
    assert [one["text"] for one in predictor.predict(contents)] == list(map(str, contents))
    assert all(len(batch) <= 2 for batch in asked_of)
    asked_of.clear()
    predictor = Predictor(task, None, None, None, NO_SAMPLING, 2, _pads=False)
    assert [one["text"] for one in predictor.predict(contents)] == list(map(str, contents))
    assert all(len(set(batch)) == 1 for batch in asked_of) and [3, 3] in asked_of


def test_pairs_have_segment_ids_if_the_model_learnt_them():
    tokenizer, task = tiny_tokenizer("bert"), find_task("sequence_classification")
    for segments in (1, 2):
        model = SimpleNamespace(config=SimpleNamespace(type_vocab_size=segments))
        [row] = task.encode_inputs(Config(), model, tokenizer, [("a", "b")], NO_SAMPLING)
        assert bool(row.model_arguments) == (segments == 2)


def test_left_padding_is_used_only_with_models_that_ignore_it(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    save_tiny_model(tmp_path / "llama", "llama")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "llama").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "llama")
    assert ignores_left_padding(model, tokenizer, [5, 6, 7]) and ignores_left_padding(model, tokenizer, [*range(5, 40)])
    sampling = Sampling(max_new_tokens=5, temperature=0, seed=0)
    prompts = [[5, 6, 7], [*range(5, 40)]]
    assert generate_texts(model, tokenizer, prompts, sampling) == [
        generate_texts(model, tokenizer, [p], sampling)[0] for p in prompts
    ]
    forward = model.forward

    def reads_padding(*args, attention_mask=None, position_ids=None, **more):
        return forward(*args, **more)

    model.forward = reads_padding
    assert not ignores_left_padding(model, tokenizer, [5, 6, 7])


@pytest.mark.e2e
def test_killed_program_resumes_with_the_same_command(finished, tmp_path):
    run, data = finished("causal_lm"), asked(tmp_path, "causal_lm", rows=40)
    command = ["predict", str(run.root), "--data", str(data), "--batch-size", "2", "--max-new-tokens", "6"]
    command += ["--temperature", "1"]
    assert run_program([*command, "--out", str(tmp_path / "whole.jsonl")], prelude=SMALL_PARTS).returncode == 0
    partial, size = tmp_path / "out.jsonl.partial", 0
    with (tmp_path / "printed.txt").open("w+b") as printed:
        for kills in range(3):
            program = start_program(
                [*command, "--out", str(tmp_path / "out.jsonl")], files=[printed.fileno()] * 3, prelude=SMALL_PARTS
            )
            if kills < 2:
                while not (partial.exists() and partial.stat().st_size > size):
                    assert program.poll() is None, "it ended before it was killed"
                    time.sleep(0.01)
                program.kill()
                assert program.wait(1500) == -signal.SIGKILL
                size = partial.stat().st_size
        assert program.wait(1500) == 0
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert [row["id"] for row in predictions(tmp_path / "out.jsonl")] == list(range(40))
