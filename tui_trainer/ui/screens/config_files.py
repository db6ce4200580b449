"""Files of the Config screen: save, save as, the user's own editor, and unsaved edits of an earlier session."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from textual.app import App

from tui_trainer.config.document import ConfigDocument
from tui_trainer.config.save import OverwriteError, document_text, line_of, marked_text, prepare_save, without_marks
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.files.local_paths import absolute_path, expand_home
from tui_trainer.launching.drafts import Draft
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.dialogs import Answer, ChoiceDialog, Row, TextDialog
from tui_trainer.ui.spans import paragraph, wrapped
from tui_trainer.ui.workbench import Workbench
from tui_trainer.units import quantity


def save(bench: Workbench, document: ConfigDocument) -> None:
    """Save the config to its file. If it has no file, ask for one."""
    if document.file is None:
        save_as(bench, document)
    else:
        _write(bench, document, document.file, lambda refusal: None)


def save_as(bench: Workbench, document: ConfigDocument) -> None:
    rows: list[Row] = [("Saves the name of the recipe and your changes to it.", "dim"), ""]
    default_path = str(document.file or absolute_path("tui-trainer.toml"))

    def write(text: str) -> str | None:
        if not (name := text.strip()):
            return "enter a file name"
        _write(bench, document, expand_home(name), dialog.finish_or_refuse)
        return None

    dialog = TextDialog("Save as", rows, default_path, write)
    bench.app.open(dialog)


def _write(
    bench: Workbench, document: ConfigDocument, path: Path, answer: Callable[[str], None], *, force: bool = False
) -> None:
    """Write the config to a file in the background. `answer` gets the reason for a failure, or an empty string."""

    write = prepare_save(document, path, force=force)

    def work() -> tuple[str, dict[str, Any]] | ConfigError:
        try:
            return write()
        except ConfigError as error:
            return error

    def reload() -> None:
        document.reload()
        bench.note_change("reloaded the config file; your unsaved edits are kept")

    def finish_write(result: tuple[str, dict[str, Any]] | ConfigError) -> None:
        failure = "" if isinstance(result, tuple | OverwriteError) else str(result.problems[0])
        answer(failure)
        if isinstance(result, OverwriteError):
            answers: list[Answer] = [("o", "overwrite", partial(_write, bench, document, path, answer, force=True))]
            if path == document.file:
                answers.append(("l", "reload, keep my edits", reload))
            bench.app.open_next(ChoiceDialog("Overwrite?", wrapped(one_line(str(result.problems[0])), 70), answers))
        elif isinstance(result, ConfigError):
            bench.show_notice(failure, "bad")
        else:
            bench.old_edits = {}
            document.mark_saved(path, *result)
            location = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
            bench.note_change(f"saved to {location}; `tui-trainer {shlex.quote(str(location))}` opens it again", "good")
        bench.app.draw()

    bench.show_notice("saving ...", "dim")
    bench.background.run_work("save", work, finish_write, "save")


class ExternalEditor:
    """The user's own editor with the settings as TOML. A text with errors is kept until corrected or discarded."""

    def __init__(self, app: App[Any], bench: Workbench, document: ConfigDocument) -> None:
        self._app, self._bench, self._document = app, bench, document
        self._unfinished = ""

    def open(self) -> None:
        bench, command = self._bench, os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
        text_before = self._unfinished or document_text(self._document)
        try:
            text_after = edit_text_in(self._app, shlex.split(command), text_before)
        except (OSError, ValueError) as error:
            message = f"could not run the editor {one_line(command)}: {error}; set EDITOR to another one"
            bench.show_notice(message, "bad")
            return
        if text_after == text_before and not self._unfinished:
            bench.show_notice("nothing changed in the editor")
            return
        text = without_marks(text_after)
        try:
            self._document.replace_values(text)
        except ConfigError as error:
            self._refuse(text, error.problems)
        else:
            self._unfinished = ""
            bench.note_change(f"applied the edited settings; {bench.app.key_of('config.undo')} to undo")

    def _refuse(self, text: str, problems: Sequence[Problem]) -> None:
        self._unfinished = marked_text(text, problems)
        rows: list[Row] = []
        for line, problem in sorted(((line_of(text, problem), problem) for problem in problems), key=itemgetter(0)):
            rows.append((one_line(str(replace(problem, where=f"line {line}"))), "bad"))
            rows += [one_line(text.split("\n")[line - 1], 70), ""]
        rows.append(("No setting was changed. Your text is kept, with the errors marked.", "dim"))
        answers: list[Answer] = [("e", "edit again", self.open), ("d", "discard", self._discard)]
        self._bench.app.ask("The edited text has errors", rows, answers)

    def _discard(self) -> None:
        self._unfinished = ""
        self._bench.show_notice("discarded the edited text; the settings are unchanged")


def edit_text_in(app: App[Any], command: list[str], text: str) -> str:
    """Run an editor on the text and return the edited text. Raises OSError or ValueError if the editor fails."""
    if not command:
        raise ValueError("no editor is set")
    if shutil.which(command[0]) is None:
        raise ValueError(f"{command[0]} was not found")
    with tempfile.TemporaryDirectory(prefix="tui-trainer-") as folder:
        path = Path(folder) / "settings.toml"
        path.write_text(text, encoding="utf-8")
        # While the application is suspended, nothing would empty the queue of repaints.
        with app.batch_update(), app.suspend():
            # Descriptors 1 and 2 are the log file, so the editor needs a descriptor of the terminal.
            terminal = sys.__stderr__.fileno() if sys.__stderr__ else 2
            arguments = [*command, str(path)]
            process = subprocess.Popen(arguments, stdin=0, stdout=terminal, stderr=terminal, process_group=0)
            exit_code = process.returncode = _in_foreground(process.pid)
        if exit_code:
            raise ValueError(f"it exited with code {exit_code}")
        return path.read_text(encoding="utf-8", errors="replace") if os.path.lexists(path) else text


def _in_foreground(pid: int) -> int:
    """Run a process in the foreground until it ends, so that Ctrl+C does not reach training. Return its exit code."""
    own_group = os.getpgrp()
    own_handler = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        with suppress(OSError):  # this process may have no terminal
            os.tcsetpgrp(0, pid)
        while True:
            _, status = os.waitpid(pid, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                return os.waitstatus_to_exitcode(status)
            # A suspended editor is continued at once, because no shell could resume it.
            os.killpg(pid, signal.SIGCONT)
    finally:
        with suppress(OSError):
            os.tcsetpgrp(0, own_group)
        signal.signal(signal.SIGTTOU, own_handler)


def offer_draft(bench: Workbench, document: ConfigDocument, draft: Draft) -> None:
    def restore() -> None:
        bench.old_edits = {}
        restored_count, undo_key = document.restore(draft.edits), bench.app.key_of("config.undo")
        bench.note_change(f"{quantity(restored_count, 'edit')} restored; {undo_key} to undo")

    def discard() -> None:
        bench.old_edits = {}
        bench.config_changed()
        bench.show_notice("discarded the unsaved edits")

    edit_count, saved_at = len(draft.edits), one_line(draft.at[:16]).replace("T", " ")
    subject = f"{edit_count} edits from {saved_at} UTC were" if edit_count > 1 else f"An edit from {saved_at} UTC was"
    rows: list[Row] = [f"{subject} not saved.", ("Recovered from your last session.", "dim")]
    rows += paragraph(f"Changes to {one_line(draft.subject)}.", 70, "dim")
    if draft.digest != document.digest:
        rows.append(("The config file has changed since these edits: review them before you save.", "warn"))
    bench.app.ask("Unsaved edits", rows, [("r", "restore", restore), ("d", "discard", discard)])
