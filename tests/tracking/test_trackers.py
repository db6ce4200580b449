"""Trackers get the events of the journal, and their failures do not change the run."""

import json
import os
import sys
import threading
from dataclasses import replace
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from tests.runs.journals import end, held_out, read_all, run_of, start, step_done, steps
from tests.training.test_requests import figures
from tui_trainer.cli import main
from tui_trainer.config.load import Request
from tui_trainer.errors import EXIT_DONE
from tui_trainer.launching import run_lifecycle as launching
from tui_trainer.launching.open_run import load_config
from tui_trainer.planning.conflicts import setting_problems
from tui_trainer.runs import events as e
from tui_trainer.runs.journal import JournalWriter
from tui_trainer.runs.lock import RunLock
from tui_trainer.tracking import feeder as feeding
from tui_trainer.tracking import reader
from tui_trainer.tracking.contract import find_tracker
from tui_trainer.tracking.feeder import Feeder, event_metrics
from tui_trainer.worker.child import Child

# A library that raises at each call, and one that hangs, in the place of real ones.
RAISES = "def init(*_, **__):\n    raise ConnectionError('no network')\n"
HANGS = "import time\ndef Settings(**_):\n    pass\ndef init(*_, **__):\n    time.sleep(600)\n"


class FakeTracker:
    name = "fake"

    def __init__(self, failures=0):
        self.failures, self.calls, self.rows = failures, [], []

    def _call(self, name):
        self.calls.append(name)
        if self.failures:
            self.failures -= 1
            raise ConnectionError("no network")

    def begin(self, run):
        self._call("begin")
        self.run = run
        return "look here"

    def log(self, rows):
        self._call("log")
        self.rows += [(row.step, row.values) for row in rows]

    def end(self, status):
        self._call("end")
        self.status = status

    @property
    def losses(self):
        return [(step, values["train/loss"]) for step, values in self.rows if "train/loss" in values]


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(feeding, "_FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(feeding, "_LONGEST_PAUSE_SECONDS", 0.0)


def feeder_of(folder, tracker, messages=None, **more):
    return Feeder(folder, tracker, lambda *words: messages is not None and messages.append(words), **more)


def test_a_tracker_gets_parameters_metrics_and_the_end(tmp_path):
    gauges = e.GaugesRead(step=2, process_memory_bytes=2**30, gpus=[e.GpuReading(index=0, power_watts=300.0)])
    folder = run_of(tmp_path, "a", start(), *steps(1, 3), held_out(3, 1.5, f1=0.5), gauges, end(3))
    folder.plan.write_text(json.dumps({"config": {"training": {"seed": 7}}}))
    tracker, messages = FakeTracker(), []
    assert feeder_of(folder, tracker, messages).end("finished")
    assert tracker.calls == ["begin", "log", "end"] and tracker.status == "finished" and messages == [("look here", "")]
    assert tracker.run.params == {"training.seed": 7} and not tracker.run.is_resumed
    assert tracker.losses == [(1, 4.999), (2, 4.998), (3, 4.997)]
    assert tracker.rows[0][1]["train/learning_rate"] == 1e-4
    assert tracker.rows[3] == (
        3,
        {"eval/loss": 1.5, "eval/f1": 0.5},
    )
    assert tracker.rows[4][1] == {"gauges/process_memory_gib": 1.0, "gauges/gpu_power_watts": 300.0}


def test_scores_of_a_step_are_tracked_with_its_loss():
    row = event_metrics(replace(step_done(1), sums={"accuracy": 3.0, "loss": 9.0}, counts={"accuracy": 4, "loss": 1}))
    assert (row.values["train/accuracy"], row.values["train/loss"]) == (0.75, 2.0)


def test_figures_that_are_not_finite_are_left_out():
    row = event_metrics(replace(step_done(1), loss_sum=float("nan"), grad_norm=float("inf")))
    assert (
        "train/loss" not in row.values and "train/grad_norm" not in row.values and "train/learning_rate" in row.values
    )
    assert (
        event_metrics(e.EvalDone(loss_sum=0, tokens=0, loss=float("nan"), seconds=0, scheduled=True, best=False))
        is None
    )


def test_a_resumed_run_continues_the_same_tracker_run(tmp_path):
    folder = run_of(tmp_path, "a", start(), *steps(1, 8), end(8, "stopped"))
    first, second = FakeTracker(), FakeTracker()
    assert feeder_of(folder, first).end("stopped")
    with JournalWriter(folder.journal) as journal:
        journal.append(start(resumed=5), *steps(6, 9), end(9))
    assert feeder_of(folder, second).end("finished")
    assert second.run.run_id == first.run.run_id and second.run.is_resumed and second.run.from_step == 5
    assert [step for step, _ in second.losses] == [6, 7, 8, 9] and len(first.losses) == 8
    third = FakeTracker()
    assert feeder_of(folder, third).end("finished") and third.calls == []


def test_rows_of_a_failed_tracker_are_handed_over_later(tmp_path, at_once):
    folder = run_of(tmp_path, "a", start(), *steps(1, 2))
    first, messages = FakeTracker(), []
    feeder = feeder_of(folder, first, messages)
    feeder.feed()
    first.failures = 100
    with JournalWriter(folder.journal) as journal:
        journal.append(*steps(3, 4), end(4))
    for _ in range(20):
        feeder.feed()
    assert feeder.end("finished") and feeder.given_up and first.calls.count("log") == 7
    assert [message for message, _ in messages[1:]] == [
        "could not send data to fake: no network",
        "gave up sending data to fake: no network",
    ]
    assert "tui-trainer track a --to fake" in messages[-1][1]
    later = FakeTracker()
    assert feeder_of(folder, later).end("finished")
    assert [step for step, _ in later.losses] == [3, 4] and later.run.is_resumed and later.run.from_step == 2


def test_a_tracker_that_recovers_gets_each_row_once_and_is_reported_once(tmp_path, at_once):
    for failures in (1, 3):
        folder = run_of(tmp_path, f"failing {failures}".replace(" ", "-"), start(), *steps(1, 4), end(4))
        tracker, messages = FakeTracker(failures), []
        feeder = feeder_of(folder, tracker, messages)
        assert [feeder.end("finished") for _ in range(failures + 1)] == [False] * failures + [True]
        assert [step for step, _ in tracker.losses] == [1, 2, 3, 4]
        assert sum("could not send data" in message for message, _ in messages) == 1


def test_a_hanging_tracker_delays_neither_the_others_nor_the_end(tmp_path):
    folder = run_of(tmp_path, "a", start(), *steps(1, 4), end(4))
    hung, good, messages = FakeTracker(), FakeTracker(), []
    let_go, has_returned = threading.Event(), threading.Event()

    def hang(_):
        let_go.wait(1500)
        has_returned.set()

    hung.begin = hang
    reader.follow(
        [feeder_of(folder, hung, messages), feeder_of(folder, good)],
        is_alive=lambda: not messages or len(good.losses) < 4,
        status=lambda: "finished",
        poll_seconds=0.02,
        hangs_after_seconds=0.1,
        last_seconds=0.1,
    )
    assert not has_returned.is_set()
    let_go.set()
    assert [step for step, _ in good.losses] == [1, 2, 3, 4]
    assert messages[0] == ("fake does not answer", "training continues without it")


@pytest.mark.full
def test_failing_and_hanging_trackers_do_not_change_a_run(tiny_run, tmp_path, monkeypatch):
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    (libraries / "trackio.py").write_text(RAISES)
    (libraries / "wandb.py").write_text(HANGS)
    monkeypatch.syspath_prepend(str(libraries))
    monkeypatch.setenv("PYTHONPATH", str(libraries))
    children = []

    class Noted(Child):
        def _spawn(self, *arguments, **options):
            children.append(super()._spawn(*arguments, **options))
            return children[-1]

    monkeypatch.setattr(launching, "Child", Noted)
    plain, _ = tiny_run("plain")
    assert not children and not (plain.root / "tracking").exists()

    def wait_for_its_report(run):
        """Hold the short run until its reader has reported."""
        append = run.journal.append_from_thread
        arrived = threading.Event()

        def noted(event):
            append(event)
            arrived.set()

        run.journal.append_from_thread = noted
        finish = run.journal.append

        def hold(*events):
            if any(isinstance(event, e.PhaseChanged) and event.phase == "saving" for event in events):
                assert arrived.wait(1500), (run.folder.logs / "tracking.txt").read_text()
            finish(*events)

        run.journal.append = hold

    tracked, outcome = tiny_run("tracked", {"logging.report_to": "trackio, wandb"}, wait_for_its_report)
    assert outcome.exit_code == EXIT_DONE and figures(tracked) == figures(plain) and len(figures(plain)) == 10
    problems = [event for event in read_all(tracked.journal) if isinstance(event, e.RunProblem)]
    assert [(one.kind, one.message) for one in problems] == [("tracker", "could not send data to trackio: no network")]
    # Trackers run in a process of their own.
    (child,) = children
    assert child.pid != os.getpid() and os.getsid(child.pid) == child.pid
    child.kill()
    child.wait(1500)


@pytest.mark.full
def test_a_reader_that_cannot_be_started_is_a_problem(tiny_run, monkeypatch):
    def refuse(*_, **__):
        raise OSError("no memory")

    monkeypatch.setattr(launching, "Child", refuse)
    monkeypatch.setattr("tui_trainer.planning.conflicts.tracker_problems", lambda _: [])
    folder, outcome = tiny_run("tracked", {"logging.report_to": "tensorboard"})
    assert outcome.exit_code == EXIT_DONE
    (problem,) = [event for event in read_all(folder.journal) if isinstance(event, e.RunProblem)]
    assert problem.message == "no tracker could be started: no memory" and "tui-trainer track tracked" in problem.hint


def test_unknown_and_missing_trackers_are_refused_before_the_start(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    loaded = load_config(Request(assignments=("logging.report_to=wandp, mlflow",)))
    first, second = setting_problems(loaded)
    assert first.key == "logging.report_to" and first.hint == "did you mean wandb?"
    assert second.message == "mlflow is not installed here" and "uv pip install mlflow" in second.hint


def test_a_run_or_tracker_that_cannot_be_used_is_refused(tmp_path, capsys, monkeypatch, subtests):
    run_of(tmp_path, "a", start(), *steps(1, 2), end(2))
    (tmp_path / "wandb.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    with RunLock(run_of(tmp_path, "alive", start()).lock):
        for words, message in (
            (["a"], "no tracker was given"),
            (["a", "--to", "tensorbord"], "did you mean tensorboard?"),
            (["nothing", "--to", "wandb"], "no run 'nothing'"),
            (["alive", "--to", "wandb"], "is active"),
        ):
            with subtests.test(" ".join(words)):
                assert main(["track", *words]) == 2
                assert message in capsys.readouterr().err


def test_an_ended_run_is_handed_over_by_a_command(tmp_path, capsys, monkeypatch):
    folder = run_of(tmp_path, "a", start(), *steps(1, 2), end(2))
    failures, logged, finished = [ConnectionError("no network")], [], []

    def init(**_):
        if failures:
            raise failures.pop()

    library = ModuleType("trackio")
    library.__spec__ = ModuleSpec("trackio", None)
    library.init, library.finish = init, lambda: finished.append(True)
    library.log = lambda values, step=None: logged.append((step, values))
    monkeypatch.setitem(sys.modules, "trackio", library)
    assert main(["track", "a", "--to", "trackio"]) == 1
    shown = capsys.readouterr()
    assert shown.err.count("gave up sending data to trackio: no network") == 1 and not shown.out
    assert main(["track", "a", "--to", "trackio"]) == 0
    assert "trackio: 4 events uploaded" in capsys.readouterr().out
    assert [step for step, values in logged if "train/loss" in values] == [1, 2]
    assert logged[-1] == (None, {"status/finished": 1.0})
    assert main(["track", "a", "--to", "trackio"]) == 0
    assert "trackio is up to date" in capsys.readouterr().out and len(finished) == 1
    assert {path.stat().st_mode & 0o077 for path in (folder.root / "tracking").rglob("*")} == {0}


@pytest.mark.full
def test_tensorboard_shows_a_resumed_run_as_one_curve(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = run_of(tmp_path, "a", start(), *steps(1, 8), held_out(8, 1.5), end(8, "stopped"))
    assert feeder_of(folder, find_tracker("tensorboard")).end("stopped")
    with JournalWriter(folder.journal) as journal:
        journal.append(start(resumed=5), *(step_done(step, 1.0) for step in range(6, 10)), end(9))
    assert feeder_of(folder, find_tracker("tensorboard")).end("finished")
    found = accumulator.EventAccumulator(str(folder.root / "tracking" / "tensorboard")).Reload()
    losses = [(one.step, round(one.value, 3)) for one in found.Scalars("train/loss")]
    assert losses == [
        *((step, round(5 - step / 1000, 3)) for step in range(1, 6)),
        (6, 1.0),
        (7, 1.0),
        (8, 1.0),
        (9, 1.0),
    ]
    assert {"params", "status"} <= set(found.Tags()["tensors"])
