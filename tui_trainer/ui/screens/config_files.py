"""What the config screen does with files: save, save as, the user's own editor, and edits that were never saved."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from textual.app import App

from tui_trainer.config.document import Document
from tui_trainer.config.save import OverwriteError, document_text, writing
from tui_trainer.errors import ConfigError
from tui_trainer.launching.drafts import Draft
from tui_trainer.local_paths import at_home, from_the_root
from tui_trainer.safe_text import one_line
from tui_trainer.ui.dialogs import Answer, ChoiceDialog, Row, TextDialog
from tui_trainer.ui.spans import paragraph, wrapped
from tui_trainer.ui.workbench import Workbench

_DEFAULT_FILE = "tui-trainer.toml"
_REFUSED = "# not taken:"


def save(bench: Workbench, document: Document) -> None:
    """To the file it came from; without one a name is asked for."""
    if document.file is None:
        save_as(bench, document)
    else:
        _write(bench, document, document.file, lambda refusal: None)


def save_as(bench: Workbench, document: Document) -> None:
    rows: list[Row] = [("Your own values are written, on top of the recipe's name.", "dim"), ""]
    start = str(document.file or from_the_root(_DEFAULT_FILE))

    def write(text: str) -> str | None:
        if not (name := text.strip()):
            return "write the name of a file"
        _write(bench, document, at_home(name), dialog.answered)
        return None

    dialog = TextDialog("Save as", rows, start, write)
    bench.app.open(dialog)


def _write(
    bench: Workbench, document: Document, path: Path, answer: Callable[[str], None], *, force: bool = False
) -> None:
    """`answer` hears why it was not written; nothing when it was, or a question is on the screen."""

    def work() -> tuple[str, dict[str, Any]] | ConfigError:
        try:
            return write()
        except ConfigError as error:
            return error

    def load_again() -> None:
        document.reload()
        bench.note_change("loaded again; your unsaved edits lie on top")

    def written(result: tuple[str, dict[str, Any]] | ConfigError) -> None:
        if isinstance(result, OverwriteError):
            rows = wrapped(one_line(str(result.problems[0])), 70)
            overwrite = partial(_write, bench, document, path, answer, force=True)
            answers: list[Answer] = [("o", "overwrite it", overwrite)]
            if path == document.file:
                answers.append(("l", "load it, keep my edits", load_again))
            answer("")
            bench.app.open_next(ChoiceDialog("Overwrite?", rows, answers))
        elif isinstance(result, ConfigError):
            bench.tell(str(result.problems[0]), "bad")
            answer(str(result.problems[0]))
        else:
            answer("")
            bench.old_edits = {}
            document.mark_saved(path, *result)
            bench.note_change(f"saved in {path}", "good")
        bench.app.draw()

    write = writing(document, path, force=force)
    bench.tell("saving ...", "dim")
    bench.background.do("save", work, written, "save")


def edit(app: App[Any], bench: Workbench, document: Document, refused_text: str) -> str:
    """Open what would be saved in $EDITOR, and take the text back as one change.

    Returns what was typed where it was not taken, to begin with it the next time.
    """
    command = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    before = refused_text or document_text(document)
    try:
        after = edit_text_in(app, shlex.split(command), before)
    except (OSError, ValueError) as error:
        bench.tell(f"{one_line(command)} cannot be used: {error}; set EDITOR to your editor", "bad")
        return refused_text
    if after == before:
        bench.tell("nothing was changed in the editor")
        return ""
    try:
        document.take(after)
    except ConfigError as error:
        bench.tell(f"not taken: {error.problems[0]}; {bench.app.key_of('config.editor')} opens your text again", "bad")
        typed = "\n".join(line for line in after.split("\n") if not line.startswith(_REFUSED))
        return f"{_REFUSED} {one_line(str(error.problems[0]))}\n{typed}"
    bench.note_change(f"taken from the editor; {bench.app.key_of('config.undo')} takes it back")
    return ""


def edit_text_in(app: App[Any], command: list[str], text: str) -> str:
    """What the text is when the editor has ended. Raises OSError or ValueError when it cannot be run."""
    if not command:
        raise ValueError("no editor is named")
    if shutil.which(command[0]) is None:
        raise ValueError(f"there is no program {command[0]}")
    with tempfile.TemporaryDirectory(prefix="tui-trainer-") as folder:
        path = Path(folder) / "settings.toml"
        path.write_text(text, encoding="utf-8")
        # Repaints while the screens stand back would fill a queue that nobody empties.
        with app.batch_update(), app.suspend():
            # Descriptors 1 and 2 are the log: the editor gets the terminal itself.
            terminal = sys.__stderr__.fileno() if sys.__stderr__ else 2
            process = subprocess.Popen(
                [*command, str(path)], stdin=0, stdout=terminal, stderr=terminal, process_group=0
            )
            code = process.returncode = _in_foreground(process.pid)
        if code:
            raise ValueError(f"it ended with code {code}")
        return path.read_text(encoding="utf-8", errors="replace") if os.path.lexists(path) else text


def _in_foreground(pid: int) -> int:
    """The exit code of a process that has the terminal to itself: its Ctrl+C and Ctrl+Z are not for training."""
    ours = os.getpgrp()
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        with suppress(OSError):  # no terminal of ours to give away
            os.tcsetpgrp(0, pid)
        while True:
            _, status = os.waitpid(pid, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                return os.waitstatus_to_exitcode(status)
            # There is no shell that could bring a suspended editor back.
            os.killpg(pid, signal.SIGCONT)
    finally:
        with suppress(OSError):
            os.tcsetpgrp(0, ours)
        signal.signal(signal.SIGTTOU, before)


def offer_draft(bench: Workbench, document: Document, draft: Draft) -> None:

    def restore() -> None:
        bench.old_edits = {}
        restored, undo = document.restore(draft.edits), bench.app.key_of("config.undo")
        bench.note_change(f"{restored} edit{'' if restored == 1 else 's'} restored; {undo} takes it back")

    def discard() -> None:
        bench.old_edits = {}
        bench.config_changed()
        bench.tell("discarded")

    count, when = len(draft.edits), one_line(draft.at[:16]).replace("T", " ")
    rows: list[Row] = [f"{count} edit{'s' if count > 1 else ''} of {when} UTC were not saved."]
    rows.append(("They were kept when the connection or the program ended.", "dim"))
    rows += paragraph(f"Made for {one_line(draft.subject)}.", 70, "dim")
    if draft.digest != document.digest:
        rows.append(("The config file has changed since: look at them before you save.", "warn"))
    bench.app.ask("Unsaved edits", rows, [("r", "restore them", restore), ("d", "discard them", discard)])
