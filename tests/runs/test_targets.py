"""[targets]: what a run should reach, judged from its journal in all outputs."""

import json
from dataclasses import replace

import pytest

from tests.runs.journals import PLANNED, end, held_out, read_all, run_of, start, step_done, steps
from tui_trainer.cli import main
from tui_trainer.config.load import Request
from tui_trainer.errors import ConfigError
from tui_trainer.launching.open_run import load_config
from tui_trainer.lines import plan_and_events as lines
from tui_trainer.planning.conflicts import setting_problems
from tui_trainer.reporting.facts import facts_of
from tui_trainer.reporting.page import to_markdown
from tui_trainer.runs.events import EvalDone, InferenceMeasured, PlanMade, RunFinished, from_line
from tui_trainer.runs.result import targets_of, targets_summary
from tui_trainer.runs.state import apply_events

ALL = {
    "samples_per_second": 2.0,
    "inference_samples_per_second": 9.0,
    "memory_gib": 0.5,
    "model_size_gib": 0.25,
    "loss": 1.3,
    "score": 0.7,
}


def planned(metric="f1", **targets):
    return replace(PLANNED, targets=targets, metric=metric)


def verdicts(*events):
    return {target.label: target.verdict for target in targets_of(apply_events([start(100), *events]))}


def test_no_target_is_known_before_it_is_measured():
    assert verdicts(planned(**ALL)) == dict.fromkeys(
        ("samples/s", "inference samples/s", "memory", "model size", "held-out loss", "F1"), "unknown yet"
    )
    assert targets_summary(apply_events([start(), planned(**ALL)])) == "0 of 6 met, 6 unknown yet"


def test_each_target_is_a_lower_or_an_upper_limit():
    ended = replace(end(100), model_bytes=2**28)
    speed = InferenceMeasured(step=5, samples_per_second=9.0, rows=32)
    events = [planned(**ALL), *steps(1, 5), held_out(5, 1.25, f1=0.7), ended, speed]
    assert set(verdicts(*events).values()) == {"met"}
    assert targets_summary(apply_events([start(), *events])) == "6 of 6 met"
    heavy = replace(step_done(6), peak_memory_bytes=2**29 + 1, samples=0)
    ended, speed = replace(ended, eval_loss=1.4, model_bytes=2**28 + 1), replace(speed, samples_per_second=8.9)
    worse = [planned(**ALL), heavy, held_out(5, 1.4, f1=0.6), ended, speed]
    assert set(verdicts(*worse).values()) == {"not met"}


def test_only_targets_that_were_set_are_judged():
    assert verdicts(planned(loss=1.0), held_out(1, 1.5)) == {"held-out loss": "not met"}
    assert verdicts(planned()) == {} and targets_summary(apply_events([start(), planned()])) == ""
    assert verdicts() == {}


def test_a_diverged_run_does_not_meet_its_loss():
    assert verdicts(planned(loss=1.0), held_out(1, float("nan")), end(5, eval_loss=float("nan"))) == {
        "held-out loss": "not met"
    }


def test_the_best_evaluation_counts_until_that_of_the_final_model():
    events = [planned(loss=1.3, score=0.7), held_out(1, 1.25, f1=0.8), held_out(2, 1.5, best=False, f1=0.6)]
    assert verdicts(*events) == {"held-out loss": "met", "F1": "met"}
    assert verdicts(*events, end(2, eval_loss=1.5)) == {"held-out loss": "not met", "F1": "not met"}


def test_a_journal_without_targets_is_read():
    line = json.dumps({"event": "PlanMade", "at": "", "step": 0, **{"total_steps": 1, "steps_per_epoch": 1,
        "effective_batch_size": 1, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 1, "parameters": 1,
        "memory_bytes": 1, "disk_bytes": 1, "duration_seconds": None}})  # fmt: skip

    assert targets_of(apply_events([from_line(line)])) == []


def test_the_size_of_an_adapter_is_that_of_the_merged_model():
    adapted = replace(planned(model_size_gib=0.25), merged_bytes=2**29)
    ended = replace(end(100), model_bytes=2**20, model_path="model")
    state = apply_events([start(100), adapted, *steps(1, 5), ended])
    (target,) = targets_of(state)
    assert target.met is False
    assert target.words == "model size 512.0 MiB, merged; the adapter alone takes 1.0 MiB (at most 256.0 MiB)"
    assert "512.0 MiB merged; the adapter alone takes 1.0 MiB" in "\n".join(lines.end_lines(state, "a", "a", "base"))


def test_inference_speed_is_not_known_before_bench():
    state = apply_events([start(100), planned(inference_samples_per_second=50.0), *steps(1, 5), end(100)])
    (target,) = targets_of(state)
    assert target.verdict == "unknown yet" and "tui-trainer bench a" in target.words
    state.apply(InferenceMeasured(step=100, samples_per_second=60.0, rows=32))
    (target,) = targets_of(state)
    assert target.words == "inference samples/s 60, in batches (at least 50)"
    state.apply(start(100))
    assert targets_of(state)[0].measured is None, "a run that went on has another model"


def test_a_score_needs_a_metric():
    loaded = load_config(Request(assignments=("targets.score=0.9",)))
    (problem,) = setting_problems(loaded)
    assert problem.key == "targets.score" and "metric_for_best_model is set to loss" in problem.message
    with pytest.raises(ConfigError, match="at least 0"):
        load_config(Request(assignments=("targets.loss=-1",)))


def test_a_run_shows_its_targets_in_terminal_and_report(tiny_run):
    targets = {"samples_per_second": 0.001, "memory_gib": 0.001, "model_size_gib": 1, "loss": 100}
    folder, _ = tiny_run("aimed", {f"targets.{name}": value for name, value in targets.items()})
    events = read_all(folder.journal)
    state = apply_events(events)
    assert [target.met for target in targets_of(state)] == [True, False, True, True]
    assert [one.targets for one in events if isinstance(one, PlanMade)] == [targets]
    finished = next(one for one in events if isinstance(one, RunFinished))
    assert finished.model_bytes == sum(path.stat().st_size for path in folder.model.iterdir())
    printed = "\n".join(lines.end_lines(state, "aimed", str(folder.root)))
    assert "(at least 0.001): met" in printed and "(at most 1.0 MiB): not met" in printed
    last = next(one for one in reversed(events) if isinstance(one, EvalDone))
    before = apply_events([one for one in events if not isinstance(one, RunFinished)])
    assert lines.event_line(last, before).endswith("targets 2 of 4 met, 1 unknown yet")
    report = (folder.root / "report.md").read_text().split("## Targets\n")[1].split("\n## ")[0]
    assert report.count("| met |") == 3 and report.count("| not met |") == 1


def test_compare_has_a_row_of_targets_if_a_run_has_any(tmp_path, capsys):
    run_of(tmp_path, "one", start(), planned(loss=1.3), held_out(1, 1.25), end(1))
    run_of(tmp_path, "two", start(), planned(), end(1))
    run_of(tmp_path, "three", start(), planned(), end(1))
    assert main(["compare", "one", "two"]) == 0
    (row,) = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("targets")]
    assert row == ["targets", "1", "of", "1", "met", "--"]
    assert main(["compare", "two", "three"]) == 0
    assert "targets" not in capsys.readouterr().out


def test_an_ended_run_without_a_model_has_no_known_size(tmp_path):
    folder = run_of(tmp_path, "a", start(), planned(model_size_gib=1.0), *steps(1, 2), end(2, "stopped"))
    assert "| unknown |" in to_markdown(facts_of(folder))
