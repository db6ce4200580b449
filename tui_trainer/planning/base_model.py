"""Whether the model on the disk is the one that a run began with: its weights, its tokenizer and its config.json.

The plan has their fingerprint (`models/files/fingerprint.py`), and for a model of the hub the commit. Whoever puts what
was learnt on a model asks here, and is answered alike: `resume` as what generates, measures, exports and publishes.
"""

from pathlib import Path

from tui_trainer.config.changes import with_changes
from tui_trainer.config.sections import Config
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.models.facts import find_model
from tui_trainer.planning.plan import Plan
from tui_trainer.safe_text import one_line
from tui_trainer.tasks import find_task

_NAME, _REVISION = "model.model_name_or_path", "model.revision"


def commit_of(config: Config) -> str:
    """The commit of the model in the hub's cache; empty for a folder. Raises ConfigError."""
    folder = _folder(config) if config.model.model_name_or_path else None
    return folder.name if folder and folder.parent.name == "snapshots" else ""


def with_own_commit(plan: Plan) -> Plan:
    """The plan with the commit that its run began with as revision, where the cache still has it: a branch may have
    moved on since."""
    if plan.model_commit in ("", plan.config.model.revision):
        return plan
    config = with_changes(plan.config, {_REVISION: plan.model_commit})
    try:
        return plan.model_copy(update={"config": config}) if _folder(config) else plan
    except ConfigError:
        return plan


def _folder(config: Config) -> Path | None:
    head = find_task(config.task.type).head
    return find_model(config.model.model_name_or_path, config.model.revision, head=head).folder


def changed_base(plan: Plan, folder: Path | None = None) -> Problem | None:
    """What is wrong with the base model of a run, which may lie in another `folder` now; None where it is the one that
    the run began with. Raises ConfigError where it is not there, or cannot be read."""
    config = plan.config if folder is None else with_changes(plan.config, {_NAME: str(folder)})
    if find_task(config.task.type).model_key(config) == plan.model_key:
        return None
    name = one_line(str(folder or plan.config.model.model_name_or_path), 300)
    began = f", which was commit {plan.model_commit}" if plan.model_commit else ""
    hint = f"its weights, its tokenizer or its config.json differ: put the old model back{began}, or start a new run"
    return Problem(message="the model changed since this run began", where=name, hint=hint)
