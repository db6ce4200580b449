"""The user's preferences for the screens, saved in the state folder."""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tui_trainer.runs.folder import read_fields, write_atomically
from tui_trainer.runs.registry import state_folder


@dataclass(kw_only=True, slots=True)
class Preferences:
    """Saved preferences. `theme` is the name of a Textual theme, or empty for the terminal's own colours.

    `curves` has the metrics that Train draws, by task. `bell` rings if a run ends while the terminal has no focus.
    """

    theme: str = ""
    bell: bool = False
    log_scale: bool = False
    curves: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def load(cls) -> "Preferences":
        """Return the saved preferences. A preference that is missing or invalid gets its default."""
        fields, defaults = read_fields(preferences_file()), asdict(cls())
        return cls(**{name: fields[name] for name, value in defaults.items() if type(fields.get(name)) is type(value)})

    def curves_of(self, task: str) -> list[str]:
        names = self.curves.get(task)
        return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []

    def save(self) -> None:
        """Save the preferences. If the file cannot be written, they last until the program ends."""
        with suppress(OSError):
            preferences_file().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(preferences_file(), json.dumps(asdict(self)).encode(), durable=False)


def preferences_file() -> Path:
    return state_folder() / "screens.json"
