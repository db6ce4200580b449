"""Scores in words, each beside its baseline, and which weights are kept."""

from dataclasses import replace
from datetime import UTC, datetime

from tests.ui.canned import trained
from tui_trainer.lines.plan_and_events import end_lines, event_line, run_lines
from tui_trainer.runs import events as e
from tui_trainer.runs.overview import RunOverview
from tui_trainer.runs.result import (
    KeptWeights,
    baselines_line,
    best_by,
    kept_weights,
    score_words,
    scores_line,
)
from tui_trainer.runs.state import apply_events

BASELINES = {"accuracy of the most frequent class": 0.31, "macro_f1 of the most frequent class": 0.08}


def test_a_score_stands_beside_its_baseline():
    line = scores_line({"accuracy": 0.834, "macro_f1": 0.8, "exact_match": 1.0}, BASELINES)
    first, second, third = line.split(", ")
    assert first == "accuracy 0.834 (most frequent class 0.310)"
    assert second == "macro F1 0.800 (most frequent class 0.080)"
    assert third == "exact match 1.000"
    assert scores_line({}, BASELINES) == ""


def test_baselines_of_one_model_are_in_one_phrase():
    assert baselines_line({**BASELINES, "mse of the mean": 12.5}) == (
        "accuracy 0.310 and macro F1 0.080 of the most frequent class; mse 12.5 of the mean"
    )


def test_a_smaller_error_is_better():
    known = {"mse of the mean": 0.2, "accuracy of the usual": 0.2}
    found = score_words({"mse": 0.1, "accuracy": 0.1, "r2": 0.5}, known)
    assert [score.beats_baseline for score in found] == [True, False, None]


def finished(**more):
    return [
        e.RunStarted(name="docs", task="sequence_classification", device="cpu", pid=1, total_steps=8),
        e.BaselinesMeasured(losses={}, eval_tokens=10, unit="token", scores=BASELINES),
        e.EvalDone(step=4, loss_sum=5, tokens=10, loss=0.5, seconds=1, scheduled=True, best=True,
                   scores={"accuracy": 0.9}),
        e.EvalDone(step=8, loss_sum=6, tokens=10, loss=0.6, seconds=1, scheduled=True, best=False,
                   scores={"accuracy": 0.8}),
        e.RunFinished(step=8, reason="done", loss=0.1, seconds=9.0, model_path="model", **more),
    ]  # fmt: skip


def test_the_lines_of_a_run_show_the_scores_of_its_model():
    events = finished(eval_loss=0.5)
    state = apply_events(events)
    assert event_line(events[1], state) == "to beat: accuracy 0.310 and macro F1 0.080 of the most frequent class"
    counted = e.BaselinesMeasured(losses={"bigram baseline": 2.477}, eval_tokens=10, unit="token")
    assert event_line(counted, state) == (
        "to beat: held-out loss bigram baseline 2.4770 nats/token (n-gram models that count token sequences)"
    )
    assert "held-out loss 0.6000, accuracy 0.800 (most frequent class 0.310)" in event_line(events[3], state)
    lines = end_lines(state, "docs", "/runs/docs")
    assert lines[0].startswith("finished after 8 steps; kept step 4: held-out loss 0.5000, ")
    assert "held-out loss  0.5000, at step 4" in lines
    assert "accuracy       0.900  (most frequent class 0.310: beaten)" in lines


def test_a_list_of_runs_has_a_column_of_scores_if_a_run_has_any(tmp_path):
    about = {"path": tmp_path, "status": "finished", "step": 8, "total_steps": 8, "loss": 0.1}
    plain = RunOverview(name="text", eval_loss=1.0, **about)
    scored = RunOverview(name="docs", eval_loss=0.5, scores={"accuracy": 0.9}, **about)
    now = datetime.now(UTC)
    assert "score" not in run_lines([plain], 1000, now)[0]
    head, first, second = run_lines([plain, scored], 80, now)
    column = head.index("score")
    assert first[column:].startswith("--") and second[column:].startswith("accuracy 0.900")


def test_early_stopping_keeps_the_weights_of_the_best_evaluation():
    plan = replace(trained(0)[4], metric="macro_f1", early_stopping_patience=2)
    state = apply_events([plan, *(one for one in trained(50) if isinstance(one, e.StepDone))])

    def evaluated(step: int, f1: float | None, best: bool = False, scheduled: bool = True) -> KeptWeights:
        scores = {} if f1 is None else {"macro_f1": f1}
        done = e.EvalDone(
            step=step, loss_sum=1, tokens=1, loss=1.0, seconds=1, scheduled=scheduled, best=best, scores=scores
        )
        state.apply(done)
        return kept_weights(state)

    assert kept_weights(state).best_words == "" and kept_weights(state).step == 50
    assert evaluated(10, 0.5, best=True).best_words == "step 10, macro F1 0.500"
    # One that somebody asked for, or that could not be measured whole, uses no patience.
    assert evaluated(20, 0.4, scheduled=False).patience_used == 0 and evaluated(30, None).patience_used == 0
    used = evaluated(40, 0.4)
    assert (used.patience_used, used.step) == (1, 10)
    assert used.patience_words == "1 of 2 evaluations without improvement"
    # A journal of before it had the patience: the plan's file has it, or nothing stops early and the last weights stay.
    state.plan = replace(plan, early_stopping_patience=None)
    assert (kept_weights(state).step, kept_weights(state).patience_words) == (50, "")
    assert kept_weights(state, patience=2) == used
    assert best_by(state, "macro_f1").step == 10 and best_by(state, "mse") is None


def test_a_better_unscheduled_evaluation_is_shown_as_not_counting():
    def done(step, loss, f1, **more):
        values = {"loss_sum": loss, "tokens": 1, "seconds": 1, "scheduled": True, "best": False, **more}
        return e.EvalDone(step=step, loss=loss, scores={"macro_f1": f1}, **values)

    for metric, first in (("loss", (0.9, 0.5)), ("macro_f1", (0.1, 0.6))):
        plan = replace(trained(0)[4], metric=metric, early_stopping_patience=2)
        best, worse = done(4, *first, best=True), done(5, *((1.0, 0.9) if metric == "loss" else (0.01, 0.4)),
                                                       scheduled=False)  # fmt: skip
        state = apply_events([plan, best, worse])
        assert not kept_weights(state).requested_was_better and "(best so far)" in event_line(best, state)
        assert "(requested)" in event_line(worse, state)
        better = done(6, *((0.8, 0.1) if metric == "loss" else (2.0, 0.7)), scheduled=False)
        apply_events([better], state)
        assert kept_weights(state).best is best and kept_weights(state).best_words.endswith(
            "(scheduled evaluations only)"
        )
        assert "(requested; the best weights are chosen from scheduled evaluations only)" in event_line(better, state)
        assert "(best of the scheduled evaluations)" in event_line(best, state)
