"""The command `where`, which prints where files are kept."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tui_trainer.cli.application import AsJson, app
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import format_bytes

# An unreachable file server may not respond, and the hub's cache may have many files.
_DEADLINE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class WrittenPath:
    """File or folder that this program writes. `exists` and `bytes` are None if the disk did not respond in time."""

    name: str
    path: str
    exists: bool | None
    bytes: int | None


def paths() -> Mapping[str, Path]:
    """Return the path of each kind of file that this program writes, by name."""
    from tui_trainer.config.sections import OutputSection
    from tui_trainer.config.toml_files import user_profiles_folder
    from tui_trainer.exporting.formats.gguf import converter_folder
    from tui_trainer.files.hub_layout import cache_folder
    from tui_trainer.files.local_paths import absolute_path
    from tui_trainer.hardware.storage import prepared_data_folder
    from tui_trainer.launching.drafts import drafts_folder
    from tui_trainer.models.unsloth import environment_folder
    from tui_trainer.planning.records import records_file
    from tui_trainer.runs.registry import index_file, logs_folder
    from tui_trainer.ui.keymap import keys_file
    from tui_trainer.ui.own_commands import commands_file
    from tui_trainer.ui.preferences import preferences_file

    return {
        "runs": absolute_path(OutputSection().runs_dir),
        "list of runs": index_file(),
        "measurements": records_file(),
        "logs": logs_folder(),
        "unsaved edits": drafts_folder(),
        "preferences": preferences_file(),
        "Unsloth": environment_folder(),
        "converter": converter_folder(),
        "prepared data": prepared_data_folder(),
        "hub cache": cache_folder(),
        "your keys": keys_file(),
        "your commands": commands_file(),
        "your profiles": user_profiles_folder(),
    }


def inspect_path(name: str, path: Path) -> WrittenPath:
    """Return whether a path exists, and its size in bytes, as a `WrittenPath` called `name`."""
    from tui_trainer.hardware.storage import call_with_deadline, is_there
    from tui_trainer.runs.folder import folder_size

    def read_exists_and_size() -> tuple[bool, int | None]:
        if not is_there(path):
            return False, None
        return True, folder_size(path).bytes if path.is_dir() else path.stat().st_size

    exists, size_bytes = call_with_deadline(_DEADLINE_SECONDS, read_exists_and_size) or (None, None)
    return WrittenPath(name, str(path.absolute()), exists, size_bytes)


@app.command()
def where(as_json: AsJson = False) -> None:
    """Show where files are kept: runs, measurements, logs, caches, your own keys and profiles."""
    written_paths = [inspect_path(name, path) for name, path in paths().items()]
    if as_json:
        print(json.dumps([asdict(written) for written in written_paths], indent=1))
        return
    for written in written_paths:
        missing_text = "no answer" if written.exists is None else "not there"
        size_text = format_bytes(written.bytes) if written.exists else missing_text
        print(f"{written.name:<13}  {size_text:>10}  {one_line(written.path)}")
