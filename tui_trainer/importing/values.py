"""Values of other tools' files: what they say, whether one of our settings takes one, and in what form.

The config's own schema is asked, nothing else.
"""

from typing import Any

from tui_trainer.config.editing import toml_text
from tui_trainer.config.fields import Setting
from tui_trainer.config.load import all_settings, validate, value_of
from tui_trainer.config.toml_files import MAX_LINE_CHARACTERS
from tui_trainer.errors import Problem
from tui_trainer.tasks import task_names

# As a whole number it would have more digits than a float is sure of.
_WHOLE_BELOW = 1e15


def fit(key: str, value: Any) -> Any:
    """The value as the setting holds it. Raises ValueError with what the setting takes."""
    setting = all_settings()[key]
    problems: list[Problem] = []
    config = validate({key: _number(setting, value)}, {}, problems)
    if config is None:
        raise ValueError(f"{key} must be {setting.expected}")
    found = value_of(config, key)
    if key == "task.type" and found not in task_names():
        raise ValueError(f"{key} must be one of {', '.join(task_names())}")
    if isinstance(found, str):
        _refuse_unwritable(key, found)
    return int(found) if isinstance(found, float) and found.is_integer() and abs(found) < _WHOLE_BELOW else found


def number(value: Any) -> float | None:
    """A number, also one in quotes; None for everything else. YAML reads `5e-5`, without a point, as a text."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        try:
            value = float(value) if len(value) < 40 else None
        except ValueError:
            return None
    return value if isinstance(value, int | float) else None


def whole(value: Any) -> int | None:
    """A whole number, also as `8.0`; None for everything else."""
    found = number(value)
    return int(found) if found is not None and abs(found) < _WHOLE_BELOW and found == int(found) else None


def empty(value: Any) -> bool:
    """Whether a key stands there without saying anything."""
    return value is None or value in ("", [], {})


def off(value: Any) -> bool:
    """Whether a value says no."""
    return empty(value) or value is False or value in (0, "none", "no", "off", "false")


def _number(setting: Setting, value: Any) -> Any:
    if str in setting.kinds or value in setting.choices:
        return value
    if int in setting.kinds and whole(value) is not None:
        return whole(value)
    if float in setting.kinds and number(value) is not None:
        return number(value)
    return value


def _refuse_unwritable(key: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{key} must be a text of whole characters") from None
    if len(toml_text(text)) + len(key) + 8 > MAX_LINE_CHARACTERS:
        raise ValueError(f"{key} must be a text of fewer than {MAX_LINE_CHARACTERS} characters")
