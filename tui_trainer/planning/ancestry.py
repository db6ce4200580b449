"""The origin of a run's model: the runs that trained it before, back to the model that was downloaded or created.

Each plan stores its whole chain, because an earlier run may be deleted.
"""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from tui_trainer.config.sections import Config
from tui_trainer.errors import FolderError
from tui_trainer.files.hub_layout import published_name
from tui_trainer.methods.tuning_methods import TUNING_METHODS
from tui_trainer.models.adapters import should_continue_adapter
from tui_trainer.models.facts import ADAPTER_FILE
from tui_trainer.runs.folder import RunFolder, read_fields
from tui_trainer.runs.journal import last_events
from tui_trainer.runs.state import apply_events
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import quantity

_ANCESTORS = "ancestors.json"


class Ancestor(BaseModel):
    """One link of the chain. `method` is empty for a model that no run trained, and `steps` is 0 if unknown.
    `taken` is what the next run did with an adapter: `continued` or `merged`."""

    model_config = ConfigDict(frozen=True)

    name: str
    method: str = ""
    steps: int = 0
    taken: str = ""

    @property
    def words(self) -> str:
        """Ancestor in words: `run a (LoRA, 20 steps, merged)`, or the name of a model or an adapter."""
        if not self.method:
            return one_line(published_name(self.name), 200) + (f" ({self.taken})" if self.taken else "")
        method_label = TUNING_METHODS[self.method].label if self.method in TUNING_METHODS else one_line(self.method, 40)
        steps_text = f", {quantity(self.steps, 'step')}" if self.steps else ""
        taken_text = f", {one_line(self.taken, 40)}" if self.taken else ""
        return f"run {one_line(self.name, 80)} ({method_label}{steps_text}{taken_text})"


def run_of_model(folder: Path) -> RunFolder | None:
    """Return the run whose final model is in `folder`; None for any other folder."""
    with suppress(FolderError):
        run = RunFolder.open(folder.parent)
        return run if run.plan.is_file() and run.model.name == folder.name else None
    return None


def ancestors_of(config: Config) -> tuple[Ancestor, ...]:
    """Return the runs from which a new run with these settings would descend, the oldest first."""
    model = config.model
    if not model.model_name_or_path or config.is_from_scratch:
        return ()
    folder = Path(model.model_name_or_path)
    if stored_links := read_fields(folder / _ANCESTORS).get("ancestors"):
        return tuple(ancestor for fields in _list(stored_links) if (ancestor := _ancestor(fields)))
    run, use = run_of_model(folder), "continued" if should_continue_adapter(config.tuning) else "merged"
    if run is None:
        # An adapter that was trained elsewhere names its base model.
        base = read_fields(folder / ADAPTER_FILE).get("base_model_name_or_path")
        return (Ancestor(name=base), Ancestor(name=str(folder), taken=use)) if base and isinstance(base, str) else ()
    plan_fields = read_fields(run.plan)
    earlier_ancestors = [ancestor for fields in _list(plan_fields.get("ancestors")) if (ancestor := _ancestor(fields))]
    settings = _table(plan_fields.get("config"))
    base, method = _table(settings.get("model")), _table(settings.get("tuning")).get("method")
    base_name = base.get("model_name_or_path")
    if not earlier_ancestors and isinstance(base_name, str) and base_name and base.get("init") != "scratch":
        earlier_ancestors = [Ancestor(name=base_name)]
    use = use if (folder / ADAPTER_FILE).is_file() else ""
    return (*earlier_ancestors, Ancestor(name=run.name, method=str(method or "full"), steps=_steps_of(run), taken=use))


def write_ancestors(folder: Path, ancestors: tuple[Ancestor, ...]) -> None:
    """Write the chain into the folder of a model that was prepared for a run."""
    content = {"ancestors": [ancestor.model_dump() for ancestor in ancestors]}
    (folder / _ANCESTORS).write_text(json.dumps(content, indent=1), encoding="utf-8")


def chain_words(ancestors: tuple[Ancestor, ...]) -> str:
    """Return the chain in words: `tiny-llama > run a (all weights, 20 steps) > run b (LoRA, 10 steps)`, or ""."""
    return " > ".join(ancestor.words for ancestor in ancestors)


def _steps_of(run: RunFolder) -> int:
    with suppress(OSError):
        finished = apply_events(last_events(run.journal)).finished
        return finished.step if finished else 0
    return 0


def _ancestor(fields: Any) -> Ancestor | None:
    with suppress(ValidationError):
        return Ancestor.model_validate(fields)
    return None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
