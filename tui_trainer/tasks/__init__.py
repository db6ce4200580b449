"""What is learnt. One file is one task: it is found by its name, and no list is kept by hand."""

import pkgutil
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from tui_trainer.errors import ConfigError, Problem, name_hint

if TYPE_CHECKING:
    from tui_trainer.tasks.parts.task import Task


@cache
def task_names() -> tuple[str, ...]:
    """The names of all tasks: the files of this room that are not its contract."""
    modules = (module for module in pkgutil.iter_modules(__path__) if not module.ispkg)
    return tuple(sorted(module.name for module in modules if module.name != "contract"))


def find_task(name: str) -> "Task":
    """The task of that name. Raises ConfigError with the nearest name."""
    if name not in task_names():
        message = f"there is no task {name[:60]!r}"
        raise ConfigError(Problem(message=message, key="task.type", hint=name_hint(name, task_names())))
    task: Task = import_module(f"{__name__}.{name}").TASK
    return task
