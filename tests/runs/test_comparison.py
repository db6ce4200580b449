"""Comparisons of runs: curves of bounded length, results, and settings that differ."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.runs.journals import PLANNED, end, held_out, run_of, start, step_done, steps
from tui_trainer.lines.comparison_lines import comparison_lines
from tui_trainer.runs.comparison import compare, train_curve
from tui_trainer.runs.events import LibrariesLoaded
from tui_trainer.runs.state import apply_events


def config(learning_rate=0.001, **more):
    training = {"learning_rate": learning_rate, "seed": 42, "mixed_precision": "auto"}
    return {"training": training, "output": {"name": str(more)}} | more


def finished(parent, name, *, last=100, loss=1.25, plan=None, **scores):
    evals = [held_out(last // 2, loss / 2, **scores), held_out(last, loss, best=False, **scores)]
    libraries = LibrariesLoaded(resident_bytes=900, threads=2)
    folder = run_of(parent, name, start(), libraries, PLANNED, *steps(1, last), *evals, end(last, eval_loss=loss))
    if plan is not None:
        folder.plan.write_text(json.dumps(plan))
    return folder


@pytest.fixture
def pair(tmp_path):
    first = {"config": config(), "precision": {"value": "fp32", "exact": True, "reason": "a CPU"}, "device_name": "X"}
    first["save_every_steps"] = {"value": 5, "exact": True, "reason": "from a file"}
    second = {
        "config": config(0.003),
        "save_every_steps": {"value": 9, "exact": True, "reason": ""},
        "precision": {"value": "bf16", "exact": True, "reason": "a GPU"},
    }
    return [finished(tmp_path, "a", plan=first), finished(tmp_path, "b", last=50, loss=1.5, plan=second, f1=0.7)]


def test_results_of_each_run_are_compared(pair):
    first, second = compare(pair).runs
    assert (first.name, first.status, first.step, first.total_steps) == ("a", "finished", 100, 100)
    assert (first.loss, first.eval_loss, second.eval_loss) == (1.5, 1.25, 1.5)
    assert (first.best_eval_loss, first.best_eval_step, first.best, first.best_step) == (0.625, 50, 0.625, 50)
    assert (second.scores, second.metric) == ({"f1": 0.7}, "loss")
    assert (first.seconds, first.tokens, first.tokens_per_second) == (50.0, 10_000, 400.0)
    assert first.training_memory_bytes == 200, "without the libraries, as the plan counts it"
    assert (first.peak_memory_bytes, first.parameters, first.trained_parameters) == (1100, 1_000_000, 10_000)


def test_curves_are_against_steps_tokens_and_seconds(pair):
    first, _ = compare(pair).runs
    assert [(one.step, one.tokens, one.seconds, one.loss) for one in first.eval_curve] == [
        (50, 5_000, 25.0, 0.625),
        (100, 10_000, 50.0, 1.25),
    ]
    last = first.train_curve[-1]
    assert (len(first.train_curve), last.step, last.tokens, last.seconds) == (100, 100, 10_000, 50.0)
    assert last.loss == pytest.approx(apply_events(steps(1, 100)).loss_smoothed)


def test_a_curve_has_a_bounded_number_of_points_and_ends_with_the_last_step(subtests):
    for last, points in ((1, 1), (7, 7), (399, 50), (1_000, 50)):
        with subtests.test(f"{last} steps"):
            curve = train_curve(apply_events(steps(1, last)), 50)
            assert (len(curve), curve[-1].step, curve[-1].tokens) == (points, last, 100 * last)
            assert all(before.step < after.step and before.loss > after.loss for before, after in pairwise(curve))


def test_steps_with_a_loss_that_is_not_finite_are_left_out_of_the_curve():
    nothing = step_done(2, float("nan"))
    curve = train_curve(apply_events([step_done(1), nothing, step_done(3, 4.0)]), 50)
    assert [(one.step, one.loss) for one in curve] == [(1, 2.0), (2, 2.0), (3, 3.0)]
    assert train_curve(apply_events([nothing]), 50) == ()


def test_only_settings_that_differ_are_listed(pair):
    found = {one.key: one.values for one in compare(pair).differences}
    assert found == {"training.learning_rate": (0.001, 0.003), "training.mixed_precision": ("fp32", "bf16")}


def test_a_run_without_a_plan_is_compared_by_its_config(pair, tmp_path):
    early = run_of(tmp_path, "early", start())
    early.config.write_text("schema_version = 1\n[training]\nlearning_rate = 0.003\nseed = 1\n")
    comparison = compare([pair[1], early])
    assert [(one.key, one.values) for one in comparison.differences] == [("training.seed", (42, 1))]
    for damaged in ("[training", "\xff"):
        early.config.write_text(damaged)
        assert compare([pair[1], early]).differences == ()


def test_a_run_without_steps_has_empty_columns(pair, tmp_path):
    empty = compare([pair[0], run_of(tmp_path, "empty")]).runs[1]
    assert (empty.train_curve, empty.eval_curve, empty.seconds, empty.tokens_per_second) == ((), (), None, None)
    lines = comparison_lines(compare([pair[0], run_of(tmp_path, "started", start())]), 100)
    values = {line[:18].strip(): line.split()[-1] for line in lines if line}
    labels = "training loss,held-out loss,training time,tokens per second,training memory,parameters"
    for label in labels.split(","):
        assert values[label] == "--"


def test_the_table_fits_the_terminal(tmp_path, subtests):
    plans = [{"config": config(n, data={"path": "/a/long/path" * n})} for n in range(6)]
    names = [f"quickstart-20261120-18023{n}" for n in range(6)]
    runs = [finished(tmp_path, name, plan=plan, f1=0.5) for name, plan in zip(names, plans, strict=True)]
    for count, width, is_in_columns in ((2, 80, True), (6, 80, False), (2, 30, False), (6, 400, True)):
        with subtests.test(f"{count} runs in {width} columns"):
            lines = comparison_lines(compare(runs[:count]), width)
            assert max(map(len, lines)) <= width
            (head, *_) = [line for line in lines if names[0] in line]
            assert (names[1] in head) == is_in_columns
            assert any("training.learning_rate" in line for line in lines) and any("F1" in line for line in lines)


def test_control_characters_of_a_config_are_not_printed(tmp_path):
    plans = [{"config": config(data={"path": text})} for text in ("\x1b[2J", "plain")]
    runs = [finished(tmp_path, f"run-{n}", plan=plan) for n, plan in enumerate(plans)]
    assert not any("\x1b" in line for line in comparison_lines(compare(runs), 80))


def test_runs_of_different_tasks_are_compared_with_a_warning(pair, tmp_path):
    assert compare(pair).warning == ""
    other = run_of(tmp_path, "other", replace(start(), task="char_lm"))
    warning = "The tasks differ (chat, char_lm): losses and scores are not comparable."
    assert compare([*pair, other]).warning.startswith(warning)


def test_equal_settings_are_reported_as_equal(tmp_path):
    runs = [finished(tmp_path, name, plan={"config": config()}) for name in ("a", "b")]
    assert comparison_lines(compare(runs), 80)[-1] == "same settings"
