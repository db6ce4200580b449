"""The dialog of tune: what is tried, the table, the winner with one key; and what it would disturb."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest

from tests.ui.bare_app import seen
from tests.ui.tuned import PATCH, RESULT, FakeTune
from tui_trainer.ui.command_dialogs import offer
from tui_trainer.ui.own_processes import Measurement
from tui_trainer.ui.screens.config_dialogs import TuneDialog
from tui_trainer.ui.spans import UNICODE
from tui_trainer.ui.workbench import Workbench


@pytest.fixture
def bench():
    applied, told = [], []
    bench = SimpleNamespace(run_is_alive=False, glyphs=UNICODE, applied=applied, told=told, document=None, opened=[])
    bench.rehearsals = Measurement(bench, "a rehearsal", "RehearsalProcess")
    bench.tunings = Measurement(bench, "tune", "TuneProcess")
    bench.measuring = SimpleNamespace(alive=False, what="the measuring")
    bench.measurements = (bench.measuring, bench.rehearsals, bench.tunings)
    bench.measurement_beside = partial(Workbench.measurement_beside, bench)
    bench.apply = lambda patch, label: applied.append((patch, label)) or ()
    bench.current, bench.tell = 1, lambda words, role: told.append((words, role))
    bench.tell_end = lambda page, words, role: told.append((words, role))
    bench.config_changed = lambda: told.append("planned anew")
    bench.app = SimpleNamespace(open=bench.opened.append)
    return bench


def test_what_is_tried_is_shown_and_it_can_be_cancelled(bench):
    bench.tunings.process = FakeTune(is_over=False)
    shown, cancelled = seen(TuneDialog(bench), "c", size=(100, 30))
    assert "measuring group_by_length = true ..." in shown and "32 rows x 1: 300.0 MiB" in shown
    assert "a warning of a library" not in shown and "close, it goes on" in shown and "ending ..." in cancelled


def test_the_table_is_shown_and_the_winner_is_applied_with_one_key(bench):
    bench.tunings.process = FakeTune(is_over=True)
    shown = seen(TuneDialog(bench), "a", size=(200, 50))[0]
    assert "group_by_length = true, 8 rows x 4" in shown and "1.62" in shown and "a apply the fastest" in shown
    assert bench.applied == [(PATCH, "what tune found")]
    assert "tokens/s" in shown or "speed-up" in shown
    assert "others used 0.4 to 1.2 of 2 cores meanwhile" in shown


def test_where_the_default_is_best_there_is_nothing_to_apply(bench):
    process = bench.tunings.process = FakeTune(is_over=True)
    process.result = {**RESULT, "patch": {}, "sentence": "the default is best here"}
    shown = seen(TuneDialog(bench), "a", size=(100, 30))[0]
    assert "the default is best here" in shown and "apply" not in shown and not bench.applied


def test_a_process_that_fails_says_why(bench):
    process = bench.tunings.process = FakeTune(is_over=False)
    process.alive = False
    process._hear("tui-trainer: data.path is not there")
    process._end(2)
    assert "data.path is not there" in seen(TuneDialog(bench))[0]
    assert process.verdict == ("not tuned: data.path is not there", False)


def test_its_end_is_a_notice_and_a_run_ends_it(bench):
    process = bench.tunings.process = FakeTune(is_over=True)
    process.poll = lambda: True
    bench.tunings.poll()
    assert bench.told == [(RESULT["sentence"], "good"), "planned anew"]
    process = bench.tunings.process = FakeTune(is_over=False)
    bench.run_is_alive = True
    bench.tunings.poll()
    assert process.is_cancelled and bench.told[-1][0].startswith("tune ends: a run trains")


def test_one_measurement_at_a_time(bench):
    bench.rehearsals.process = SimpleNamespace(alive=True)
    offer(TuneDialog(bench), bench)
    assert bench.told == [("a rehearsal goes on: each would disturb the other", "warn")] and not bench.opened
    bench.rehearsals.process = None
    bench.measuring.alive = True
    offer(TuneDialog(bench), bench)
    bench.measuring.alive = False
    offer(TuneDialog(bench), bench)
    assert [words for words, _ in bench.told[1:]] == [
        "the measuring goes on: each would disturb the other", "the config is still being read"
    ]  # fmt: skip
    bench.tunings.process = FakeTune(is_over=False)
    offer(TuneDialog(bench), bench)
    assert len(bench.opened) == 1
