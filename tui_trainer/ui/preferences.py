"""What a person chose for the screens, kept in the state folder."""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tui_trainer.runs.folder import read_fields, write_atomically
from tui_trainer.runs.registry import state_folder


@dataclass(kw_only=True, slots=True)
class Preferences:
    """`theme` is a name of Textual's, empty for the terminal's own colours; `bell` rings when a run ends unseen.

    `curves` are the names of the numbers that Train draws, by task; `log_scale` draws its losses logarithmic.
    """

    theme: str = ""
    bell: bool = False
    log_scale: bool = False
    curves: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def load(cls) -> "Preferences":
        """The defaults where nothing was kept, or what was kept cannot be understood."""
        kept, plain = read_fields(preferences_file()), asdict(cls())
        return cls(**{name: kept[name] for name, value in plain.items() if type(kept.get(name)) is type(value)})

    def curves_of(self, task: str) -> list[str]:
        names = self.curves.get(task)
        return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []

    def save(self) -> None:
        """A state folder that cannot be written keeps nothing, and stops nothing."""
        with suppress(OSError):
            preferences_file().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(preferences_file(), json.dumps(asdict(self)).encode(), durable=False)


def preferences_file() -> Path:
    return state_folder() / "screens.json"
