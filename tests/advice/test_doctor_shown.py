"""The verdict where people see it: as news of a running run, in the command, in lines and in the report."""

from __future__ import annotations

import json

import pytest

from tests.advice.made_up import run_events
from tests.runs.journals import run_of
from tui_trainer.advice.examine import Doctor
from tui_trainer.cli import main
from tui_trainer.config.load import Request
from tui_trainer.launching.open_run import load_config
from tui_trainer.lines.journal_printer import Follower
from tui_trainer.reporting.facts import facts_of
from tui_trainer.reporting.page import to_html, to_markdown
from tui_trainer.runs.state import RunState

WAITING = {"step": {"data_seconds": 0.3}}


@pytest.fixture
def waiting(tmp_path):
    """A run that waits for its data; its settings are those of the quickstart."""
    folder = run_of(tmp_path / "runs", "waits", *run_events(**WAITING))
    folder.config.write_text('schema_version = 1\nprofile = "quickstart"\n[output]\nname = "waits"\n')
    return folder


def follow(events, clock):
    """Yield the doctor, and the verdict where it is news, after each event. Events come one in a fifth of a second."""
    state = RunState()
    doctor = Doctor(state, now=lambda: clock[0])
    for event in events:
        state.apply(event)
        clock[0] += 0.2
        yield doctor, doctor.examine_news()


def test_the_first_verdict_is_news_and_then_each_new_leading_cause():
    events = run_events(
        steps=500, is_over=False, plan={"total_steps": 9_000},
        step={"data_seconds": lambda step: 0.0 if step < 200 else 0.5},
    )  # fmt: skip
    (first, healthy), (second, cause) = [(news.step, news.name) for _, news in follow(events, [0.0]) if news]
    assert (healthy, cause) == ("healthy", "waiting_for_data")
    assert first == pytest.approx(75, abs=15), "after 15 seconds of training"
    assert 200 < second < 400


def test_a_cause_that_leads_for_less_than_ten_seconds_is_no_news():
    step = {"data_seconds": lambda step: 3.0 if step == 100 else 0.0}
    events = run_events(steps=200, is_over=False, plan={"total_steps": 9_000}, step=step)
    looks = [(doctor.examination and doctor.examination.name, news) for doctor, news in follow(events, [0.0])]
    assert [name for name, _ in looks].count("waiting_for_data") > 10
    assert [news.name for _, news in looks if news] == ["healthy"]


def test_the_doctor_looks_at_most_once_in_two_seconds():
    clock = [0.0]
    verdicts = {id(doctor.examination): doctor.examination for doctor, _ in follow(run_events(is_over=False), clock)}
    assert 0 < len(verdicts) <= clock[0] / 2 + 1


def test_the_command_prints_the_cause_with_its_remedy_and_reason(waiting, capsys):
    assert main(["doctor", "waits"]) == 0
    out = capsys.readouterr().out
    first, _, cause, evidence, remedy, do, why, *rest = out.splitlines()
    assert first == "waits: finished, step 200 of 200"
    assert cause.split(maxsplit=2) == ["59", "%", "Training waits for its data."]
    assert evidence.strip() == "59 % of the time, 300 of 510 ms/step"
    assert remedy.strip() == "set: dataloader.num_workers = 1" and do.strip().startswith("do: ")
    assert why.strip().startswith("why: A processor that waits")
    assert rest[-1].endswith("tui-trainer doctor waits --fix OUT.toml")


def test_the_command_reports_a_healthy_run_and_one_that_is_too_short(tmp_path, capsys):
    run_of(tmp_path / "runs", "well", *run_events())
    run_of(tmp_path / "runs", "short", *run_events(steps=5))
    assert main(["doctor", "well"]) == 0 and "healthy: forward and backward 85 %" in capsys.readouterr().out
    assert main(["doctor", "short"]) == 0 and "too short to judge" in capsys.readouterr().out


def test_settings_that_no_command_applies_are_to_be_considered(tmp_path, capsys):
    events = run_events(plan={"lora_rank": 16, "learning_rate": 2e-4, "usual_learning_rate": 2e-4})
    run_of(tmp_path / "runs", "well", *events)
    assert main(["doctor", "well"]) == 0
    out = capsys.readouterr().out
    assert "consider: training.learning_rate = 0.0003" in out and "set: " not in out and "--fix" not in out


def test_the_json_has_every_finding(waiting, capsys):
    assert main(["doctor", "waits", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["step"], found["fix"]) == ("waiting_for_data", 200, {"dataloader.num_workers": 1})
    (one,) = found["findings"]
    assert one["share"] == pytest.approx(0.588, abs=0.01) and one["why"] and one["fix"] == found["fix"]


def test_lines_that_cannot_be_read_are_counted(tmp_path, capsys):
    folder = run_of(tmp_path / "runs", "well", *run_events())
    with folder.journal.open("ab") as journal:
        journal.write(b'{"event": "Step\n\x00\x00\n')
    assert main(["doctor", "well"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "skipped 2 unreadable lines of the journal"
    assert main(["doctor", "well", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["journal_damage"].startswith("skipped 2 unreadable lines")


def test_a_wrong_name_has_the_usual_hint_and_exit_code(waiting, capsys):
    assert main(["doctor", "wiats"]) == 2
    error = capsys.readouterr().err
    assert "wiats" in error and "waits" in error and len(error.splitlines()) == 1


def test_a_config_with_the_remedies_is_written_once(waiting, tmp_path, capsys):
    out = tmp_path / "next.toml"
    assert main(["doctor", "waits", "--fix", str(out)]) == 0
    assert "wrote" in capsys.readouterr().out
    loaded = load_config(Request(config_file=out))
    assert loaded.config.dataloader.num_workers == 1 and loaded.recipe.name == "quickstart"
    assert loaded.config.output.name == "", "another run has another name"
    before = out.read_bytes()
    assert main(["doctor", "waits", "--fix", str(out)]) == 2 and "exists" in capsys.readouterr().err
    assert out.read_bytes() == before


def test_no_config_is_written_when_there_is_nothing_to_set(tmp_path, capsys):
    run_of(tmp_path / "runs", "well", *run_events())
    assert main(["doctor", "well", "--fix", str(tmp_path / "next.toml")]) == 2
    assert "suggests no changes to the settings" in capsys.readouterr().err and not (tmp_path / "next.toml").exists()


def test_the_lines_of_a_run_have_the_verdict_when_it_is_reached_and_at_the_end(tmp_path, capsys):
    *events, end = run_events(**WAITING)
    folder = run_of(tmp_path / "runs", "lines", *events[:4])
    follower = Follower(folder)
    append(folder, events[4:])
    follower.show_new()
    said = [line for line in capsys.readouterr().out.splitlines() if "doctor" in line]
    assert len(said) == 1 and said[0].startswith("step 200: doctor: Training waits for its data: 59 %")
    assert said[0].endswith("computes") and "next run: dataloader.num_workers = 1" in said[0]
    append(folder, [end])
    follower.show_end()
    said = [line for line in capsys.readouterr().out.splitlines() if "doctor" in line]
    assert (
        len(said) == 1 and said[0].startswith("doctor         Training waits") and "tui-trainer doctor lines" in said[0]
    )


def append(folder, events):
    from tui_trainer.runs.events import to_line

    with folder.journal.open("a") as journal:
        journal.writelines(to_line(event) + "\n" for event in events)


def test_the_report_has_a_section_with_the_verdict(waiting, tmp_path):
    facts = facts_of(waiting)
    markdown = to_markdown(facts)
    section = markdown[markdown.index("## Diagnosis") :].partition("\n## ")[0]
    assert "59 % of the time" in section and "Training waits for its data." in section
    assert "dataloader.num\\_workers = 1" in section
    assert "Diagnosis" in to_html(facts)
    well = to_markdown(facts_of(run_of(tmp_path / "runs", "well", *run_events())))
    assert "Healthy: forward and backward 85 %" in well
