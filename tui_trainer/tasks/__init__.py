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


def labels_rows(name: str) -> bool:
    """Whether the samples of the task that a journal names are labels; not so before it names one."""
    return name in task_names() and find_task(name).labels_rows


def holds_conversations(name: str) -> bool:
    """Whether a model of the task that a journal names is tried in a conversation."""
    return name in task_names() and find_task(name).holds_conversations


def loss_unit(name: str) -> str:
    """Of the losses of the task that a journal names, with a blank before it."""
    unit = find_task(name).loss_unit if name in task_names() else ""
    return f" {unit}" if unit else ""
