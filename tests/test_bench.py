"""A trained model and training, measured variant by variant: in turns, each in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.answered_here import answered_here
from tests.trained_runs import SETTINGS, training_row, write_rows
from tui_trainer.bench import inference, rounds, training
from tui_trainer.bench.rounds import Variant, measure_in_turns
from tui_trainer.cli import main
from tui_trainer.config.load import Request
from tui_trainer.worker.asking import WorkerFailed

EFFECTIVE = "training.effective_batch_size"
VARIANTS = [Variant(name=name, question={"name": name}) for name in ("plain", "fast")]
NOT_HERE = Variant(name="other", reason="not on this machine")


def test_variants_take_turns_and_one_that_fails_ends_only_its_line():
    asked: list[tuple[str, bool]] = []

    def ask(variant: Variant, is_first: bool, seconds: float) -> dict[str, Any]:
        asked.append((variant.name, is_first))
        if variant.name == "fast" and not is_first:
            raise WorkerFailed("ended with: no memory", "no memory")
        return {"seconds": len(asked)}

    bench = measure_in_turns([*VARIANTS, NOT_HERE], ask, rounds=3, seconds=60, told=lambda line: None)
    assert asked == [("plain", True), ("fast", True), ("plain", False), ("fast", False), ("plain", False)]
    plain, fast, other = bench.measured
    assert plain.values("seconds") == [1, 3, 5] and plain.median("seconds") == 3
    assert plain.spread("seconds") == pytest.approx(2 / 3) and not bench.cut_short
    assert (fast.values("seconds"), fast.reason) == ([2], "no memory") and fast.spread("seconds") is None
    assert (other.answers, other.reason) == ([], "not on this machine")


def test_what_was_measured_stays_when_it_is_interrupted_or_the_time_is_over():
    def ask(variant: Variant, is_first: bool, seconds: float) -> dict[str, Any]:
        if variant.name == "fast":
            raise KeyboardInterrupt
        return {"seconds": 1}

    bench = measure_in_turns([*VARIANTS, NOT_HERE], ask, rounds=2, seconds=60, told=lambda line: None)
    assert bench.cut_short == "interrupted" and bench.measured[0].answers == [{"seconds": 1}]
    assert [one.reason for one in bench.measured] == ["", "not measured: interrupted", "not on this machine"]
    late = measure_in_turns(VARIANTS, ask, rounds=2, seconds=0, told=lambda line: None)
    assert late.cut_short and all(one.reason.startswith("not measured: ") for one in late.measured)


@pytest.fixture
def here(monkeypatch):
    """This process answers."""
    monkeypatch.setattr(inference, "ask", answered_here)
    monkeypatch.setattr(training, "ask", answered_here)


def measured(capsys, *arguments: object) -> dict[str, Any]:
    capsys.readouterr()
    code = main(["bench", *map(str, arguments), "--json"])
    shown = capsys.readouterr()
    assert code == 0, shown.err
    return json.loads(shown.out)


def by_name(found: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in found["variants"]}


def test_a_classifier_in_batches_predicts_what_it_does_one_by_one(finished, here, capsys):
    run = finished("sequence_classification")
    asked = (run.root, "--rows", 6, "--rounds", 2, "--only", "in batches", "--only", "beams", "--only", "adapter")
    rows = by_name(measured(capsys, *asked))
    assert list(rows) == ["one by one", "in batches", "4 beams", "adapter not merged"]
    alone, together = rows["one by one"], rows["in batches"]
    assert alone["turns"] == together["turns"] == 2 and together["same_predictions"] == 1
    assert together["loss"] == alone["loss"] and set(together["scores"]) >= {"accuracy"}
    assert 0 < alone["latency_seconds_50"] <= alone["latency_seconds_95"] and alone["first_token_seconds"] is None
    assert together["disk_bytes"] == (run.model / "model.safetensors").stat().st_size < together["peak_memory_bytes"]
    assert rows["4 beams"]["reason"] == "this model writes no text" and not rows["4 beams"]["turns"]
    assert "no adapter" in rows["adapter not merged"]["reason"]


def test_of_a_model_that_writes_the_written_tokens_count(finished, here, capsys, monkeypatch):
    monkeypatch.setattr(inference, "NEW_TOKENS", 5)
    found = measured(capsys, finished("causal_lm").root, "--rows", 3, "--rounds", 1, "--only", "beams")
    alone, beams = found["variants"]
    assert beams["name"] == "4 beams" and 0 < alone["first_token_seconds"] < 60
    for row in (alone, beams):
        tokens = row["tokens_per_second"] / row["samples_per_second"]
        assert 1 <= tokens <= 5 and tokens * 3 == pytest.approx(round(tokens * 3))


@pytest.mark.e2e
def test_variants_in_processes_of_their_own(finished, capsys):
    """ONNX among them, whose line says why not where it is not installed."""
    only = ("--only", "in batches", "--only", "onnx")
    rows = by_name(measured(capsys, finished("causal_lm").root, "--rows", 2, "--rounds", 1, *only))
    assert rows["in batches"]["turns"] == 1 and rows["onnx, one by one"]["turns"] + bool(
        rows["onnx, one by one"]["reason"]
    )
    assert all(row["turns"] or row["reason"] for row in rows.values())


def config(place) -> list[str]:
    data = write_rows(place / "rows.jsonl", [training_row("causal_lm", n) for n in range(60)])
    settings = {**SETTINGS, "task.type": "causal_lm", "output.runs_dir": place / "runs"}
    return ["--data", str(data), *(part for key, value in settings.items() for part in ("--set", f"{key}={value}"))]


def test_training_is_measured_switch_by_switch_at_equal_steps(tmp_path, here, capsys):
    only = ["--only", "packing", "--only", "accumulation", "--only", "TF32", "--only", "batch 8"]
    found = measured(capsys, "train", *config(tmp_path), "--gpu", "none", "--steps", 3, "--rounds", 1, *only)
    rows = by_name(found)
    assert found["batch"] == 8 and rows["batch 8"]["reason"] == "it is that of the baseline"
    assert "needs a GPU" in rows["TF32"]["reason"]
    baseline, cut = rows["baseline"], rows["accumulation"]
    # The same rows in smaller passes are the same step.
    assert cut["settings"] == {"training.per_device_train_batch_size": 2}
    assert cut["loss"] == pytest.approx(baseline["loss"], rel=1e-4) and baseline["speed_up"] == 1
    assert rows["packing"]["turns"] == 1 and rows["packing"]["loss"] == pytest.approx(baseline["loss"], rel=1e-3)
    assert not (tmp_path / "runs").exists()
    capsys.readouterr()
    assert main(["bench", "train", *config(tmp_path), "--gpu", "none", "--steps", "3", "--rounds", "1", *only[:2]]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split()[0] == "ms" and lines[3].startswith("baseline ") and lines[4].startswith("packing ")


def test_a_slow_model_takes_as_few_steps_as_let_each_variant_have_its_turn(monkeypatch):
    """At 4 s for a child and 1 s a step; one of three variants has steps of four times the rows."""
    now = [0.0]

    def ask(variant: Variant, is_first: bool, seconds: float) -> dict[str, Any]:
        took = 4 + (variant.question["steps"] + 2) * variant.question["patch"].get(EFFECTIVE, 8) / 8
        now[0] += took
        assert took <= seconds
        return {"step_seconds": 1.0, "steps": variant.question["steps"]}

    for module in (training, rounds):
        monkeypatch.setattr(module, "monotonic", lambda: now[0])
    monkeypatch.setattr(training, "ask_for_steps", ask)
    monkeypatch.setattr(training.TrainingBench, "batch", 8)
    variants = [Variant(name=name, question={"steps": 12, "patch": patch})
                for name, patch in (("baseline", {}), ("plain", {"a": 1}), ("batch 32", {EFFECTIVE: 32}))]  # fmt: skip
    monkeypatch.setattr(training.TrainingBench, "variants", lambda self: iter(variants))
    taken = {}
    for seconds in (70.0, 120.0, 600.0):
        asked = training.TrainingBench(Request(), None, 1, None, lambda line: None, seconds=seconds)
        found = asked.measure()
        taken[seconds] = asked.steps
        assert not found.cut_short and [one.values("steps") for one in found.measured] == [[asked.steps]] * 3
    # 0.8 of what the first look (9 s) leaves, less 12 s for three starts, over 6 steps at once, less 2 to warm up.
    assert taken == {70.0: 4, 120.0: 10, 600.0: 12}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no-such-run"], "no-such-run"),
        (["train", "--set", "training.nonsense=1"], "training.nonsense"),
        (["train", "--only", "nonsense"], "no variant has nonsense in its name"),
        (["train", "--gpu", "x"], "--gpu takes the number of a card"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_a_sentence(arguments, words, capsys):
    assert main(["bench", *arguments]) == 2
    assert words in capsys.readouterr().err
