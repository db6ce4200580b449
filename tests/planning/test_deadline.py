"""[targets] deadline: what it takes, whether a plan fits, and ways to make it that are kept when applied."""

import time
from datetime import UTC, datetime, timedelta

import pytest

from tests.checklist.test_checks import asked, named, seen
from tui_trainer import lines
from tui_trainer.checklist.run import patched
from tui_trainer.cli import main
from tui_trainer.config.load import Request
from tui_trainer.deadlines import clock_words, due, length_seconds
from tui_trainer.errors import ConfigError
from tui_trainer.launching.start import load_config
from tui_trainer.planning.conflicts import setting_problems
from tui_trainer.planning.deadline_ways import Switch, outlook, run_seconds, ways_to_make_it

NOON = datetime(2026, 11, 23, 12, 0).astimezone()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("18:00", datetime(2026, 11, 23, 18, 0)),
        ("07:30", datetime(2026, 11, 24, 7, 30)),
        ("2026-11-24 07:30", datetime(2026, 11, 24, 7, 30)),
        ("3h", datetime(2026, 11, 23, 15, 0)),
        ("1h30m", datetime(2026, 11, 23, 13, 30)),
        ("90 min", datetime(2026, 11, 23, 13, 30)),
        ("2d", datetime(2026, 11, 25, 12, 0)),
        ("45s", datetime(2026, 11, 23, 12, 0, 45)),
    ],
)
def test_a_deadline_is_a_time_a_day_or_a_length(text, expected):
    assert due(text, NOON) == expected.astimezone()


@pytest.mark.parametrize(("text", "hours"), [("13:00Z", 1), ("12:00Z", 24), ("20:00+09:00", 23), ("22:00+09:00", 1)])
@pytest.mark.parametrize("zone", ["America/Los_Angeles", "UTC", "Pacific/Auckland"])
def test_a_time_of_day_with_its_zone_is_the_next_one_wherever_the_machine_is(text, hours, zone, monkeypatch):
    noon = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert due(text, noon.astimezone()) - noon == timedelta(hours=hours)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_length_is_no_time():
    assert length_seconds("3h") == 10_800 and length_seconds("18:00") is None


def test_the_day_is_shown_where_it_is_another():
    assert clock_words(NOON + timedelta(hours=6), NOON) == "18:00"
    assert clock_words(NOON + timedelta(hours=20), NOON) == "2026-11-24 08:00"
    assert clock_words(NOON + timedelta(seconds=75), NOON) == "12:01:15"


@pytest.mark.parametrize("text", ["tomorrow", "25:00", "3 weeks", "2026-13-01 10:00", "0", "-3h"])
def test_what_is_no_deadline_is_one_sentence(text, capsys):
    assert main(["plan", "--set", f"targets.deadline={text}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "targets.deadline" in line and "2026-11-24 07:30" in line


def test_a_day_that_is_over_is_refused():
    (problem,) = setting_problems(load_config(Request(assignments=("targets.deadline=2020-01-01 10:00",))))
    assert problem.key == "targets.deadline" and "which is over" in problem.message


def test_times_of_toml_are_taken(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("[targets]\ndeadline = 18:00:00\n")
    assert load_config(Request(config_file=path)).config.targets.deadline == "18:00:00"


def planned(**changes):
    return seen(asked(**changes)).planned


def test_a_run_that_fits_says_by_how_much():
    plan = planned(targets__deadline="5d")
    found = outlook(plan)
    assert found.in_time and "before" in found.words
    assert any(line.startswith("deadline") and "before" in line for line in lines.plan_lines(plan))
    assert outlook(planned()) is None


def longer(seconds):
    """A deadline of a part of what the quickstart takes, so that it is missed on any machine."""
    return f"{max(round(seconds), 1)}s"


CONFIGS = {
    "epochs": {"training__max_steps": 0, "training__num_train_epochs": 20},
    "steps": {"training__max_steps": 2000},
    "samples": {"training__max_steps": 2000, "logging__sample_steps": 2},
}


@pytest.mark.parametrize("name", ["epochs", "steps", "samples"])
@pytest.mark.parametrize("share", [0.8, 0.4])
def test_each_of_three_ways_is_kept_when_applied(name, share):
    loaded = asked(**CONFIGS[name])
    whole = seen(loaded).planned
    step = whole.step_seconds.value
    deadline = longer(share * run_seconds(whole, step))
    late = seen(patched(loaded, {"targets.deadline": deadline}))
    finding = named(late, "deadline")
    assert finding.status in ("warn", "fail") and len(finding.verdict.ways) == 3
    assert finding.fix == finding.verdict.ways[0].patch
    assert len({str(way.patch) for way in finding.verdict.ways}) == 3
    for way in finding.verdict.ways:
        applied = seen(patched(late.loaded, way.patch))
        again = named(applied, "deadline")
        assert again.status == "pass", (way, again.verdict.evidence)
        assert outlook(applied.planned).seconds == pytest.approx(way.seconds, rel=0.15)


def test_what_was_measured_to_be_faster_comes_first_and_alone_where_it_is_enough():
    plan = planned(training__max_steps=0, training__num_train_epochs=20, targets__deadline="10m")
    step = plan.step_seconds.value
    whole = run_seconds(plan, step)
    switch = Switch(patch={"training.torch_compile": True}, speed_up=2.0, words="compiled (2.00 times as fast)")
    (enough, *_) = ways_to_make_it(plan, step, 0.7 * whole, [switch])
    assert enough.patch == {"training.torch_compile": True}
    (combined, *_) = ways_to_make_it(plan, step, 0.3 * whole, [switch])
    assert combined.patch["training.torch_compile"] and len(combined.patch) == 2
    assert combined.words.startswith("compiled") and " and " in combined.words


def test_there_is_no_way_where_one_step_takes_longer():
    plan = planned(targets__deadline="1s")
    assert ways_to_make_it(plan, 3600.0, 1.0, []) == ()
    assert ways_to_make_it(plan, 1.0, -5.0, []) == ()


def test_without_a_deadline_the_check_does_not_apply():
    assert named(seen(asked()), "deadline").status == "n/a"
    assert named(seen(asked(targets__deadline="9d")), "deadline").status == "pass"


def test_a_wrong_deadline_in_a_file_is_refused(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("[targets]\ndeadline = 18\n")
    with pytest.raises(ConfigError, match="such as"):
        load_config(Request(config_file=path))
