"""Write plan.json, and read it in this version and in later ones.

An older plan keeps its meaning: a missing field takes its default, which is what the older program did, and a removed
field is left out. `plan_version` is raised only if an old field gets another meaning; plans of the version before are
then refused. `config/removed.py` handles removed settings.
"""

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tui_trainer.config.changes import with_changes
from tui_trainer.config.removed import REMOVED, without_removed
from tui_trainer.config.sections import MODEL_KEY, Config
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.models.facts import find_model
from tui_trainer.models.files.fingerprint import base_model_part
from tui_trainer.planning.plan import Plan
from tui_trainer.runs.folder import RunFolder
from tui_trainer.tasks import find_task
from tui_trainer.terminal.safe_text import one_line

VERSION = "plan_version"
_MOST_NAMES = 3


class DamagedPlanError(ValueError):
    """Error for a plan.json that no version can have written."""


def write_plan_file(folder: RunFolder, plan: Plan) -> None:
    """Write the plan to plan.json atomically. Raises FolderError."""
    folder.write_file(folder.plan, plan_bytes(plan))


def plan_bytes(plan: Plan) -> bytes:
    return plan.model_dump_json(indent=1).encode()


def read_plan_file(content: bytes, notes: list[str] | None = None, *, finished: bool = False) -> Plan:
    """Read the plan from the content of a file. Settings that are no longer used are reported in `notes`.

    A `finished` run will not be trained any further: a setting that this version does not understand is reported and
    left out. Otherwise the plan is refused. Raises ConfigError for removed settings, DamagedPlanError for damaged
    content, and else ValueError with a clause about the version that wrote plan.json and the wrong field.
    """
    notes = [] if notes is None else notes
    try:
        fields = json.loads(content)
    except ValueError as error:
        raise DamagedPlanError(f"plan.json is damaged: {one_line(str(error), 80)}") from None
    if not isinstance(fields, dict):
        raise DamagedPlanError("plan.json is damaged: it has no fields") from None
    if isinstance(fields.get("config"), dict):
        problems = list[Problem]()
        fields["config"] = without_removed(fields["config"], "plan.json", notes, problems, finished=finished)
        if problems:
            raise ConfigError(problems)
    while True:
        try:
            return Plan.model_validate_json(json.dumps(fields))
        except ValidationError as error:
            if not _leave_out(fields, error, notes, finished=finished):
                raise ValueError(_refusal(fields, error)) from None


def _leave_out(fields: dict[str, Any], error: ValidationError, notes: list[str], *, finished: bool) -> bool:
    """Remove one wrong field that the plan does not need. Return whether there was such a field."""
    # In a plan of an unsupported version the meaning of a field is unknown.
    if any(entry["loc"] == (VERSION,) for entry in error.errors()):
        return False
    removed_names = {key.rpartition(".")[2] for key in REMOVED}
    for entry in error.errors():
        name, *inner_path = map(str, entry["loc"])
        if name == "config":
            if finished and _remove(fields["config"], inner_path, notes):
                return True
        elif name in fields and not Plan.model_fields[name].is_required() and (finished or name in removed_names):
            # A field that was derived from a removed setting has the same name.
            del fields[name]
            return True
    return False


def _remove(config: Any, path: list[str], notes: list[str]) -> bool:
    """Remove the wrong setting at `path` from a nested config, and return whether it was found. The path comes from
    pydantic and may end with a member of a union, after the name of the setting."""
    table, key = config, ""
    for name in path:
        if not isinstance(table, dict) or name not in table:
            return False
        key = f"{key}.{name}" if key else name
        if isinstance(table[name], dict) and name != path[-1]:
            table = table[name]
            continue
        value_text = one_line(json.dumps(table.pop(name)), 60)
        notes.append(f"plan.json: {key} = {value_text} is ignored: this version does not support it")
        return True
    return False


def _refusal(plan_fields: dict[str, Any], problem: ValidationError) -> str:
    missing = [name for name, field in Plan.model_fields.items() if field.is_required() and name not in plan_fields]
    # An error in another field explains more than one in the version.
    first_error = min(problem.errors(), key=lambda error: error["loc"] == (VERSION,))
    error_text = "this version does not support it" if first_error["type"] == "extra_forbidden" else first_error["msg"]
    fault_text = one_line(f"{'.'.join(map(str, first_error['loc']))}: {error_text}", 160)
    current_version = Plan.model_fields[VERSION].default
    if plan_fields.get(VERSION) == current_version:
        return f"plan.json is not a plan of this version: {_named('missing', missing) or fault_text}"
    unknown_text = _named("unknown", [name for name in plan_fields if name not in Plan.model_fields])
    fields = "; ".join(filter(None, (_named("missing", missing), unknown_text))) or fault_text
    versions = plan_fields.get("versions")
    writer = versions.get("tui-trainer") if isinstance(versions, dict) else None
    writer_name = f"tui-trainer {one_line(str(writer), 40)}" if writer else "another version"
    version = one_line(str(plan_fields.get(VERSION, "none")), 20)
    version_text = f"{VERSION} {version}, but this version needs {current_version}"
    return f"plan.json was written by {writer_name} ({version_text}): {fields}"


def _named(fault_kind: str, names: list[str]) -> str:
    """Return the fields with a fault, in words: `missing: most_rows`."""
    if not names:
        return ""
    more_text = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{fault_kind}: {', '.join(one_line(name, 60) for name in names[:_MOST_NAMES])}{more_text}"


# These functions check that the model on disk has the weights, tokenizer and config.json with which a run began.
#
# The plan has their fingerprint (`models/files/fingerprint.py`), and the commit of a model from the hub. All commands
# that combine trained weights with a model use this check: resume, generate, measure, export and publish.


def commit_of(config: Config) -> str:
    """Return the commit of the model in the hub's cache; empty for a folder. Raises ConfigError."""
    folder = _folder(config) if config.model.model_name_or_path else None
    return folder.name if folder and folder.parent.name == "snapshots" else ""


def with_own_commit(plan: Plan) -> Plan:
    """Return the plan with the model's commit at the start of the run as revision, because a branch may have moved on.
    If the cache no longer has that commit, return the plan unchanged."""
    if plan.model_commit in ("", plan.config.model.revision):
        return plan
    config = with_changes(plan.config, {"model.revision": plan.model_commit})
    try:
        return plan.model_copy(update={"config": config}) if _folder(config) else plan
    except ConfigError:
        return plan


def _folder(config: Config) -> Path | None:
    head = find_task(config.task.type).head
    return find_model(config.model.model_name_or_path, config.model.revision, head=head).folder


def changed_base(plan: Plan, folder: Path | None = None) -> Problem | None:
    """Return the problem with the base model of a run, which may be in another `folder` now; None if it is the one that
    the run started with. Raises ConfigError if it is missing or cannot be read."""
    config = plan.config if folder is None else with_changes(plan.config, {MODEL_KEY: str(folder)})
    # `folder` holds the base model of an adapter that continued to train, so only the base's fingerprint counts.
    key_at_start = plan.model_key if folder is None else base_model_part(plan.model_key)
    if find_task(config.task.type).model_key(config) == key_at_start:
        return None
    name = one_line(str(folder or plan.config.model.model_name_or_path), 300)
    old_text = f", which was commit {plan.model_commit}" if plan.model_commit else ""
    hint = f"the model's weights, tokenizer or config.json differ: restore the old model{old_text}, or start a new run"
    return Problem(message="the model has changed since this run started", where=name, hint=hint)


def changed_reference(plan: Plan) -> Problem | None:
    """Return the problem with the model that `task.reference` names; None if it is the one that the run started with.
    Raises ConfigError if it is missing or cannot be read."""
    if find_task(plan.config.task.type).reference_key(plan.config) == plan.reference_key:
        return None
    hint = "its weights, tokenizer or config.json differ: restore the old model, or start a new run"
    name = one_line(plan.config.task.reference, 300)
    return Problem(message="the reference model has changed since this run started", where=name, hint=hint)
