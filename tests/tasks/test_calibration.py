"""Calibrated classifiers: temperatures, thresholds, and the same probabilities with and without this package."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score
from transformers import AutoModelForSequenceClassification

from tests.tasks.tiny_tasks import finish, load, of_kind, write_rows
from tests.tiny_models import save_tiny_model
from tui_trainer.cli import main
from tui_trainer.data.columns.labels import MULTI_LABEL
from tui_trainer.losses.classification import ClassificationLoss
from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.runs.events import EvalDone, RunFinished
from tui_trainer.tasks.parts.calibration import (
    LEAST_ROWS,
    calibrate,
    calibration_error,
    find_temperature,
    find_thresholds,
    probabilities,
)

SINGLE = "single_label_classification"
NAMES = [f"label {n}" for n in range(12)]
RATES = np.linspace(0.01, 0.30, 12)


def drawn(rows: int, kind: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return logits, and labels that are drawn from their own probabilities: a model that is calibrated."""
    draw = np.random.default_rng(seed)
    logits = draw.normal(scale=1.5, size=(rows, len(RATES)))
    if kind == SINGLE:
        chances = probabilities(logits, kind).cumsum(axis=1)
        return logits, (draw.random((rows, 1)) > chances).sum(axis=1).clip(max=len(RATES) - 1)
    logits += np.log(RATES / (1 - RATES))
    return logits, (draw.random(logits.shape) < probabilities(logits, kind)).astype(np.int64)


def test_temperature_undoes_a_scale_of_the_logits(subtests):
    for kind in (SINGLE, MULTI_LABEL):
        for scale in (0.5, 1.0, 3.0):
            with subtests.test(f"{kind} {scale}"):
                logits, labels = drawn(4000, kind)
                targets = labels if kind == MULTI_LABEL else np.eye(len(RATES), dtype=np.int64)[labels]
                assert find_temperature(scale * logits, targets, kind) == pytest.approx(scale, rel=0.1)


def test_temperature_needs_ten_wrong_predictions():
    logits = np.tile([[4.0, -4.0]], (50, 1))
    for mistakes, is_fitted in ((9, False), (10, True)):
        labels = np.array([1] * mistakes + [0] * (50 - mistakes))
        assert (find_temperature(logits, np.eye(2, dtype=np.int64)[labels], SINGLE) != 1) is is_fitted


def test_thresholds_have_the_largest_f1_and_rare_labels_share_one():
    logits, labels = drawn(80, MULTI_LABEL, seed=3)
    values = probabilities(logits, MULTI_LABEL)
    thresholds = find_thresholds(values, labels)

    def best(some_values, some_labels) -> float:
        return max(f1_score(some_labels, some_values > one - 1e-9) for one in some_values)

    is_rare = labels.sum(axis=0) < LEAST_ROWS
    assert is_rare.any() and not is_rare.all()
    for number in np.flatnonzero(~is_rare):
        found = f1_score(labels[:, number], values[:, number] > thresholds[number])
        assert found == pytest.approx(best(values[:, number], labels[:, number]))
    (common,) = set(thresholds[is_rare])
    assert f1_score(labels.ravel(), values.ravel() > common) == pytest.approx(best(values.ravel(), labels.ravel()))
    assert find_thresholds(values, np.zeros_like(labels)).tolist() == [0.5] * len(NAMES)


def test_calibration_error_is_the_mean_gap_in_fifteen_bins():
    # Three rows in the bin of 0.9, of which two are right, and one in the bin of 0.6, which is wrong.
    values = np.array([[0.9, 0.1], [0.1, 0.9], [0.9, 0.1], [0.6, 0.4]])
    targets = np.eye(2, dtype=np.int64)[[0, 1, 1, 1]]
    assert calibration_error(values, targets, SINGLE) == pytest.approx((abs(2 - 3 * 0.9) + 0.6) / 4)


def test_rows_that_chose_the_thresholds_give_optimistic_scores(subtests):
    for rows, prefix in ((99, "optimistic_"), (100, "")):
        with subtests.test(f"{rows} rows"):
            logits, labels = drawn(rows, MULTI_LABEL)
            calibration, scores = calibrate(3 * logits, labels, MULTI_LABEL, NAMES, lambda temperature: True)
            assert list(scores) == [
                f"{prefix}macro_f1_with_thresholds", f"{prefix}micro_f1_with_thresholds", "average_precision",
                f"{prefix}calibration_error", "calibration_error_before",
            ]  # fmt: skip
            assert scores[f"{prefix}calibration_error"] < scores["calibration_error_before"]
            assert calibration["rows"] == rows and list(calibration["thresholds"]) == NAMES
            fixed, _ = calibrate(3 * logits, labels, MULTI_LABEL, NAMES, lambda temperature: False)
            assert fixed["temperature"] == 1 and fixed["thresholds"] != calibration["thresholds"]


@pytest.mark.full
def test_last_layer_of_each_family_is_divided_or_left_alone(tmp_path, subtests):
    ids = torch.tensor([[5, 6, 7, 2]])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    batch = MicroBatch(
        inputs=inputs, labels=torch.tensor([0]), label_positions=torch.tensor([]), sample_count=1, token_count=4
    )
    for family in ("bert", "roberta", "llama", "bart"):
        save_tiny_model(tmp_path / family, family)
        for is_frozen, has_16_bits in ((False, False), (True, False), (False, True)):
            with subtests.test(f"{family}, frozen: {is_frozen}, 16 bits: {has_16_bits}"):
                model = AutoModelForSequenceClassification.from_pretrained(tmp_path / family, num_labels=3).eval()
                loss = ClassificationLoss(model.requires_grad_(not is_frozen), SINGLE)
                with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=has_16_bits):
                    before = loss.logits(batch)
                    assert loss.divide_logits(3.0, batch) is not is_frozen
                torch.clear_autocast_cache()
                with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=has_16_bits):
                    after = loss.logits(batch) * (1 if is_frozen else 3)
                torch.testing.assert_close(after, before, rtol=0.02 if has_16_bits else 1e-5, atol=2e-3 * has_16_bits)


ANIMALS = ("sheep", "hen", "cow", "horse", "goat", "dog", "cat", "rat", "ant", "deer", "wasp", "owl")
FILLERS = ("the", "runs", "on", "road", "is", "long", "and", "who")


def tagged(count: int, seed: int) -> list[dict]:
    """Return texts that mostly name an animal for each of their labels, which 1 to 30 % of them have."""
    draw, rows = random.Random(seed), []
    for _ in range(count):
        labels = [number for number, rate in enumerate(RATES) if draw.random() < rate]
        words = [ANIMALS[number] for number in labels if draw.random() < 0.85]
        words += draw.choices(FILLERS, k=4) + draw.sample(ANIMALS, int(draw.random() < 0.3))
        draw.shuffle(words)
        rows.append({"text": " ".join(words), "labels": [NAMES[number] for number in labels]})
    return rows


ELSEWHERE = """
import json, sys
folder, graphs, texts = json.load(sys.stdin)
from transformers import pipeline
answers = pipeline("text-classification", model=folder, device="cpu", top_k=None)(texts)
of_pipeline = [{one["label"]: one["score"] for one in answer} for answer in answers]
of_graphs = []
if graphs:
    sys.path.insert(0, graphs)
    import numpy as np, run_onnx
    from pathlib import Path
    session, tokenizer = run_onnx.Graphs(Path(graphs)), run_onnx.read_tokenizer(Path(graphs))
    manifest = json.loads((Path(graphs) / "manifest.json").read_text())
    for text in texts:
        logits = session.logits(**run_onnx.inputs(session, run_onnx.encode(session, tokenizer, text)))[0]
        values = (1 / (1 + np.exp(-logits))).tolist()
        of_graphs.append(dict(zip(manifest["labels_in_order_of_logits"], values)))
assert not [name for name in sys.modules if name.partition(".")[0] == "tui_trainer"]
print(json.dumps([of_pipeline, of_graphs]))
"""


def elsewhere(folder, graphs, texts) -> list[list[dict[str, float]]]:
    """Return the probabilities of transformers' pipeline and of ONNX Runtime in a process without this package."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    question = json.dumps([str(folder), str(graphs or ""), texts])
    done = subprocess.run([sys.executable, "-c", ELSEWHERE], input=question, capture_output=True, text=True,
                          env=environment, cwd=folder)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.full
@pytest.mark.timeout(1800)  # an export takes a minute, and several on a busy machine
def test_thresholds_raise_macro_f1_on_other_rows_and_others_get_the_same_probabilities(tmp_path, capsys):
    """400 rows with 12 labels of 1 to 30 %: the claim of the guide. `-rP` prints the table."""
    settings = {
        "task.type": "sequence_classification", "data.path": write_rows(tmp_path / "rows.jsonl", tagged(400, 0)),
        "model.init": "scratch", "model.scratch.hidden_size": 64, "model.scratch.num_hidden_layers": 1,
        "model.scratch.num_attention_heads": 4, "model.scratch.vocab_size": 320,
        "tuning.method": "full", "data.eval_fraction": 0.25, "data.max_length": 32,
        "training.effective_batch_size": 16, "training.learning_rate": 0.003, "training.max_steps": 1000,
        "evaluation.eval_steps": 0, "checkpoint.save_steps": 0, "logging.sample_steps": 0,
        "output.runs_dir": tmp_path / "runs", "output.name": "run",
    }  # fmt: skip
    run = finish(load(settings))
    (last,), (end,) = of_kind(run, EvalDone), of_kind(run, RunFinished)
    calibration = json.loads((run.model / "config.json").read_text())["calibration"]
    manifest = json.loads((run.model / "manifest.json").read_text())
    assert calibration["temperature"] != 1 and end.eval_loss == last.loss and end.calibrated_loss < last.loss
    assert manifest["thresholds"] == calibration["thresholds"]
    assert {"macro_f1_with_thresholds", "average_precision", "calibration_error"} <= set(end.scores)

    def evaluated(*arguments: object) -> dict:
        capsys.readouterr()
        assert main(["evaluate", str(run.root), *map(str, arguments), "--against", "none", "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    own, other = evaluated(), evaluated("--data", write_rows(tmp_path / "other.jsonl", tagged(1000, 1)))
    assert own["models"][0]["loss"] == pytest.approx(end.calibrated_loss, rel=1e-4)
    assert "optimistic" in "".join(own["notes"]) and "optimistic" not in "".join(other["notes"])
    scores = other["models"][0]["scores"]
    assert scores["macro_f1_with_thresholds"] > scores["macro_f1"] + 0.02

    # The labels of `predict` are those of the scores.
    asked = write_rows(tmp_path / "asked.jsonl", tagged(1000, 1))
    assert main(["predict", str(run.root), "--data", str(asked), "--out", str(tmp_path / "out.jsonl")]) == 0
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    true, found = (
        [[name in names for name in NAMES] for names in answers]
        for answers in ([row["labels"] for row in rows], [row["prediction"]["labels"] for row in rows])
    )
    assert f1_score(true, found, average="macro") == pytest.approx(scores["macro_f1_with_thresholds"], abs=1e-3)

    graphs = None
    if find_spec("onnxruntime") is not None and find_spec("onnxscript") is not None:
        assert main(["export", str(run.root), "--to", "onnx"]) == 0, capsys.readouterr()
        graphs = run.exports / "onnx"
        assert json.loads((graphs / "manifest.json").read_text())["thresholds"] == calibration["thresholds"]
    wanted = [row["prediction"]["probabilities"] for row in rows[:20]]
    of_pipeline, of_graphs = elsewhere(run.model, graphs, [row["text"] for row in rows[:20]])
    for answers in (of_pipeline, of_graphs) if graphs else (of_pipeline,):
        assert [pytest.approx(answer, abs=1e-5) for answer in answers] == wanted
    capsys.readouterr()
    print(f"held-out rows: {calibration['rows']}, temperature {calibration['temperature']}")
    print("\n".join(f"{name:<28} {value:.3f}" for name, value in scores.items()))


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_adapter_keeps_its_calibration_and_the_next_run_starts_without_it(tmp_path, capsys):
    """The temperature is in the adapter's head, so a merged export passes its comparison with the run."""
    model = save_tiny_model(tmp_path / "bert", "bert")
    (model / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Tiny\n")
    draw = random.Random(0)
    rows = [
        {"text": f"the {animal} runs home {n}", "label": animal if draw.random() < 0.6 else draw.choice(ANIMALS[:4])}
        for n in range(120)
        for animal in [ANIMALS[n % 4]]
    ]
    settings = {
        "task.type": "sequence_classification", "data.path": write_rows(tmp_path / "rows.jsonl", rows),
        "model.model_name_or_path": model, "tuning.method": "lora", "data.eval_fraction": 0.4, "data.max_length": 32,
        "training.effective_batch_size": 8, "training.learning_rate": 0.03, "training.max_steps": 60,
        "evaluation.eval_steps": 0, "checkpoint.save_steps": 0, "logging.sample_steps": 0,
        "output.runs_dir": tmp_path / "runs", "output.name": "first",
    }  # fmt: skip
    run = finish(load(settings))
    (end,) = of_kind(run, RunFinished)
    calibration = json.loads((run.model / "config.json").read_text())["calibration"]
    assert calibration["temperature"] != 1 and end.calibrated_loss < end.eval_loss and "thresholds" not in calibration
    assert main(["export", str(run.root), "--to", "merged"]) == 0, capsys.readouterr()
    merged = run.exports / "merged"
    assert json.loads((merged / "manifest.json").read_text())["base_model_license"] == "apache-2.0"
    asked = write_rows(tmp_path / "asked.jsonl", rows[:10])
    assert main(["predict", str(run.root), "--data", str(asked), "--out", str(tmp_path / "out.jsonl")]) == 0
    wanted = [
        json.loads(line)["prediction"]["probabilities"] for line in (tmp_path / "out.jsonl").read_text().splitlines()
    ]
    of_pipeline, _ = elsewhere(merged, None, [row["text"] for row in rows[:10]])
    assert [pytest.approx(answer, abs=1e-4) for answer in of_pipeline] == wanted
    # A run without held-out rows calibrates nothing.
    more = {
        "model.model_name_or_path": merged,
        "data.eval_fraction": 0,
        "training.max_steps": 1,
        "tuning.method": "full",
    }
    second = finish(load(settings, more, {"output.name": "second"}))
    assert "calibration" not in json.loads((second.model / "config.json").read_text())
    assert "temperature" not in json.loads((second.model / "manifest.json").read_text())


@pytest.mark.full
def test_calibration_belongs_to_the_weights_of_the_best_evaluation(tmp_path, capsys):
    draw = random.Random(0)
    rows = [{"text": f"the {draw.choice(ANIMALS)} runs on {n}", "label": draw.choice(ANIMALS[:4])} for n in range(80)]
    settings = {
        "task.type": "sequence_classification", "data.path": write_rows(tmp_path / "rows.jsonl", rows),
        "model.init": "scratch", "model.scratch.hidden_size": 16, "model.scratch.num_hidden_layers": 1,
        "model.scratch.num_attention_heads": 2, "model.scratch.vocab_size": 300,
        "tuning.method": "full", "data.eval_fraction": 0.5, "data.max_length": 32,
        "training.effective_batch_size": 8, "training.learning_rate": 2.0, "training.max_steps": 30,
        "evaluation.eval_steps": 2, "evaluation.early_stopping_patience": 2, "evaluation.max_eval_rows": 40,
        "checkpoint.save_steps": 0, "logging.sample_steps": 0,
        "output.runs_dir": tmp_path / "runs", "output.name": "run",
    }  # fmt: skip
    run = finish(load(settings))
    (end,) = of_kind(run, RunFinished)
    assert end.model_step < end.step and end.calibrated_loss < end.eval_loss
    capsys.readouterr()
    assert main(["evaluate", str(run.root), "--against", "none", "--json"]) == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert model["loss"] == pytest.approx(end.calibrated_loss, rel=1e-4)
