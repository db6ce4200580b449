"""Runs of an earlier version: stopped ones resume to the same losses, finished ones can still be opened and used.

`tests/fixtures/make_old_runs.py` made them. `tests/benchmarks/old_runs.py` compares with another checkout bit by bit.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.old_runs import RESUMED, STOPPED, Curve, events, install
from tests.test_publishing import FakeApi
from tui_trainer.cli import main
from tui_trainer.config.removed import REMOVED
from tui_trainer.data.preparing import cache
from tui_trainer.exporting import publishing
from tui_trainer.launching.prepare import read_plan
from tui_trainer.planning.plan import Plan
from tui_trainer.runs.folder import RunFolder

RECORDED = {name: Curve.from_json(found) for name, found in json.loads(RESUMED.read_text()).items()}
# The greedy answer of the finished run to everything.
ANSWER = "the the the the"
ASK = ["generate", "finished", "What is 3 plus 4?", "--temperature", "0", "--max-new-tokens", "12"]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return install(tmp_path)


def change(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    plan = json.loads((run / "plan.json").read_text())
    change(plan)
    (run / "plan.json").write_text(json.dumps(plan))


def with_setting(run: Path, key: str, value: Any) -> None:
    def write(plan: dict[str, Any]) -> None:
        table, _, name = key.partition(".")
        plan["config"][table][name] = value

    change(run, write)


def problems(run: Path, kind: str) -> list[str]:
    """Return the problems of this kind that a run reported since it was resumed."""
    found = list(events(run))
    resumed = max(at for at, event in enumerate(found) if event["event"] == "RunStarted")
    return [
        f"{event['message']}; {event['hint']}".rstrip("; ")
        for event in found[resumed:]
        if event["event"] == "Problem" and event["kind"] == kind
    ]


def assert_recorded(run: Path) -> None:
    recorded, curve = RECORDED[run.name], Curve.of(run)
    assert curve.losses.keys() == recorded.losses.keys() and len(curve.losses) > 40
    assert curve.evaluations.keys() == recorded.evaluations.keys()
    assert curve.losses == {step: pytest.approx(loss, abs=1e-4) for step, loss in recorded.losses.items()}
    assert curve.evaluations == {step: pytest.approx(loss, abs=1e-4) for step, loss in recorded.evaluations.items()}


# Resuming


@pytest.mark.parametrize("name", STOPPED)
def test_stopped_run_resumes_within_its_epoch_with_the_losses_of_the_earlier_version(name, runs):
    run = runs / name
    before, plan = Curve.of(run), json.loads((run / "plan.json").read_text())
    assert main(["resume", name, "--no-ui"]) == 0
    started = [event for event in events(run) if event["event"] == "RunStarted"]
    step, total = started[-1]["resumed_from_step"], plan["total_steps"]["value"]
    assert step % plan["steps_per_epoch"]["value"] and step < total and len(started) == 2
    after = [at for at in Curve.of(run).evaluations if at > step]
    assert len(after) >= 2 and max(before.losses) < total
    assert_recorded(run)
    assert not problems(run, "data changed") and (run / "model").is_dir() and (run / "report.html").is_file()


@pytest.mark.full
def test_prepared_rows_are_used_although_the_data_and_the_preparation_changed(runs, monkeypatch):
    monkeypatch.setattr(cache, "PREPARATION_VERSION", cache.PREPARATION_VERSION + 1)
    data = runs.parent / "data/texts.jsonl"
    data.write_text(data.read_text().replace("sheep", "goats"))
    assert main(["resume", "full", "--no-ui"]) == 0
    assert_recorded(runs / "full")
    message = (
        f"the data changed since this run started: {data}; the run continues with the rows that were prepared when it "
    )
    assert problems(runs / "full", "data changed") == [f"{message}started"]


@pytest.mark.full
def test_prepared_rows_are_used_although_the_data_is_gone(runs):
    shutil.rmtree(runs.parent / "data")
    assert main(["resume", "full", "--no-ui"]) == 0
    assert_recorded(runs / "full")
    [message] = problems(runs / "full", "data changed")
    assert message.startswith("the data of this run can no longer be read: ") and "texts.jsonl" in message


def test_missing_prepared_rows_of_another_preparation_are_refused_with_a_way_out(runs, capsys):
    shutil.rmtree(runs.parent / "home/cache")
    for name in STOPPED:
        assert main(["resume", name, "--no-ui"]) == 2
        message = capsys.readouterr().err
        assert "the rows of this run were prepared by an older version, and their folder is missing" in message
        assert "start a new run, restore the folder, or resume with the version that started the run" in message
    assert main(["evaluate", "finished"]) == 2
    assert "prepared by an older version" in (message := capsys.readouterr().err) and "--data FILE" in message


def test_changed_data_is_refused_if_the_prepared_rows_are_gone(runs, capsys):
    key = json.loads((runs / "full/plan.json").read_text())["data_key"]
    manifest = json.loads((runs.parent / "home/cache" / key / "manifest.json").read_text())
    change(runs / "full", lambda plan: plan.update(data_fingerprint=manifest["fingerprint"]))
    shutil.rmtree(runs.parent / "home/cache")
    data = runs.parent / "data/texts.jsonl"
    data.write_text(data.read_text().replace("sheep", "goats"))
    assert main(["resume", "full", "--no-ui"]) == 2
    assert "the data changed since this run started" in capsys.readouterr().err


# The plan


def test_plan_without_new_fields_and_with_removed_ones_is_read(runs):
    run = RunFolder(runs / "lora")
    whole = read_plan(run)
    optional = {name: field for name, field in Plan.model_fields.items() if not field.is_required()}
    assert {"plan_version", "kernels", "strategy", "data_fingerprint"} <= optional.keys()

    def older(plan: dict[str, Any]) -> None:
        for name in optional.keys() - {"plan_version"}:
            plan.pop(name, None)
        plan["moons"] = {"value": 2}
        plan["training_setup"]["moons"] = 2
        plan["total_steps"]["moons"] = 2
        plan["memory_parts"][0]["moons"] = 2
        plan["training_setup"].pop("provider")
        plan["config"].pop("targets")
        plan["config"]["training"].pop("tf32")

    change(run.root, older)
    found = read_plan(run)
    differs = {name for name in Plan.model_fields if getattr(found, name) != getattr(whole, name)}
    assert differs <= optional.keys() and found.config == whole.config
    assert all(getattr(found, name) == optional[name].default for name in optional)


# Finished runs


def test_finished_run_is_listed_shown_compared_reported_and_published(runs, monkeypatch, capsys):
    assert main(["runs"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()[1:]}
    assert rows.keys() == {"full", "lora", "finished"}
    assert "finished" in rows["finished"].split()[1] and "stopped" in rows["full"] and "interrupted" in rows["lora"]
    assert main(["attach", "finished", "--no-ui"]) == 0
    assert str(runs / "finished" / "model") in capsys.readouterr().out
    assert main(["compare", "finished", "full", "lora", "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)
    assert [run["status"] for run in compared["runs"]] == ["finished", "stopped", "interrupted"]
    assert "tuning.method" in {one["key"] for one in compared["differences"]}
    assert main(["report", "finished", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["plan"]["config"]["task"]["type"] == "chat" and not report["plan_fault"]
    assert list(report["exports"]) == ["merged"] and report["model"]["eval_loss"] > 0
    assert main(["doctor", "finished"]) == 0
    monkeypatch.setattr(publishing, "_api", FakeApi)
    assert main(["publish", "finished", "--to", "me/model", "--yes"]) == 0
    assert "adapter_model.safetensors" in capsys.readouterr().out


@pytest.mark.full
def test_runs_are_shown_on_the_screen_of_runs(runs):
    from tests.ui.screens import open_screens

    async def look() -> None:
        async with open_screens(size=(120, 40)) as screens:
            await screens.press("5")
            await screens.shows("chat", "40/40", "Enter open", "stopped", "interrupted")
            await screens.press("down")
            await screens.shows("sequence_classification", "p resume")
            await screens.press("down")
            made, total = max(Curve.of(runs / "full").losses), read_plan(RunFolder(runs / "full")).total_steps.value
            # Long paths end lines, also between the word and the numbers.
            await screens.shows("causal_lm", "steps", f"{made}/{total}", "p resume")

    asyncio.run(look())


def test_model_of_a_finished_run_evaluates_answers_and_predicts(runs, capsys):
    last = [event for event in events(runs / "finished") if event["event"] == "EvalDone"][-1]
    assert main(["evaluate", "finished", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["models"][0]["loss"] == pytest.approx(last["loss"], abs=1e-4)
    assert found["reference"]["loss"] > last["loss"]
    assert main(ASK) == 0
    assert ANSWER in capsys.readouterr().out
    data, out = runs.parent / "data/conversations.jsonl", runs.parent / "predicted.jsonl"
    asked = ["predict", "finished", "--data", str(data), "--out", str(out), "--max-new-tokens", "12"]
    assert main(asked) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == len(data.read_text().splitlines()) and all("prediction" in row for row in rows)


@pytest.mark.full
def test_export_of_a_finished_run_equals_the_earlier_export(runs, tmp_path, capsys):
    made = runs / "finished/export/merged/model.safetensors"
    assert main(["export", "finished", "--to", "merged", "--out", str(tmp_path / "again"), "--json"]) == 0
    assert not json.loads(capsys.readouterr().out.splitlines()[-1])["faults"]
    assert (tmp_path / "again/model.safetensors").read_bytes() == made.read_bytes()


# Removed settings


def refusal(run: Path, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(["resume", run.name, "--no-ui"]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "value"), [("distributed.strategy", "tp"), ("task.source_language", "en_XX")], ids=["width", "language"]
)
def test_removed_setting_that_changes_the_result_is_refused_in_a_stopped_run_and_ignored_in_a_finished_one(
    key, value, runs, capsys
):
    for name in ("lora", "finished"):
        with_setting(runs / name, key, value)
    if key == "distributed.strategy":
        change(runs / "finished", lambda plan: plan["strategy"].update(value=value))
    assert f"plan.json: {key}: {REMOVED[key].reason}" in refusal(runs / "lora", capsys)
    assert main(["report", "finished", "--json"]) == 0
    assert not json.loads(capsys.readouterr().out)["plan_fault"]
    assert main(["compare", "finished", "lora"]) == 0
    capsys.readouterr()
    assert main(ASK) == 0
    shown = capsys.readouterr()
    assert ANSWER in shown.out and f"plan.json: {key} = {value!r} is ignored" in shown.err
    # A new run from its config is refused as well.
    config = str(runs / "lora/config.toml")
    assert main([config, "--no-ui", "--set", "output.name=anew", "--set", f"{key}={value}"]) == 2
    assert f"{key}: {REMOVED[key].reason}" in capsys.readouterr().err


@pytest.mark.full
def test_removed_settings_that_do_not_change_the_result_are_ignored_and_missing_rows_made_again(
    runs, capsys, monkeypatch
):
    shutil.rmtree(runs.parent / "home/cache")
    monkeypatch.setattr(cache, "PREPARATION_VERSION", 5)  # the same preparation
    removed = {"targets.deadline": "3h", "model.kernels": "hub"}
    for key, value in removed.items():
        with_setting(runs / "lora", key, value)
    assert main(["resume", "lora", "--no-ui"]) == 0
    printed = capsys.readouterr().out
    assert_recorded(runs / "lora")
    assert not problems(runs / "lora", "data changed")
    notes = problems(runs / "lora", "setting not used")
    for key, value in removed.items():
        assert f"{key} = {value!r} is ignored" in printed
        [note] = [note for note in notes if note.startswith(f"plan.json: {key} = {value!r} is ignored")]
        assert note.endswith(REMOVED[key].reason)


def test_run_without_a_plan_starts_with_the_settings_of_its_config_that_still_exist(runs, capsys):
    run = runs / "lora"
    shutil.rmtree(run / "checkpoints")
    for name in ("plan.json", "journal.jsonl"):
        (run / name).unlink()
    text = (run / "config.toml").read_text().replace("num_train_epochs = 4", "max_steps = 1")
    (run / "config.toml").write_text(f'{text}\n[distributed]\nstrategy = "tp"\n')
    assert f"distributed.strategy: {REMOVED['distributed.strategy'].reason}" in refusal(run, capsys)
    (run / "config.toml").write_text(f'{text}\n[targets]\ndeadline = "3h"\n')
    assert main(["resume", "lora", "--no-ui"]) == 0
    assert "targets.deadline = '3h' is ignored" in capsys.readouterr().out
    assert list(Curve.of(run).losses) == [1]


def test_planned_value_of_a_removed_setting_is_reset(runs):
    def with_derived(plan: dict[str, Any]) -> None:
        plan["config"]["model"]["kernels"], plan["kernels"]["value"] = "hub", "of the hub"

    change(runs / "lora", with_derived)
    notes = list[str]()
    plan = read_plan(RunFolder(runs / "lora"), notes)
    assert (plan.config.model.kernels, plan.kernels.value) == ("auto", "none") and len(notes) == 1


def test_unknown_settings_are_ignored_in_a_finished_run_and_refused_on_resume(runs, capsys):
    for name in ("lora", "finished"):
        with_setting(runs / name, "task.moon", "full")
        with_setting(runs / name, "data.packing", "sometimes")
    message = refusal(runs / "lora", capsys)
    assert "plan.json is not a plan of this version: config." in message and "start a new run with" in message
    assert main(ASK) == 0
    shown = capsys.readouterr()
    assert ANSWER in shown.out
    assert 'task.moon = "full" is ignored' in shown.err and 'data.packing = "sometimes" is ignored' in shown.err
