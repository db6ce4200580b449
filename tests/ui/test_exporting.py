"""The export dialog: what is offered, how far it is, what came of it, and what it stands in the way of."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.trained_runs import train
from tests.ui.bare_app import seen
from tests.ui.canned import CERTIFICATE_WORDS, CHOICES, RUNS
from tui_trainer.errors import FolderError
from tui_trainer.launching import export_process as launching
from tui_trainer.launching.export_process import ExportOutcome, ExportProcess
from tui_trainer.runs.folder import RunFolder
from tui_trainer.ui.export_dialogs import ExportDialog
from tui_trainer.ui.own_processes import Exports
from tui_trainer.ui.screens.runs import refusal
from tui_trainer.ui.spans import UNICODE
from tui_trainer.ui.starting import offer_quit
from tui_trainer.ui.workbench import Workbench

FOLDER = RunFolder(Path("/data/runs/chat"))


class FakeProcess:
    """An export as it is told to be."""

    def __init__(self, run: RunFolder, name: str, outcome: ExportOutcome | None = None) -> None:
        self.run, self.name, self.outcome = run, name, outcome
        self.progress = ("writing", 3.0, 12.0, "tensors")
        self.is_cancelled, self.seconds = False, 75.0

    alive = property(lambda self: self.outcome is None)
    cancel = ExportProcess.cancel
    poll = ExportProcess.poll

    def let_go(self) -> None:
        """It outlives the screens."""

    def _signal(self, number: int) -> None:
        self.outcome = ExportOutcome(is_good=False, words=("cancelled; nothing is left of it",))


@pytest.fixture
def bench(monkeypatch):
    """As much of a workbench as the dialog needs; work is done at once."""
    monkeypatch.setattr(launching, "choices", lambda folder: CHOICES)
    monkeypatch.setattr(launching, "free_bytes", lambda folder: 13 << 30)
    bench = SimpleNamespace(
        run_is_alive=False, glyphs=UNICODE,
        background=SimpleNamespace(do=lambda name, work, done: done(work())),
    )  # fmt: skip
    bench.exports = Exports(bench)
    bench.exports.start = lambda folder, name: setattr(bench.exports, "process", FakeProcess(folder, name))
    return bench


def test_formats_are_listed_with_what_they_need_and_why_not(bench):
    first, last = seen(ExportDialog(bench, FOLDER), "down", size=(80, 24))
    assert re.search(r"\u25b8 adapter .* ~4.0 MiB", first) and re.search(r"gguf .* not possible", first)
    assert "13.0 GiB are free" in first and "takes about 41 s" in first and "takes about" not in last
    assert "Enter export" in first
    assert "llama.cpp's converter is not on this machine" in last and "Enter export" not in last


def test_enter_begins_and_c_cancels_and_another_run_waits(bench):
    _, begun, cancelled = seen(ExportDialog(bench, FOLDER), "enter", "c")
    assert (
        "is being written" in begun
        and "writing, 3 of 12 tensors" in begun
        and "1 min 15 s so far" in begun
        and "Esc close, it goes on" in begun
    )
    assert "cancelled; nothing is left of it" in cancelled and "Enter export" in cancelled
    bench.exports.process = FakeProcess(RunFolder(Path("/data/runs/other")), "onnx")
    assert "other is being exported to onnx: one at a time" in seen(ExportDialog(bench, FOLDER))[0]


@pytest.mark.parametrize(("is_good", "words"), [(True, "\u2713 as it was trained"), (False, "not as it was trained")])
def test_the_certificate_stands_there_when_the_dialog_is_opened_again(bench, is_good, words):
    outcome = ExportOutcome(is_good=is_good, words=CERTIFICATE_WORDS, folder="/data/runs/chat/export/merged")
    bench.exports.process = FakeProcess(FOLDER, "merged", outcome)
    text = seen(ExportDialog(bench, FOLDER))[0]
    assert words in text and "held-out loss 1.4210 -> 1.4210" in text and "/data/runs/chat/export/merged" in text
    assert "\u25b8 merged" in text
    assert re.search(rf"merged .* {'exported' if is_good else 'failed'}", text)


def test_a_run_that_cannot_be_exported_says_so(bench, monkeypatch):
    def refuse(folder):
        raise FolderError("this run has no final model yet", where="chat")

    monkeypatch.setattr(launching, "choices", refuse)
    assert "this run has no final model yet" in seen(ExportDialog(bench, FOLDER))[0]


def test_its_end_is_a_notice_and_a_run_that_is_being_exported_stays_where_it_is():
    bench = Workbench(None, None, UNICODE)
    for outcome, words, role in (
        (ExportOutcome(is_good=True, words=(), folder="/data/x"), "chat is exported to merged: /data/x", "good"),
        (
            ExportOutcome(is_good=False, words=("the disk is full",)),
            "chat is not exported to merged: the disk is full",
            "bad",
        ),
    ):
        bench.exports.process = FakeProcess(FOLDER, "merged")
        assert bench.exports.is_of(FOLDER.root) and not bench.exports.is_of(Path("/data/runs/other"))
        bench.exports.process.poll = lambda outcome=outcome: setattr(bench.exports.process, "outcome", outcome) or True
        bench.exports.poll()
        assert bench.notice == (words, role) and not bench.exports.is_of(FOLDER.root)


def test_only_a_finished_run_is_exported():
    for one in RUNS:
        assert (refusal("export", one, "S") == "") == (one.status == "finished"), one.name


def test_leaving_asks_while_an_export_is_written():
    asked = []
    left = []
    app = SimpleNamespace(ask=lambda *question: asked.append(question), leave=lambda: left.append(True))
    background = SimpleNamespace(is_busy=lambda name: False)
    bench = SimpleNamespace(run_is_ours_and_alive=False, app=app, background=background)
    bench.exports = Exports(bench)
    bench.exports.process = FakeProcess(FOLDER, "onnx")
    offer_quit(bench)
    ((heading, rows, answers),) = asked
    assert heading == "Leave?" and "chat is being exported to onnx" in rows[0]
    {key: do for key, _, do in answers}["c"]()
    assert left and bench.exports.process.is_cancelled


@pytest.mark.e2e
def test_a_run_is_exported_by_keyboard(open_terminal, tmp_path, environment, monkeypatch):
    monkeypatch.setenv("TUI_TRAINER_HOME", environment["TUI_TRAINER_HOME"])
    (tmp_path / "work").mkdir()
    folder = train(tmp_path / "work", "sequence_classification", {"output.name": "kinds"})
    terminal = open_terminal(size=(80, 24))
    terminal.wait_for("1 Hardware", "threads")
    terminal.press("5")
    terminal.wait_for(folder.name[:4], "finished", "held-out loss")
    terminal.press("x")
    terminal.wait_for(f"Export {folder.name}", "adapter", "onnx", " are free")
    terminal.press("enter")
    terminal.wait_for("is being written")
    terminal.press("escape")
    terminal.wait_for("Enter open", gone="is being written")
    terminal.wait_for("is exported to onnx", seconds=240)
    assert (folder.root / "export/onnx/certificate.json").is_file()
    terminal.press("x")
    terminal.wait_for("as it was trained", "held-out loss", "exported")
    terminal.press("escape")
    terminal.wait_for("Enter open", gone="as it was trained")
    terminal.press("q")
    assert terminal.wait_for_end() == 0
