"""`tui-trainer tune --effective`: the effective batch size from which a step is no faster per row."""

from __future__ import annotations

import json
import tomllib

import pytest

from tests.answered_here import answered_here
from tests.test_tune import arguments, settings
from tui_trainer.cli import main
from tui_trainer.config.load import Request
from tui_trainer.launching.open_run import load_config
from tui_trainer.launching.prepare import estimated_plan
from tui_trainer.measure import steps, tuning
from tui_trainer.measure.tuning import EffectiveBatches
from tui_trainer.planning.measured_steps import StepKey, measured_row_rates
from tui_trainer.planning.records import device_key
from tui_trainer.units import MIB
from tui_trainer.worker.asking import WorkerFailed

__all__ = ["settings"]
pytestmark = pytest.mark.full
NO_BOUND = ("training.num_train_epochs=2000", "training.learning_rate=0.002")


def made_up(monkeypatch, rates, *, full_from=10**9, fails=None):
    """Make up steps with these rows per second by effective batch size, out of memory from `full_from` on."""
    asked = []

    def take(question, asked_for, **_):
        assert question == "take_steps" and asked_for["largest_pass"]
        written = dict(one.partition("=")[::2] for one in asked_for["assignments"])
        rows = int(written["training.effective_batch_size"])
        asked.append((rows, int(written["training.per_device_train_batch_size"])))
        if rows in (fails or {}):
            raise fails[rows]
        if rows >= full_from:
            return {"failed": "out of memory (planted)"}
        rate = rates[rows] if isinstance(rates[rows], float) else rates[rows][len(asked) > len(rates)]
        return {
            "samples_per_second": rate, "tokens_per_second": 20 * rate, "step_seconds": rows / rate, "steps": 8,
            "utilisation_share": 0.5, "problems": {}, "peak_memory_bytes": rows * MIB,
            "largest_pass_bytes": 2 * rows * MIB,
        }  # fmt: skip

    monkeypatch.setattr(steps, "ask", take)
    monkeypatch.setattr(tuning, "load_of_others", lambda: 0.0)
    return asked


def found(settings, *more, seconds=600.0):
    request = Request(assignments=(*settings, "hardware_profile=none", *more))
    return EffectiveBatches(request=request, gpu="none", seconds=seconds, notify=lambda line: None).find()


def test_sizes_double_until_two_doublings_gain_little_and_the_smallest_of_them_is_chosen(settings, monkeypatch):
    asked = made_up(monkeypatch, {8: 100.0, 16: 150.0, 32: 152.0, 64: 140.0})
    result = found(settings, *NO_BOUND)
    assert asked == [(8, 8), (16, 16), (32, 32)] * 3
    assert {len(one.answers) for one in result.sizes} == {3}
    # 40 rows of data, of which some are held out.
    assert "the data has" in result.end_reason and result.best.rows == 16
    assert result.patch == {"training.effective_batch_size": 16, "training.learning_rate": 0.00283}
    assert "1.50 times as fast per row as 8" in result.sentence


def many(tmp_path, settings):
    text = "".join(json.dumps({"text": f"row {number} of many words"}) + "\n" for number in range(4000))
    (tmp_path / "many.jsonl").write_text(text)
    return (*settings, f"data.path={tmp_path / 'many.jsonl'}")


def test_search_stops_without_a_gain_and_names_the_size_that_is_slower(settings, monkeypatch, tmp_path):
    asked = made_up(monkeypatch, {8: 100.0, 16: 150.0, 32: 153.0, 64: 140.0})
    result = found(many(tmp_path, settings))
    assert [rows for rows, _ in asked] == [8, 16, 32, 64] * 3 and result.first_slower_rows == 64
    assert "less than 5%" in result.end_reason and "slower again with 64" in result.sentence and result.best.rows == 16


def test_search_stops_when_memory_is_full(settings, monkeypatch, tmp_path):
    made_up(monkeypatch, {8: 100.0, 16: 150.0, 32: 200.0, 64: 300.0}, full_from=64)
    result = found(many(tmp_path, settings), *NO_BOUND)
    assert [one.rows for one in result.measured] == [8, 16, 32] and result.sizes[-1].reason
    assert result.best.rows == 32 and "64 rows per step failed: out of memory" in result.sentence
    # A worker that the system kills is a size that failed.
    made_up(monkeypatch, {8: 100.0}, fails={16: WorkerFailed("ended", "killed by the system")})
    result = found(many(tmp_path, settings))
    assert result.patch == {} and "16 rows per step failed: killed by the system" in result.sentence


def test_planned_size_stays_if_no_other_is_faster(settings, monkeypatch, tmp_path):
    own = (*many(tmp_path, settings), "training.effective_batch_size=16")
    made_up(monkeypatch, {8: 101.0, 16: 100.0, 32: 104.0, 64: 103.0})
    result = found(own, *NO_BOUND)
    assert result.best.rows == 16 and result.patch == {} and "as planned" in result.sentence
    made_up(monkeypatch, {8: 130.0, 16: 100.0, 32: 104.0, 64: 103.0})
    result = found(own, *NO_BOUND)
    assert result.patch == {"training.effective_batch_size": 8, "training.learning_rate": 0.00141}


def test_fastest_turn_of_a_size_counts(settings, monkeypatch, tmp_path):
    # Somebody else computed while 16 were measured first.
    made_up(monkeypatch, {8: 100.0, 16: (90.0, 150.0), 32: 152.0, 64: 151.0, 128: 150.0})
    result = found(many(tmp_path, settings), *NO_BOUND)
    assert [one.rows_per_second for one in result.sizes] == [100.0, 150.0, 152.0, 151.0, 150.0]
    assert result.best.rows == 16 and result.first_slower_rows is None and "slower again" not in result.sentence


def test_chosen_size_leaves_enough_steps(settings, monkeypatch, tmp_path):
    made_up(monkeypatch, {8: 100.0, 16: 150.0, 32: 200.0, 64: 300.0, 128: 301.0, 256: 302.0})
    result = found(many(tmp_path, settings), "training.num_train_epochs=2")
    assert result.most_rows == 16 and result.best.rows == 16
    assert "256 rows would be faster, but leave fewer than 300 steps" in result.sentence


def test_micro_batch_of_the_config_stays_and_ctrl_c_keeps_the_results(settings, monkeypatch, tmp_path):
    asked = made_up(monkeypatch, {8: 100.0, 16: 150.0}, fails={32: KeyboardInterrupt()})
    result = found(many(tmp_path, settings), "training.per_device_train_batch_size=4")
    assert asked == [(8, 4), (16, 4), (32, 4)]
    assert result.cut_short == "interrupted" and result.best.rows == 16 and result.end_reason == ""
    assert "training.gradient_accumulation_steps" not in result.patch
    none = found(many(tmp_path, settings), seconds=-1.0)
    assert none.cut_short.endswith("was reached") and "nothing was measured" in none.sentence


def test_real_sizes_are_measured_recorded_and_printed(settings, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("TUI_TRAINER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(steps, "ask", answered_here)
    own = (*settings, "training.num_train_epochs=2000", "hardware_profile=none", "data.eval_fraction=0.5")
    out = tmp_path / "out.toml"
    command = ["tune", "--effective", *arguments(own), "--gpu", "none", "--minutes", "20"]
    assert main([*command, "--json", "--write", str(out)]) == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert [one["rows"] for one in result["sizes"]] == [8, 16] and "measuring 16 rows" in printed.err
    for one in result["sizes"]:
        assert one["rows_per_second"] > 0 and one["memory_bytes"] > 0 and 0 < one["utilisation_share"] <= 1
        assert one["step_seconds"] == pytest.approx(one["rows"] / one["rows_per_second"], rel=0.9)
    assert tomllib.loads(out.read_text())["training"]["effective_batch_size"] in (8, 16)
    plan = estimated_plan(load_config(Request(assignments=own), gpu="none"), gpu="none")
    rates = measured_row_rates(device_key(plan.cpu_name, plan.threads.value, ""), StepKey.read(plan.shape_key))
    assert set(rates) <= {8, 16}  # none where others keep the machine busy


def test_sizes_are_printed_as_a_table(settings, monkeypatch, capsys):
    made_up(monkeypatch, {8: 100.0, 16: 150.0, 32: 152.0})
    assert main(["tune", "--effective", *arguments((*settings, *NO_BOUND)), "--gpu", "none"]) == 0
    head, first, *_ = capsys.readouterr().out.splitlines()
    assert head.split("  ")[0] == "rows/step" and "busy" in head and "learning rate" in head
    assert first.split()[:3] == ["8", "100.0", "2,000"] and "50%" in first and "16.0 MiB" in first


def test_missing_data_is_refused_in_one_sentence(settings, capsys):
    assert main(["tune", "--effective", *arguments(settings), "--gpu", "none", "--set", "data.path=no.jsonl"]) == 2
    assert "no.jsonl" in capsys.readouterr().err
