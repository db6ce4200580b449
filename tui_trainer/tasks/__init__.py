"""The tasks that a model can learn. Each file is one task, which is found by its name; no list is maintained."""

import pkgutil
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from tui_trainer.errors import ConfigError, Problem, name_hint

if TYPE_CHECKING:
    from tui_trainer.tasks.parts.task import Task


@cache
def task_names() -> tuple[str, ...]:
    """Return the names of all tasks, such as "chat": the files of this folder except the contract."""
    modules = (module for module in pkgutil.iter_modules(__path__) if not module.ispkg)
    return tuple(sorted(module.name for module in modules if module.name != "contract"))


def find_task(name: str) -> "Task":
    """Return the task of that name. Raise ConfigError with the nearest name."""
    if name not in task_names():
        message = f"there is no task {name[:60]!r}"
        raise ConfigError(Problem(message=message, key="task.type", hint=name_hint(name, task_names())))
    task: Task = import_module(f"{__name__}.{name}").TASK
    return task


def labels_rows(name: str) -> bool:
    """Return whether models of a task predict labels or numbers rather than texts; False for "", which is no task."""
    return name in task_names() and find_task(name).labels_rows


def holds_conversations(name: str) -> bool:
    """Return whether a model of a task is tried in a conversation; False for "", which is no task."""
    return name in task_names() and find_task(name).holds_conversations


def scores_answers(name: str) -> bool:
    """Return whether a model of a task scores answers and so cannot be tried with a text; False for "", no task."""
    return name in task_names() and find_task(name).scores_answers


def loss_unit(name: str) -> str:
    """Return the unit of a task's losses after a blank, such as " nats/token"; "" if there is no task or no unit."""
    unit = find_task(name).loss_unit if name in task_names() else ""
    return f" {unit}" if unit else ""
