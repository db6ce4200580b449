"""From a plan to a run, and from the screens back to the shell: the questions in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tui_trainer.errors import InputError
from tui_trainer.safe_text import one_line
from tui_trainer.ui.current_run import CurrentRun
from tui_trainer.ui.dialogs import ChoiceDialog
from tui_trainer.ui.spans import Line, Role, pad
from tui_trainer.ui.workbench import TRAIN_PAGE
from tui_trainer.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from tui_trainer.planning.plan import Plan
    from tui_trainer.planning.planned import Planned
    from tui_trainer.ui.watch import WatchedRun
    from tui_trainer.ui.workbench import Workbench

TRYING = "try"
_LABEL = 12
_SHOWN_PROBLEMS = 6


def offer_start(bench: Workbench) -> None:
    """Say what would happen; one more key begins."""
    if bench.background.is_busy(TRYING):
        bench.tell("the model is still writing: it draws from the random numbers that a run needs", "warn")
        return
    if bench.document is None or bench.is_planning:
        # A new user presses `t` at once: the answer comes as soon as the plan is there.
        bench.start_wanted = True
        bench.tell("making the plan ...", "dim")
        return
    bench.start_wanted = False
    if bench.plan is None:
        bench.app.open(_refusal(bench))
        return
    title = f"Start {bench.plan.recipe or bench.plan.config.task.type}?"
    answers = [("enter", "start", lambda: start(bench)), ("c", "change settings", lambda: bench.go(1))]
    bench.app.open(ChoiceDialog(title, _what_would_happen(bench, bench.plan), answers))


def offer_lines(plan: Plan) -> list[str]:
    """The plan in a few sentences, for the screen of a run that is not there yet."""
    return [
        f"{plan.recipe or plan.config.task.type}: {_mark(plan.total_steps)}{plan.total_steps.value:,} steps "
        f"of {plan.effective_batch_size.value} rows from {one_line(plan.config.data.path)}",
        f"{_mark(plan.duration_seconds)}{format_seconds(plan.duration_seconds.value)}, "
        f"{_mark(plan.memory_bytes)}{format_bytes(plan.memory_bytes.value)} of memory, "
        f"{_mark(plan.disk_bytes)}{format_bytes(plan.disk_bytes.value)} of disk",
    ]


def _what_would_happen(bench: Workbench, plan: Plan) -> list[Line]:
    hardware = bench.hardware
    rows = [
        ("steps", f"{_mark(plan.total_steps)}{plan.total_steps.value:,} of {plan.effective_batch_size.value} rows"),
        ("time", f"{_mark(plan.duration_seconds)}{format_seconds(plan.duration_seconds.value)}"),
        (
            "memory",
            f"{_mark(plan.memory_bytes)}{format_bytes(plan.memory_bytes.value)} "
            f"of {format_bytes(hardware.memory_available_bytes)} free",
        ),
        (
            "disk",
            f"{_mark(plan.disk_bytes)}{format_bytes(plan.disk_bytes.value)} in {one_line(plan.config.output.runs_dir)}",
        ),
        ("data", one_line(plan.config.data.path)),
        ("device", f"{plan.device.upper()}, {plan.threads.value} threads"),
    ]
    lines: list[Line] = [[(pad(label, _LABEL), "dim"), (text, "text")] for label, text in rows]
    mark, role = bench.checks_mark()
    if mark:
        lines.append([(pad("checklist", _LABEL), "dim"), (mark, role), ("   3 shows them", "dim")])
    if bench.has_unsaved_edits:
        kept = "not saved to a file; the run keeps them in its config.toml"
        lines.append([(pad("settings", _LABEL), "dim"), (kept, "text")])
    return [*lines, [], [("~ estimated; the data is prepared first, then the numbers are exact", "dim")]]


def _mark(planned: Planned[int] | Planned[float]) -> str:
    return "" if planned.exact else "~"


def _refusal(bench: Workbench) -> ChoiceDialog:
    problems = bench.plan_problems[:_SHOWN_PROBLEMS]
    lines: list[Line] = [[("!! ", "bad"), (one_line(str(problem)), "text")] for problem in problems]
    answers = [("c", "to the settings", lambda: bench.go(1))]
    return ChoiceDialog("This cannot start yet", lines or [[("the plan is not made yet", "text")]], answers)


def start(bench: Workbench) -> None:
    """Open a new run and carry it out in its thread."""
    from tui_trainer.launching.start import open_new

    document = bench.document
    assert document is not None, "a plan was made from a document"
    loaded = document.loaded
    if loaded is None:
        bench.app.open(_refusal(bench))
        return
    try:
        run = CurrentRun(open_new(loaded))
    except InputError as error:
        bench.tell(one_line(str(error)), "bad")
        return
    _begin(bench, run)


def offer_resume(bench: Workbench) -> None:
    """After a stop or a failure: go on from the newest checkpoint."""
    run = bench.run
    if run is None or run.alive:
        return
    lines: list[Line] = [[("from the newest checkpoint, to the bit: as if it had never stopped", "text")]]
    title = f"Go on with {one_line(run.folder.name)}?"
    bench.app.open(ChoiceDialog(title, lines, [("enter", "go on", lambda: _resume(bench, run))]))


def _resume(bench: Workbench, before: WatchedRun) -> None:
    from tui_trainer.launching.start import open_again

    try:
        run = CurrentRun(open_again(before.folder))
    except InputError as error:
        bench.tell(one_line(str(error)), "bad")
        return
    run.poll()
    _begin(bench, run)


def _begin(bench: Workbench, run: CurrentRun) -> None:
    bench.run = run
    bench.app.run_changed()
    run.start()
    bench.go(TRAIN_PAGE)
    if not run.is_remembered:
        bench.tell("the index of runs cannot be written: `resume` needs this run's path", "warn")
    bench.app.soon()


def offer_stop(bench: Workbench) -> None:
    """Saving and stopping is asked once."""
    run = bench.run
    assert run is not None
    lines: list[Line] = [[("The run saves after this step. It can go on later, to the bit.", "text")]]
    bench.app.open(ChoiceDialog("Save and stop?", lines, [("enter", "save and stop", lambda: bench.ask_run("stop"))]))


def offer_quit(bench: Workbench) -> None:
    """Leave; with a run alive only after an answer, with unsaved edits after a word."""
    if bench.run_is_ours_and_alive:
        lines: list[Line] = [
            [("A run is alive in this process.", "text")],
            [("It trains on when this terminal is closed; `tui-trainer attach` shows it again.", "dim")],
        ]
        answers = [("s", "save, stop, then leave", lambda: stop_and_leave(bench))]
        bench.app.open(ChoiceDialog("Leave?", lines, answers))
    elif bench.has_unsaved_edits:
        lines = [[("Settings that you changed are in no file yet.", "text")]]
        lines += [[("They are kept aside and offered at the next start.", "dim")]]
        answers = [("q", "leave", bench.leave), ("s", "save first", bench.app.save_config)]
        bench.app.open(ChoiceDialog("Leave?", lines, answers))
    else:
        bench.leave()


def stop_and_leave(bench: Workbench) -> None:
    """Ask the run to stop; the screens go when it has."""
    bench.ask_run("stop")
    bench.leave_when_over = True
    role: Role = "warn"
    bench.tell("saving and stopping; the screens go when it is done", role)
