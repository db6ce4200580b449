"""`tui-trainer bench`: variants of inference and of training, measured in turns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.answered_here import answered_here
from tests.tiny_models import save_tiny_model
from tests.trained_runs import SETTINGS, train, training_row, write_rows
from tui_trainer.cli import main
from tui_trainer.measure import inference, starting, steps, training
from tui_trainer.measure.turns import TimeLimit, Variant, measure_in_turns
from tui_trainer.runs.lock import RunLock
from tui_trainer.worker.asking import WorkerFailed

EFFECTIVE = "training.effective_batch_size"


def variants() -> list[Variant]:
    return [Variant(name="plain"), Variant(name="fast"), Variant(name="other", reason="not on this machine")]


def test_variants_take_turns_and_a_failing_one_does_not_stop_the_others():
    asked: list[tuple[str, bool]] = []

    def ask(variant: Variant, is_first: bool, seconds: float) -> dict[str, Any]:
        asked.append((variant.name, is_first))
        if variant.name == "fast" and not is_first:
            raise WorkerFailed("failed: no memory", "no memory")
        return {"seconds": len(asked)}

    plain, fast, other = measured_variants = variants()
    limit = TimeLimit(60)
    measure_in_turns(measured_variants, ask, limit, rounds=3, notify=lambda line: None)
    assert asked == [("plain", True), ("fast", True), ("plain", False), ("fast", False), ("plain", False)]
    assert plain.values("seconds") == [1, 3, 5] and plain.median("seconds") == 3
    assert plain.spread_share("seconds") == pytest.approx(2 / 3) and not limit.cut_short
    assert (fast.values("seconds"), fast.reason) == ([2], "no memory") and fast.spread_share("seconds") is None
    assert (other.answers, other.reason) == ([], "not on this machine")


def test_measurements_are_kept_at_ctrl_c_and_at_the_time_limit():
    def ask(variant: Variant, is_first: bool, seconds: float) -> dict[str, Any]:
        if variant.name == "fast":
            raise KeyboardInterrupt
        return {"seconds": 1}

    interrupted, limit = variants(), TimeLimit(60)
    measure_in_turns(interrupted, ask, limit, rounds=2, notify=lambda line: None)
    assert limit.cut_short == "interrupted" and interrupted[0].answers == [{"seconds": 1}]
    assert [one.reason for one in interrupted] == ["", "not measured: interrupted", "not on this machine"]
    late, limit = variants()[:2], TimeLimit(0)
    measure_in_turns(late, ask, limit, rounds=2, notify=lambda line: None)
    assert limit.cut_short and all(one.reason.startswith("not measured: ") for one in late)


@pytest.fixture
def here(monkeypatch):
    """Measure in this process."""
    monkeypatch.setattr(inference, "ask", answered_here)
    monkeypatch.setattr(steps, "ask", answered_here)
    monkeypatch.setattr(starting, "ask", answered_here)


def measured(capsys, *arguments: object) -> dict[str, Any]:
    capsys.readouterr()
    code = main(["bench", *map(str, arguments), "--json"])
    shown = capsys.readouterr()
    assert code == 0, shown.err
    return json.loads(shown.out)


def by_name(found: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in found["variants"]}


@pytest.mark.full
def test_classifier_predicts_the_same_in_batches_as_one_by_one(finished, here, capsys):
    run = finished("sequence_classification")
    asked = (run.root, "--rows", 6, "--rounds", 2, "--only", "in batches", "--only", "beams", "--only", "adapter")
    rows = by_name(measured(capsys, *asked))
    assert list(rows) == ["one by one", "in batches", "4 beams", "adapter not merged"]
    alone, together = rows["one by one"], rows["in batches"]
    assert alone["turns"] == together["turns"] == 2 and together["same_predictions"] == 1
    assert together["loss"] == alone["loss"] and set(together["scores"]) >= {"accuracy"}
    assert 0 < alone["latency_seconds_50"] <= alone["latency_seconds_95"] and alone["first_token_seconds"] is None
    assert together["disk_bytes"] == (run.model / "model.safetensors").stat().st_size < together["peak_memory_bytes"]
    assert rows["4 beams"]["reason"] == "this model generates no text" and not rows["4 beams"]["turns"]
    assert "no adapter" in rows["adapter not merged"]["reason"]


@pytest.mark.full
def test_rate_of_a_generating_model_counts_its_new_tokens(finished, here, capsys, monkeypatch):
    monkeypatch.setattr(inference, "NEW_TOKENS", 5)
    only = ("--only", "beams", "--only", "no KV cache")
    found = measured(capsys, finished("causal_lm").root, "--rows", 3, "--rounds", 1, *only)
    alone, beams, uncached = found["variants"]
    assert uncached["turns"] == 1 and uncached["same_predictions"] == 1
    assert beams["name"] == "4 beams" and 0 < alone["first_token_seconds"] < 60
    for row in (alone, beams):
        tokens = row["tokens_per_second"] / row["samples_per_second"]
        assert 1 <= tokens <= 5 and tokens * 3 == pytest.approx(round(tokens * 3))


@pytest.mark.full
@pytest.mark.parametrize(("only", "name"), [
    ("in batches", "in batches"), pytest.param("onnx", "onnx, one by one", marks=pytest.mark.slow),
])  # fmt: skip
def test_variants_run_in_processes_of_their_own(only, name, finished, capsys):
    rows = by_name(measured(capsys, finished("causal_lm").root, "--rows", 2, "--rounds", 1, "--only", only))
    assert rows["one by one"]["turns"] == 1 and name in rows
    assert all(row["turns"] or row["reason"] for row in rows.values())


def config(place) -> list[str]:
    data = write_rows(place / "rows.jsonl", [training_row("causal_lm", n) for n in range(60)])
    settings = {**SETTINGS, "task.type": "causal_lm", "output.runs_dir": place / "runs"}
    return ["--data", str(data), *(part for key, value in settings.items() for part in ("--set", f"{key}={value}"))]


@pytest.mark.full
def test_training_variants_are_compared_at_equal_steps(tmp_path, here, capsys):
    only = ["--only", "packing", "--only", "accumulation", "--only", "TF32", "--only", "batch 8", "--minutes", "10"]
    found = measured(capsys, "train", *config(tmp_path), "--gpu", "none", "--steps", 3, "--rounds", 1, *only)
    rows = by_name(found)
    # The chain before each switch alone: the time may be over before the end.
    assert [name for name in rows if "accumulation" in name] == ["+ accumulation", "accumulation"]
    assert main(["bench", "train", "--whole", "--minutes", "1"]) == 2
    assert "--whole cannot be combined with --minutes" in capsys.readouterr().err
    assert found["batch"] == 8 and rows["batch 8"]["reason"] == "same as the baseline"
    assert "needs a GPU" in rows["TF32"]["reason"]
    baseline, cut = rows["baseline"], rows["accumulation"]
    # The same rows in smaller passes are the same step.
    assert cut["settings"] == {"training.per_device_train_batch_size": 2}
    assert cut["loss"] == pytest.approx(baseline["loss"], rel=1e-4) and baseline["speed_up"] == 1
    assert rows["packing"]["turns"] == 1 and rows["packing"]["loss"] == pytest.approx(baseline["loss"], rel=1e-3)
    assert not (tmp_path / "runs").exists()


@pytest.mark.full
def test_whole_runs_are_compared_by_their_time_and_last_loss(tmp_path, here, capsys):
    only = ["--whole", "--only", "batch 16", "--only", "smaller", "--only", "Unsloth"]
    found = measured(capsys, "train", *config(tmp_path), "--set", "model.scratch.num_hidden_layers=2", "--gpu", "none",
                     "--set", "training.max_steps=12",
                     *only, "--only", "cuDNN", "--only", "larger")  # fmt: skip
    rows = by_name(found)
    # 12 steps of 8 rows, the first two to warm up.
    whole, larger = rows["baseline"], rows["batch 16"]
    assert (found["batch"], whole["turns"], whole["is_clear"]) == (8, 1, None)
    assert whole["steps"] == 10 and larger["steps"] == 4
    assert whole["whole_seconds"] * whole["tokens_per_second"] == pytest.approx(
        larger["whole_seconds"] * larger["tokens_per_second"]
    )
    layers, together = {"model.scratch.num_hidden_layers": 1}, rows["+ smaller model"]
    assert rows["smaller model"]["settings"] == layers and rows["smaller model"]["turns"] == 1
    assert together["settings"].items() >= {**layers, EFFECTIVE: 16}.items()
    assert rows["+ larger batch"]["settings"][EFFECTIVE] == 16
    assert "convolutions" in rows["cuDNN autotune"]["reason"] and "unsloth" in rows["Unsloth"]["reason"].lower()
    assert whole["others_cores"] is None or whole["others_cores"] >= 0


def test_unclear_busy_and_slowed_measurements_are_reported():
    row = {"name": "a", "is_clear": None, "others_cores": 0.1, "slowed_by": ""}
    assert training.doubts([row], 2) == []
    loud = [row, {**row, "name": "b", "is_clear": False, "others_cores": 1.5}, {**row, "slowed_by": "heat"}]
    unclear, busy, slowed = training.doubts(loud, 2)
    assert unclear.endswith(": b") and "0.1 to 1.5 of 2 cores" in busy and "slowed down by heat" in slowed


def test_gain_within_the_spread_of_the_turns_is_marked_as_unclear():
    def turns(name: str, *milliseconds: int) -> Variant:
        answers = [
            {"step_seconds": one / 1000, "samples_per_second": 1.0, "tokens_per_second": 1e5 / one,
             "peak_memory_bytes": 1, "loss": 1.0, "others_cores": None} for one in milliseconds
        ]  # fmt: skip
        return Variant(name=name, answers=answers)

    rows = steps.figures_of([turns("baseline", 100, 110), turns("same", 98, 108), turns("fast", 50, 52)], 1e6)
    assert [row["is_clear"] for row in rows] == [None, False, True]
    cells = [row[2] for row in steps.table(rows)[1:]]
    assert cells[0] == "1.00" and cells[1].endswith("?") and not cells[2].endswith("?")


@pytest.mark.full
def test_preparation_and_loading_are_measured_both_ways(tmp_path, here, capsys):
    folder = save_tiny_model(tmp_path / "model", "llama")
    arguments = [*config(tmp_path), "--set", "model.init=pretrained", "--model", folder, "--gpu", "none"]
    only = ["--only", "tokenized again", "--only", "tokens from", "--only", "weights"]
    found = measured(capsys, "train", *arguments, "--steps", 3, "--rounds", 1, *only)
    assert [row["name"] for row in found["variants"]] == ["baseline"]
    anew, cached, beside, in_place = found["starts"]
    assert [row["name"] for row in found["starts"]] == list(starting.NAMES)
    assert all(row["turns"] == 1 and row["seconds"] > 0 for row in found["starts"])
    assert cached["speed_up"] == pytest.approx(anew["seconds"] / cached["seconds"])
    assert in_place["speed_up"] == pytest.approx(beside["seconds"] / in_place["seconds"])
    assert anew["speed_up"] is None and beside["speed_up"] is None


@pytest.mark.full
def test_target_rate_of_a_run_is_compared_with_the_measured_one(here, capsys, tmp_path):
    run = train(tmp_path, "sequence_classification", {"targets.inference_samples_per_second": 0.001})
    found = measured(capsys, run.root, "--rows", 4, "--rounds", 1, "--only", "in batches")
    assert found["inference_samples_per_second"]["met"] is True
    assert main(["bench", str(run.root), "--rows", "4", "--rounds", "1", "--only", "in batches"]) == 0
    assert "in batches (at least 0.001): met" in capsys.readouterr().out
    # It is kept with the run: all that read its journal have it.
    assert main(["report", str(run.root), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["targets"][0]["measured"] == report["inference"]["samples_per_second"] > 0
    (tmp_path / "other").mkdir()
    other = train(tmp_path / "other", "sequence_classification")
    assert main(["compare", str(run.root), str(other.root)]) == 0
    assert "inference samples/s" in capsys.readouterr().out
    assert main(["compare", str(run.root), str(other.root), "--json"]) == 0
    speeds = [one["inference_samples_per_second"] for one in json.loads(capsys.readouterr().out)["runs"]]
    assert speeds == [report["inference"]["samples_per_second"], None]
    with RunLock(run.lock):
        assert main(["bench", str(run.root), "--rows", "4", "--rounds", "1", "--only", "in batches"]) == 0
    assert "the speed was not saved with the run" in capsys.readouterr().err


def test_impossible_measurement_is_refused_in_one_sentence(capsys):
    for arguments, words in (
        (["no-such-run"], "no-such-run"),
        (["train", "--set", "training.nonsense=1"], "training.nonsense"),
        (["train", "--only", "nonsense"], "no variant has nonsense in its name"),
        (["train", "--gpu", "x"], "--gpu must be the number of a GPU or none"),
    ):
        assert main(["bench", *arguments]) == 2
        assert words in capsys.readouterr().err
