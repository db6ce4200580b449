"""The settings of a run as those of the Config screen, to start another one."""

from __future__ import annotations

from tui_trainer.config.changes import Patch, settings_words
from tui_trainer.errors import ConfigError
from tui_trainer.runs.folder import RunFolder, read_plain_file
from tui_trainer.safe_text import one_line
from tui_trainer.ui.workbench import Workbench

_CONFIG_LIMIT_BYTES = 1 << 20


def take_settings_of(bench: Workbench, folder: RunFolder, patch: Patch | None = None) -> None:
    """Show them there, with `patch` on top; undo brings back what was there before. A sentence where it cannot be."""
    if bench.document is None:
        bench.tell("the config is not open yet", "dim")
        return
    try:
        text = read_plain_file(folder.config, _CONFIG_LIMIT_BYTES).decode("utf-8")
        bench.document.take(text, f"the settings of {folder.name}", without=("output.name",), also=patch or {})
    except (OSError, ValueError, ConfigError) as error:
        bench.tell(f"its config.toml cannot be used: {one_line(str(error))}", "bad")
        return
    remedied = f" with {one_line(settings_words(patch), 60)}" if patch else ""
    bench.go(1)
    start, undo = bench.app.key_of("app.start"), bench.app.key_of("config.undo")
    words = f"the settings of {folder.name}{remedied}; {start} starts a new run, {undo} takes them back"
    bench.note_change(words, "good")
