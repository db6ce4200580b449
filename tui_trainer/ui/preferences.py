"""What a person chose for the screens: kept between sessions, in the state folder."""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from tui_trainer.runs.folder import read_plain_file, write_atomically
from tui_trainer.runs.registry import state_folder

_LIMIT_BYTES = 100_000


@dataclass(kw_only=True, slots=True)
class Preferences:
    """`theme` is a name of Textual's, empty for the terminal's own colours; `bell` rings when a run ends unseen."""

    theme: str = ""
    bell: bool = False

    @classmethod
    def load(cls) -> "Preferences":
        """The defaults where nothing was kept, or what was kept cannot be understood."""
        chosen = cls()
        with suppress(OSError, ValueError):
            values = json.loads(read_plain_file(_file(), _LIMIT_BYTES))
            for field in fields(cls):
                value = values.get(field.name) if isinstance(values, dict) else None
                if type(value) is type(field.default):
                    setattr(chosen, field.name, value)
        return chosen

    def save(self) -> None:
        """A state folder that cannot be written keeps nothing, and stops nothing."""
        with suppress(OSError):
            _file().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(_file(), json.dumps(asdict(self)).encode(), durable=False)


def _file() -> Path:
    return state_folder() / "screens.json"
