"""What the config screen does with files: save, save as, the user's own editor, and edits that were never saved."""

from __future__ import annotations

import os
import shlex
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tui_trainer.config.document import Document
from tui_trainer.errors import ConfigError
from tui_trainer.safe_text import one_line
from tui_trainer.ui.dialogs import Answer, ChoiceDialog, TextDialog
from tui_trainer.ui.spans import Line
from tui_trainer.ui.workbench import Workbench

if TYPE_CHECKING:
    from tui_trainer.config.save import OverwriteError
    from tui_trainer.launching.drafts import Draft

_DEFAULT_FILE = "tui-trainer.toml"
_REFUSED = "# not taken:"


class ConfigFiles:
    """A document and its files. `changed` gets a sentence for the message line after the document changed."""

    def __init__(self, bench: Workbench, document: Document, changed: Callable[[str], None]) -> None:
        self.bench, self.document, self._changed = bench, document, changed
        self._refused_text = ""

    def save(self) -> None:
        """To the file it came from; without one a name is asked for."""
        file = self.document.file
        if file is None:
            self.save_as()
        else:
            self._write(file)

    def save_as(self) -> None:
        start = str(self.document.file or Path.cwd() / _DEFAULT_FILE)
        lines: list[Line] = [[("Your own values are written, on top of the recipe's name.", "dim")], []]
        self.bench.app.open(TextDialog("Save as", lines, start, self._save_as))

    def _save_as(self, text: str) -> str:
        if not text.strip():
            return "write the name of a file"
        return self._write(Path(text.strip()).expanduser())

    def _write(self, path: Path, *, force: bool = False) -> str:
        """Empty when it was written or a question is on the screen, else why not."""
        from tui_trainer.config.save import OverwriteError, save
        from tui_trainer.launching.drafts import discard_draft

        document = self.document
        try:
            save(document, path, force=force)
        except OverwriteError as error:
            self._ask_to_overwrite(path, error)
            return ""
        except ConfigError as error:
            self.bench.tell(str(error.problems[0]), "bad")
            return str(error.problems[0])
        self.bench.old_edits = {}
        discard_draft(document)
        self._changed("")
        self.bench.tell(f"saved in {path}", "good")
        return ""

    def _ask_to_overwrite(self, path: Path, error: OverwriteError) -> None:
        lines: list[Line] = [[(row, "text")] for row in textwrap.wrap(one_line(str(error.problems[0])), 70)]
        answers: list[Answer] = [("o", "overwrite it", lambda: self._forced(path))]
        if path == self.document.file:
            answers.append(("l", "load it, keep my edits", self._load_again))
        self.bench.app.open_next(ChoiceDialog("Overwrite?", lines, answers))

    def _forced(self, path: Path) -> None:
        self._write(path, force=True)

    def _load_again(self) -> None:
        self.document.reload()
        self._changed("loaded again; your unsaved edits lie on top")

    def edit(self) -> None:
        """Open what would be saved in $EDITOR, and take the text back as one change."""
        from tui_trainer.config.save import document_text

        command = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
        document = self.document
        before = self._refused_text or document_text(document)
        try:
            after = self.bench.app.edit_text(shlex.split(command), before)
        except (OSError, ValueError) as error:
            self.bench.tell(f"{one_line(command)} cannot be used: {error}; set EDITOR to your editor", "bad")
            return
        if after == before:
            self._refused_text = ""
            self.bench.tell("nothing was changed in the editor")
            return
        try:
            document.take(after)
        except ConfigError as error:
            # What was typed is not lost: the next time it opens again, with the reason above it.
            kept = "\n".join(line for line in after.split("\n") if not line.startswith(_REFUSED))
            self._refused_text = f"{_REFUSED} {one_line(str(error.problems[0]))}\n{kept}"
            key = self.bench.app.key_of("config.editor")
            self.bench.tell(f"not taken: {error.problems[0]}; {key} opens your text again", "bad")
            return
        self._refused_text = ""
        self._changed("taken from the editor; u takes it back")

    # ----------------------------------------------------------- drafts

    def offer_draft(self, draft: Draft) -> None:
        """Edits of an earlier session that were never saved."""
        count, when = len(draft.edits), one_line(draft.at[:16]).replace("T", " ")
        lines: list[Line] = [
            [(f"{count} edit{'s' if count > 1 else ''} of {when} UTC were not saved.", "text")],
            [("They were kept when the connection or the program ended.", "dim")],
        ]
        lines += [[(row, "dim")] for row in textwrap.wrap(f"Made for {one_line(draft.subject)}.", 70)]
        if draft.digest != self.document.digest:
            lines.append([("The config file has changed since: look at them before you save.", "warn")])
        answers = [("r", "restore them", lambda: self._restore(draft)), ("d", "discard them", self._discard)]
        self.bench.app.open(ChoiceDialog("Unsaved edits", lines, answers))

    def _restore(self, draft: Draft) -> None:
        self.bench.old_edits = {}
        taken = self.document.restore(draft.edits)
        self._changed(f"{taken} edits restored; u takes them back")

    def _discard(self) -> None:
        from tui_trainer.launching.drafts import discard_draft

        self.bench.old_edits = {}
        discard_draft(self.document)
        self.bench.config_changed()
        self.bench.tell("discarded")
