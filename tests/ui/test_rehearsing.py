"""The rehearsal dialog: parts as they are over, what came of them, the remedy; and what a rehearsal would disturb."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from tests.ui.bare_app import seen
from tui_trainer.bench.rehearsal import RehearsalProcess
from tui_trainer.ui.own_processes import Measurement
from tui_trainer.ui.screens.config_dialogs import RehearsalDialog
from tui_trainer.ui.spans import UNICODE
from tui_trainer.units import MIB

PATCH = {"training.per_device_train_batch_size": 2}
TOLD = [
    {"part": "loading"},
    {"part": "loading", "seconds": 4.0},
    {"part": "largest micro-batch"},
    {"part": "largest micro-batch", "seconds": 2.0, "peak_memory_bytes": 300 * MIB, "rows": 2, "longest": 458,
     "row": 18, "begins": "The sheep", "failed": "out of memory with 8 rows in a pass, not with 2"},
    {"part": "typical steps"},
]  # fmt: skip
RESULT = {
    "is_ready": False, "faults": [{"part": "largest micro-batch", "message": "out of memory", "patch": PATCH}],
    "peak_memory_bytes": 300 * MIB, "planned_memory_bytes": 200 * MIB, "step_seconds": 0.5, "total_steps": 100,
    "run_seconds": [60.0, 50.0, 70.0], "planned_seconds": 55.0, "disk_bytes": 5 * MIB, "disk_free_bytes": 900 * MIB,
}  # fmt: skip


class FakeProcess(RehearsalProcess):
    """A process that has told so much."""

    def __init__(self, told, *, alive):
        self.lines, self.part, self.result, self.reason = [], "loading", None, ""
        self.alive, self.is_cancelled = alive, False
        for one in told:
            self._hear(json.dumps(one))

    def cancel(self):
        self.is_cancelled = True


@pytest.fixture
def bench():
    applied = []
    bench = SimpleNamespace(run_is_alive=False, glyphs=UNICODE, applied=applied, document=None)
    bench.rehearsals = Measurement(bench, "a rehearsal", "RehearsalProcess")
    bench.apply = lambda patch, label: applied.append(patch) or ()
    return bench


def test_parts_are_shown_as_they_are_over_and_it_can_be_cancelled(bench):
    bench.rehearsals.process = FakeProcess(TOLD, alive=True)
    shown, cancelled = seen(RehearsalDialog(bench), "c", size=(100, 30))
    assert "FAILED: out of memory with 8 rows in a pass, not with 2" in shown and "300.0 MiB" in shown
    assert "row 18, which begins 'The sheep'" in shown and "typical steps ..." in shown and "close, it goes on" in shown
    assert "ending ..." in cancelled


def test_what_works_is_applied_with_one_key(bench):
    bench.rehearsals.process = FakeProcess([*TOLD, RESULT], alive=False)
    shown = seen(RehearsalDialog(bench), "a", size=(100, 30))[0]
    assert "training.per_device_train_batch_size = 2 works here" in shown and "a apply what works" in shown
    assert "the run of 100 steps takes about" in shown and bench.applied == [PATCH]


def test_a_process_that_fails_says_why(bench):
    bench.rehearsals.process = FakeProcess([], alive=False)
    bench.rehearsals.process._hear("tui-trainer: data.path is not there")
    assert "data.path is not there" in seen(RehearsalDialog(bench))[0]


def test_none_beside_a_run_and_none_without_a_config(bench):
    assert bench.rehearsals.start() == "the config is still being read"
    bench.document = SimpleNamespace(loaded=None)
    assert bench.rehearsals.start() == "the config has a problem, which comes first"
    bench.run_is_alive = True
    assert bench.rehearsals.start().startswith("a run trains") and bench.rehearsals.process is None


def test_its_end_is_a_notice_and_it_ends_with_the_screens(bench):
    told = []
    bench.tell_end = lambda page, words, role: told.append((words, role))
    bench.config_changed = lambda: told.append("planned anew")
    bench.rehearsals.process = process = FakeProcess([*TOLD, {**RESULT, "is_ready": True, "faults": []}], alive=True)
    process.poll = lambda: True
    bench.rehearsals.poll()
    assert told == [("nothing failed: the run can be started", "good"), "planned anew"]
    process.end = process.cancel
    bench.rehearsals.end()
    assert process.is_cancelled
