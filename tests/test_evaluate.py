"""`tui-trainer evaluate`: on the rows of the run, on other data, and against the base model."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch

from tests.runs.journals import read_all
from tests.tiny_models import save_tiny_model
from tests.trained_runs import train, training_row, write_rows
from tui_trainer.cli import main
from tui_trainer.data.preparing.token_rows import Rows
from tui_trainer.exporting.evaluating import Candidate, MeasuredRows
from tui_trainer.exporting.measured import prepared_data
from tui_trainer.exporting.trained_model import TrainedModel
from tui_trainer.hardware.storage import prepared_data_folder
from tui_trainer.runs.events import EvalDone


def evaluated(capsys, *arguments: object) -> dict:
    capsys.readouterr()
    code = main(["evaluate", *map(str, arguments), "--json"])
    shown = capsys.readouterr()
    assert code == 0, shown.err
    return json.loads(shown.out) | {"stderr": shown.err}


@pytest.mark.parametrize(
    "task",
    [
        "char_lm",
        pytest.param("seq2seq", marks=pytest.mark.full),
        pytest.param("token_classification", marks=pytest.mark.full),
    ],
)
def test_evaluation_repeats_the_last_figures_of_the_run_and_reads_a_file_as_its_data(task, finished, capsys):
    run = finished(task)
    found = evaluated(capsys, run.root)
    [model] = found["models"]
    last = [event for event in read_all(run.journal) if isinstance(event, EvalDone)][-1]
    assert model["loss"] == pytest.approx(last.loss, rel=1e-4) and found["reference"] is None
    assert {name: pytest.approx(value, abs=1e-5) for name, value in last.scores.items()} == model["scores"]
    [of_file] = evaluated(capsys, run.root, "--data", run.root.parent.parent / f"{task}.jsonl")["models"]
    if task == "char_lm":
        assert of_file["loss"] == pytest.approx(model["loss"], rel=0.2)
        return
    trained = TrainedModel.of(run)
    data = prepared_data(trained)
    losses = []
    for path in (data.train_path, data.eval_path):
        rows = Rows(path)
        parts = (data, rows, range(len(rows)), torch.device("cpu"), lambda *_: None)
        look = MeasuredRows(replace(trained, config=trained.plan.config), *parts)
        losses += look.measure(Candidate("", trained.folder, None)).row_losses
    assert sorted(of_file["row_losses"]) == pytest.approx(sorted(losses), abs=1e-4)


@pytest.mark.full
def test_adapter_is_compared_with_its_base_and_the_rows_that_changed_most(adapted_run, capsys):
    found = evaluated(capsys, adapted_run.name)
    base, model = found["reference"], found["models"][0]
    assert (base["name"], model["name"]) == ("base", "causal_lm") and model["loss"] < base["loss"]
    differences = [one["loss_before"] - one["loss_after"] for one in found["changed"]]
    assert len(differences) == 5 and [abs(one) for one in differences] == sorted(map(abs, differences), reverse=True)
    largest = max(abs(one - other) for one, other in zip(base["row_losses"], model["row_losses"], strict=True))
    assert abs(differences[0]) == pytest.approx(largest)
    assert all(one["before"] != one["after"] and one["text"].startswith("The ") for one in found["changed"])
    capsys.readouterr()
    assert main(["evaluate", adapted_run.name, "--rows", "4", "--changed", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "4 rows: held-out data of causal_lm" and lines[1].split()[0] == "loss"
    assert [line.split()[0] for line in lines[2:5]] == ["base", "causal_lm", "difference"]
    assert lines[4].split()[1].startswith("-") and lines[6] == "largest changes from base to causal_lm:"
    assert len(lines) == 7 + 2 * 3


@pytest.mark.full
def test_fully_tuned_model_is_evaluated_without_its_missing_base(tmp_path, capsys):
    task, family = "sequence_classification", "bert"
    save_tiny_model(tmp_path / family, family)
    changes = {"model.init": "pretrained", "model.model_name_or_path": tmp_path / family}
    changes |= {"tuning.method": "full", "training.max_steps": 2}
    run = train(tmp_path, task, changes)
    before = evaluated(capsys, run.name, "--against", "none")
    shutil.rmtree(tmp_path / family)
    found = evaluated(capsys, run.name)
    assert found["models"] == before["models"] and found["reference"] is None
    assert "not compared with the base model: the base model" in found["stderr"]
    of_file = evaluated(capsys, run.name, "--data", tmp_path / f"{task}.jsonl")
    assert of_file["rows"] == 60 and "not compared with the base model: the base model" in of_file["stderr"]
    shutil.rmtree(prepared_data_folder())
    assert main(["evaluate", run.name]) == 2
    assert "the prepared data of" in (message := capsys.readouterr().err) and message.count("\n") == 1, message


@pytest.mark.full
def test_exported_folder_is_compared_with_its_run(adapted_run, capsys):
    assert main(["export", adapted_run.name, "--to", "merged"]) == 0
    merged = adapted_run.root / "export/merged"
    found = evaluated(capsys, adapted_run.name, merged, "--against", "none", "--rows", "7")
    assert found["reference"] is None and not found["changed"] and found["rows"] == 7
    assert [one["name"] for one in found["models"]] == ["causal_lm", str(merged)]
    assert found["models"][0]["loss"] == pytest.approx(found["models"][1]["loss"], rel=1e-5)
    assert evaluated(capsys, merged, "--against", adapted_run.name, "--rows", "3")["reference"]["name"] == "causal_lm"


@pytest.mark.full
def test_base_model_without_a_head_for_the_labels_is_left_out(tmp_path, capsys):
    save_tiny_model(tmp_path / "bert", "bert")
    changes = {"model.init": "pretrained", "model.model_name_or_path": tmp_path / "bert", "training.max_steps": 2}
    run = train(tmp_path, "sequence_classification", changes)
    found = evaluated(capsys, run.name)
    assert found["reference"] is None and "no head for the labels of this run" in found["stderr"]


@pytest.mark.full
def test_impossible_evaluation_is_refused_in_one_sentence(finished, tmp_path, capsys):
    run, other = finished("sequence_classification"), finished("token_classification")
    unknown = write_rows(tmp_path / "unknown.jsonl", [{"text": "The goat runs", "label": "goat"}])
    plain = write_rows(tmp_path / "plain.jsonl", [training_row("causal_lm", 1)])
    (tmp_path / "lone").mkdir()
    (tmp_path / "lone/config.json").write_text("{}")
    for arguments, sentence in [
        ((run.root, other.root), "was trained for token_classification"),
        ((run.root, "--against", other.root), "was trained for token_classification"),
        ((run.root, "--data", unknown), "no training row has the label 'goat'"),
        ((run.root, "--data", plain), "no column has a usual name for labels"),
        ((run.root, "--data", tmp_path / "gone"), "gone"),
        ((tmp_path / "lone",), "name the run before the folder"),
        (("nobody",), "nobody"),
    ]:
        capsys.readouterr()
        assert main(["evaluate", *map(str, arguments)]) == 2, arguments
        message = capsys.readouterr().err
        assert sentence in message and "Traceback" not in message and message.count("\n") == 1, message


def test_test_split_of_a_folder_is_evaluated_and_predicted(finished, tmp_path, capsys):
    run, folder = finished("sequence_classification"), tmp_path / "splits"
    folder.mkdir()
    for name, rows in (("train", range(9)), ("test", range(9, 14))):
        write_rows(folder / f"{name}.jsonl", [training_row("sequence_classification", n) for n in rows])
    found = evaluated(capsys, run.root, "--data", folder)
    assert found["rows"] == 5 and "test.jsonl" in found["data"]
    out = tmp_path / "predicted.jsonl"
    assert main(["predict", str(run.root), "--data", str(folder), "--out", str(out)]) == 0
    assert len(out.read_text().splitlines()) == 5 and "test.jsonl" in "".join(capsys.readouterr())
