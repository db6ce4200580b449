"""Questions before a run starts, resumes, stops or is detached, and before the program quits."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from tui_trainer.config.changes import Change, Patch, settings_words
from tui_trainer.config.load import all_settings
from tui_trainer.data.sources.resolved import ResolvedData
from tui_trainer.errors import EXIT_STOPPED, ConfigError, InputError, Problem, RunError
from tui_trainer.launching import open_run as opening
from tui_trainer.launching.open_run import OpenRun, name_prefix, start_problems
from tui_trainer.lines.plan_and_events import REHEARSAL_SECONDS
from tui_trainer.methods.tuning_methods import TUNING_METHODS
from tui_trainer.planning.plan import Plan
from tui_trainer.planning.summary import threads_words, tuning_words
from tui_trainer.runs.comparison import settings_of, value_words
from tui_trainer.runs.folder import RunFolder, read_plain_file
from tui_trainer.runs.wording import batch_words, high_rate_words
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.background import GivenUp
from tui_trainer.ui.dialogs import Answer, ChoiceDialog, Row
from tui_trainer.ui.screens.config_dialogs import rehearse
from tui_trainer.ui.screens.config_view import figure_texts, memory_budget
from tui_trainer.ui.spans import Line, change_lines, labelled, pad, wrapped
from tui_trainer.ui.terminal import ends_with_its_connection
from tui_trainer.ui.watch import CurrentRun, WatchedRun
from tui_trainer.ui.workbench import DETACHING, OPENING, TRAIN_PAGE, ExitReason, Workbench
from tui_trainer.units import format_bytes, quantity

_LABEL = 12
_PROBLEM_CELLS = 70
_CONFIG_LIMIT_BYTES = 1 << 20
_NOT_YET, LEAVE = "Cannot start yet", "Quit?"
_WAIT_SECONDS = 0.2


def offer_start(bench: Workbench) -> None:
    if _is_refused_now(bench):
        return
    if bench.document is None or bench.is_planning or (bench.plan and bench.is_checking):
        # A new user may press the key at once. The question follows as soon as plan and checks are ready.
        bench.start_wanted = True
        bench.show_notice(bench.start_words, "dim")
        return
    bench.start_wanted = False
    config, plan = bench.document.loaded, bench.plan
    problems = bench.plan_problems if plan is None else start_problems(config) if config else ()
    if plan is None or problems:
        show_problems(bench, _NOT_YET, problems)
        return
    title = f"Start {one_line(plan.config.output.name or (name_prefix(config) if config else plan.recipe))}?"
    answers = [("enter", "start", lambda: start(bench)), ("c", "change settings", lambda: bench.app.show_setting(""))]
    if (plan.duration_seconds.value or 0) > REHEARSAL_SECONDS:
        answers.append(("d", "rehearse first", lambda: rehearse(bench)))
    if bench.checks_mark()[0]:
        answers.append(("l", "checklist", lambda: bench.go(2)))
    bench.app.ask(title, _what_would_happen(bench, plan), answers)


def _is_refused_now(bench: Workbench) -> bool:
    """Return whether no run can start now because one is active, starting or being detached, and report this."""
    reason = bench.active_run_words if bench.is_training_here else ""
    for lane, message in ((OPENING, "a run is being started"), (DETACHING, "a run is being detached")):
        reason = reason or message * bench.background.is_busy(lane)
    if reason:
        bench.show_notice(reason, "warn")
    return bool(reason)


def offer_lines(plan: "Plan") -> list[str]:
    plan_figures = figure_texts(plan)
    return [
        f"{one_line(plan.recipe or plan.config.task.type)}: {plan_figures['steps']} steps "
        f"of {batch_words(plan)} from {one_line(plan.config.data.path)}",
        f"{plan_figures['time']}, {plan_figures['memory']} of memory, {plan_figures['disk']} of disk",
        ", ".join(text for _, text in _model_rows(plan)),
    ]


def _model_rows(plan: "Plan") -> list[tuple[str, str]]:
    """Return labelled rows about the model and its trainable weights. A model from scratch has no name."""
    model, tuning = plan.config.model, plan.config.tuning
    if not model.model_name_or_path or model.init == "scratch":
        return [("model", tuning_words(plan))]
    method_text = f"{TUNING_METHODS[tuning.method].label} r {tuning.r}: " if tuning.has_adapter else ""
    return [("model", one_line(Path(model.model_name_or_path).name)), ("trains", f"{method_text}{tuning_words(plan)}")]


def _device_words(plan: "Plan") -> str:
    if plan.device == "cuda":
        prefix = f"{plan.processes.value} x " if plan.processes.value > 1 else ""
        return f"{prefix}{one_line(plan.device_name)} in {plan.precision.value}"
    return f"CPU, {threads_words(plan)}, in {plan.precision.value}"


def _what_would_happen(bench: Workbench, plan: "Plan") -> list[Line]:
    plan_figures = figure_texts(plan)
    free_bytes = memory_budget(plan, bench.hardware, bench.memory_free_bytes).free_bytes
    unused_columns = bench.document.loaded.unused_columns if bench.document and bench.document.loaded else ()
    rows = [
        ("steps", f"{plan_figures['steps']}, each with {batch_words(plan)}"),
        ("time", plan_figures["time"]),
        ("memory", f"{plan_figures['memory']} of {format_bytes(free_bytes)} free"),
        ("disk", f"{plan_figures['disk']} in {one_line(plan.config.output.runs_dir)}"),
        ("data", one_line(plan.config.data.path)),
        *[("not used", one_line(f"columns {', '.join(unused_columns)}"))] * bool(unused_columns),
        ("task", plan.config.task.type),
        *_model_rows(plan),
        ("device", _device_words(plan)),
    ]
    lines: list[Line] = [[(pad(label, _LABEL), "dim"), (text, "text")] for label, text in rows]
    if plan.busy_words:
        lines[2:2] = labelled("", plan.busy_words, _LABEL, _PROBLEM_CELLS, "warn")
    if rate_warning := high_rate_words(plan):
        lines += labelled("rate", rate_warning, _LABEL, _PROBLEM_CELLS, "warn")
    words = bench.background_run_words
    if bench.run is not None and bench.run_is_alive:
        words = f"{one_line(bench.run.folder.name)} is training"
    if words:
        lines += labelled("other run", f"{words}: both runs would be slower", _LABEL, _PROBLEM_CELLS, "warn")
    mark, role = bench.checks_mark()
    if mark:
        lines.append([(pad("checklist", _LABEL), "dim"), (mark, role), ("   l shows the checks", "dim")])
    if bench.has_unsaved_edits:
        message = "unsaved changes: the run stores them in its config.toml"
        lines.append([(pad("settings", _LABEL), "dim"), (message, "text")])
    if bench.draft:
        message = "without unsaved edits of before; c can restore them"
        lines.append([(pad("settings", _LABEL), "dim"), (message, "warn")])
    return [*lines, [], [("~ estimated; exact once the data is prepared", "dim")]]


def show_problems(bench: Workbench, title: str, problems: Sequence[Problem]) -> None:
    """Show why a run cannot start. Keys open the first wrong setting, or apply the suggested values."""

    def apply_values() -> None:
        if bench.apply(patch, values_text):
            offer_start(bench)

    rows = [row for problem in problems for row in ("", *wrapped(one_line(str(problem)), _PROBLEM_CELLS))]
    # A problem with a data file names no setting. The problems of the config may still name one.
    all_problems = [*problems, *(bench.document.problems if bench.document else ())]
    keys = [problem.key for problem in all_problems if problem.key in all_settings()]
    answers: list[Answer] = [("c", "open settings", lambda: bench.app.show_setting("".join(keys[:1])))]
    patch = dict(pair for problem in problems for pair in problem.suggested)
    values_text = one_line(settings_words(patch), _PROBLEM_CELLS)
    if patch:
        answers.insert(0, ("u", f"use {values_text}", apply_values))
    bench.app.ask(title, rows[1:] or ["the plan is not ready yet"], answers)


def start(bench: Workbench) -> None:
    if _is_refused_now(bench):
        return
    loaded_config = bench.document.loaded if bench.document else None
    if loaded_config is None:
        show_problems(bench, _NOT_YET, bench.plan_problems)
        return
    # The data is resolved again, because files may have been added since the plan was made.
    loaded_config, plan = replace(loaded_config, data=ResolvedData()), None if bench.is_planning else bench.plan
    # Train shows what the start waits for, instead of an earlier run.
    bench.show_run(None)
    bench.go(TRAIN_PAGE)
    open_new = partial(opening.open_new, loaded_config, plan, gpu=bench.chosen_gpu)
    _open(bench, "starting ...", open_new, lambda error: show_problems(bench, "The run did not start", error.problems))


def _open(bench: Workbench, words: str, open_run: Callable[[], OpenRun], refused: Callable[[InputError], None]) -> None:
    """Open a run in the background, as this writes to the disk and takes locks. Then execute it, or call `refused`."""

    def work() -> OpenRun | InputError:
        try:
            result = open_run()
        except InputError as error:
            bench.opened_run = error
            return error
        if bench.exit_reason in (ExitReason.QUIT, ExitReason.TERMINATED):
            result.lock.release()
            if result.is_new:
                result.folder.discard()
            raise GivenUp
        bench.opened_run = result
        return result

    def start_or_refuse(result: OpenRun | InputError) -> None:
        bench.notice = bench.opened_run = None
        # The page changes, but a dialog would stay on the old page.
        wants_to_leave = bench.app.close_question(LEAVE)
        if isinstance(result, InputError):
            refused(result)
        else:
            execute_run(bench, result)
            if wants_to_leave:
                offer_quit(bench)
        bench.app.draw()

    bench.show_notice(words, "dim")
    bench.background.run_work(OPENING, work, start_or_refuse, OPENING)


def offer_resume(bench: Workbench, folder: RunFolder | None = None) -> None:
    """Ask whether to resume a run from its newest checkpoint. Without `folder`, it is the run on the Train screen."""
    if folder is None and bench.run is not None and not bench.run.alive:
        folder = bench.run.folder
    if folder is None or _is_refused_now(bench):
        return
    gpu = bench.chosen_gpu
    note = ", exactly as if it had never stopped"
    if gpu is not None:
        device = "the CPU" if gpu == "none" else f"GPU {gpu}"
        note = f", on {device}; the result is bit-identical if the run used {device} before"
    answers = [("enter", "resume", lambda: _resume(bench, folder))]
    bench.app.ask(f"Resume {one_line(folder.name)}?", [f"The run resumes from the latest checkpoint{note}."], answers)


def _resume(bench: Workbench, folder: RunFolder) -> None:
    if not _is_refused_now(bench):
        _open(
            bench, f"opening {one_line(folder.name)} ...", partial(opening.reopen_run, folder, gpu=bench.chosen_gpu),
            lambda error: bench.show_notice(one_line(str(error)), "bad"),
        )  # fmt: skip


def execute_run(bench: Workbench, open_run: "OpenRun") -> None:
    bench.local_run = run = CurrentRun(open_run)
    bench.show_on_train(run)
    run.start()
    if not run.is_remembered:
        bench.show_notice("could not write the list of runs: set TUI_TRAINER_HOME to a writable folder", "warn")
    elif ends_with_its_connection(os.environ):
        bench.show_notice("training continues if the connection is lost: `tui-trainer attach` then shows the run")
    bench.app.poll_soon()


def offer_stop(bench: Workbench, folder: RunFolder | None = None) -> None:
    """Ask whether to save and stop a run. Without `folder`, it is the run on the Train screen."""

    def stop() -> None:
        if folder is None or (bench.run is not None and bench.run.folder == folder):
            bench.ask_run("stop")
        else:
            bench.show_notice(f"asking {folder.name} to stop ...", "dim")
            bench.background.run_work(f"stop {folder.root}", lambda: WatchedRun(folder).ask("stop"), report, "stopping")

    def report(problem: str) -> None:
        assert folder is not None, "the run on the Train screen is asked by the bench"
        bench.show_notice(problem or f"asked {folder.name} to stop", "bad" if problem else "dim")
        bench.app.draw()

    rows = ["The run saves after this step. You can resume it later with bit-identical results."]
    bench.app.ask("Save and stop?", rows, [("enter", "save and stop", stop)])


def offer_quit(bench: Workbench) -> None:
    def cancel_and_leave() -> None:
        bench.exports.cancel()
        bench.app.leave()

    def save_config() -> None:
        bench.go(1)
        bench.app.perform_action("config.save")

    def stop_and_leave() -> None:
        bench.leave_when_over = True
        bench.ask_run("stop")

    rows: list[Row]
    if bench.background.is_busy(DETACHING):
        bench.show_notice("the run is being detached: this takes a few seconds", "warn")
        return
    if bench.is_training_here:
        rows = ["A run is active in this process."]
        hint = "In the background, training continues in a process of its own, and this terminal is free. As lines, "
        hint += "training continues here. You may close the terminal in both cases: `tui-trainer attach` shows the run."
        rows.append((hint, "dim"))
        answers: list[Answer] = [
            ("d", "quit, and train in the background", lambda: detach(bench, then_leave=True)),
            ("l", "train on in this terminal, as lines", lambda: bench.app.leave(ExitReason.TRAINING_ON)),
            ("s", "save, stop and quit", stop_and_leave),
        ]
    elif bench.background.is_busy(OPENING):
        rows = ["A run is starting."]
        answers = [
            ("l", "close the screens, keep training", lambda: bench.app.leave(ExitReason.TRAINING_ON)),
            ("q", "quit without starting it", bench.app.leave),
        ]
    elif export := bench.exports.running_process:
        rows = [f"The export of {one_line(export.run.name)} to {export.name} continues without the screens."]
        if waiting_count := len(bench.exports.waiting):
            rows.append((f"{quantity(waiting_count, 'more run')} in the queue will not be exported.", "warn"))
        answers = [("q", "quit", bench.app.leave), ("c", "cancel the export and quit", cancel_and_leave)]
    elif running_tools := [tool for tool in bench.tools.values() if tool.running_process]:
        rows = [f"{one_line(tool.command_name)} is running and will end when you quit." for tool in running_tools]
        answers = [("q", "quit", bench.app.leave)]
    elif bench.has_unsaved_edits:
        rows = ["You have changed settings that are not saved."]
        rows.append(("Your changes are kept and offered at the next start.", "dim"))
        answers = [("q", "quit", bench.app.leave), ("s", "save first", save_config)]
    else:
        bench.app.leave()
        return
    bench.app.ask(LEAVE, rows, answers)


def offer_to_watch(bench: Workbench, living_runs: list[RunFolder]) -> None:
    if bench.run is not None or bench.is_attaching:
        return
    newest_run = living_runs[-1]
    rows: list[Row] = [[(one_line(newest_run.name), "bold"), (" is training on this machine.", "text")]]
    if other_count := len(living_runs) - 1:
        key = bench.app.key_of("app.go_runs")
        rows.append((f"{quantity(other_count, 'other active run')}: press {key} for the list of runs", "dim"))
    bench.app.ask("A run is active", rows, [("enter", "watch", lambda: bench.attach_to(newest_run))])


def offer_detach(bench: Workbench) -> None:
    rows: list[Row] = ["The run saves after this step, then continues bit-identically in a background process."]
    rows.append("You can then quit or update this program, or close the terminal: the run continues.")
    if bench.run is not None and bench.run.state.phase == "paused":
        rows.append(("The run is paused now; the background process continues it.", "warn"))
    rows.append(("`tui-trainer attach` shows the run again, in any number of terminals.", "dim"))
    bench.app.ask("Detach the run?", rows, [("enter", "detach", lambda: detach(bench))])


def detach(bench: Workbench, *, then_leave: bool = False) -> None:
    """Stop the run of this process at its next step, and continue the run in a separate process.

    If the new process cannot start, this process continues the run.
    """
    from tui_trainer.launching.detached import resume_detached

    run = bench.local_run
    if run is None or not run.alive or bench.background.is_busy(DETACHING):
        return
    folder, gpu = run.folder, bench.chosen_gpu

    def work() -> int | RunError | InputError | None:
        run.ask("stop")
        while run.alive:
            run.wait(_WAIT_SECONDS)
        if run.exit_code != EXIT_STOPPED or bench.exit_reason is ExitReason.TERMINATED:
            return None
        try:
            bench.detached_pid = resume_detached(folder, gpu=gpu)
        except (RunError, InputError) as error:
            bench.detached_pid = error
        return bench.detached_pid

    def watch_or_resume(result: int | RunError | InputError | None) -> None:
        if isinstance(result, int):
            bench.local_run = bench.detached_pid = None
            message = f"{folder.name} continues in process {result}: you can quit this program"
            bench.attach_to(folder, go=False, words=message)
            if then_leave:
                bench.app.leave()
        elif result is None:
            bench.show_notice(f"{folder.name} ended before it was detached", "warn")
        else:
            bench.detached_pid = None
            bench.show_notice(f"could not detach the run, so it continues here: {result}", "bad")
            _resume(bench, folder)
        bench.app.draw()

    bench.show_notice(f"saving {folder.name} before it continues in a background process ...", "dim")
    bench.background.run_work(DETACHING, work, watch_or_resume, DETACHING)


def ask_to_apply(bench: Workbench, heading: str, changes: Sequence[Change], do: Callable[[], object]) -> None:
    """Show changes of settings with their old and new values. If the user agrees, call `do`."""
    texts = [(change.key, value_words(change.old), value_words(change.new)) for change in changes]
    draw = partial(change_lines, texts, glyphs=bench.glyphs)
    bench.app.open(ChoiceDialog(heading, draw, [("enter", "apply", do)]))


def take_settings_of(bench: Workbench, folder: RunFolder, patch: Patch | None = None) -> None:
    """Load a run's settings into the config as one undoable step. If `patch` has changes to them, ask first.

    If the settings cannot be loaded, a message says why.
    """
    if bench.document is None:
        bench.show_notice("the config is still loading", "dim")
        return

    def read() -> tuple[str, list[Change]] | Exception:
        try:
            text = read_plain_file(folder.config, _CONFIG_LIMIT_BYTES).decode("utf-8")
        except (OSError, ValueError) as error:
            return error
        old_values = settings_of(folder) if patch else {}
        return text, [Change(key=key, old=old_values.get(key), new=new) for key, new in (patch or {}).items()]

    def ask(result: tuple[str, list[Change]] | Exception) -> None:
        if isinstance(result, Exception) or not result[1]:
            load(result if isinstance(result, Exception) else result[0])
        else:
            count_text = quantity(len(result[1]), "setting")
            heading = f"Use the settings of {one_line(folder.name, 40)} with {count_text} changed?"
            ask_to_apply(bench, heading, result[1], partial(load, result[0]))

    def load(text: str | Exception) -> None:
        document = bench.document
        assert document is not None, "it does not go away"
        try:
            if isinstance(text, Exception):
                raise text
            document.replace_values(
                text, f"the settings of {folder.name}", ignored_keys=("output.name",), patch=patch or {}
            )
        except (OSError, ValueError, ConfigError) as error:
            bench.show_notice(f"could not use the config.toml of the run: {one_line(str(error))}", "bad")
            bench.app.draw()
            return
        change_note = f" with {bench.patch_words(patch)}" if patch else ""
        bench.app.show_setting("")
        start_key, undo_key = bench.app.key_of("app.start"), bench.app.key_of("config.undo")
        message = f"loaded the settings of {folder.name}{change_note}; {start_key} starts a new run, {undo_key} to undo"
        bench.note_change(message, "good")

    bench.background.run_work("settings of a run", read, ask, f"settings of {folder.root}")
