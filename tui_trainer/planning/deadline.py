"""When a run has to be done."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict

from tui_trainer.config.load import LoadedConfig
from tui_trainer.config.sections import Config
from tui_trainer.deadlines import due, length_seconds
from tui_trainer.errors import Problem

KEY = "targets.deadline"


class PlannedDeadline(BaseModel):
    """When a run has to be done, and when the counting began: at its first plan."""

    model_config = ConfigDict(frozen=True)

    at: datetime
    start: datetime

    @classmethod
    def of(cls, config: Config) -> PlannedDeadline | None:
        """None where none was set."""
        now = datetime.now().astimezone()
        return cls(at=due(config.targets.deadline, now), start=now) if config.targets.deadline else None


def deadline_problems(loaded: LoadedConfig) -> list[Problem]:
    """A day that is over."""
    text, now = loaded.config.targets.deadline, datetime.now().astimezone()
    if not text or length_seconds(text) is not None or due(text, now) > now:
        return []
    return [loaded.problem(KEY, f"is {text}, which is over", 'set a later one, or a length such as "3h"')]
