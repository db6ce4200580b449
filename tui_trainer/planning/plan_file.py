"""plan.json: written, and read again by this version and by later ones.

An older plan is read as it was meant: a field that it does not have takes its default, which is what its program did,
and one that is gone is left out. `plan_version` is raised only when an old field gets another meaning; then plans of
the version before are refused. Of settings that are gone `config/removed.py` says what becomes.
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
    """No version wrote what is in the file."""


def write_plan_file(folder: RunFolder, plan: Plan) -> None:
    """Write the plan to plan.json atomically. Raises FolderError."""
    folder.write_file(folder.plan, plan_bytes(plan))


def plan_bytes(plan: Plan) -> bytes:
    return plan.model_dump_json(indent=1).encode()


def read_plan_file(content: bytes, notes: list[str] | None = None, *, finished: bool = False) -> Plan:
    """Return the plan of a file. Settings that are no longer used are reported in `notes`.

    `finished`: the run will not be trained any further, so a setting that this version does not understand is reported
    and left out. Otherwise it is refused: raises ConfigError for what is gone on purpose, and ValueError with a clause
    about plan.json for all else: by whom it was written, and which field is wrong; DamagedPlanError where nobody wrote
    it so.
    """
    notes = [] if notes is None else notes
    try:
        found = json.loads(content)
    except ValueError as error:
        raise DamagedPlanError(f"plan.json is damaged: {one_line(str(error), 80)}") from None
    if not isinstance(found, dict):
        raise DamagedPlanError("plan.json is damaged: it has no fields") from None
    if isinstance(found.get("config"), dict):
        problems = list[Problem]()
        found["config"] = without_removed(found["config"], "plan.json", notes, problems, finished=finished)
        if problems:
            raise ConfigError(problems)
    while True:
        try:
            return Plan.model_validate_json(json.dumps(found))
        except ValidationError as error:
            if not _leave_out(found, error, notes, finished=finished):
                raise ValueError(_refusal(found, error)) from None


def _leave_out(found: dict[str, Any], error: ValidationError, notes: list[str], *, finished: bool) -> bool:
    """Take out of a plan one field that is wrong and can be done without; False where there is none."""
    # Where plans of its version are not read, nothing is known of what a field means.
    if any(wrong["loc"] == (VERSION,) for wrong in error.errors()):
        return False
    gone = {key.rpartition(".")[2] for key in REMOVED}
    for wrong in error.errors():
        name, *inner = map(str, wrong["loc"])
        if name == "config":
            if finished and _remove(found["config"], inner, notes):
                return True
        elif name in found and not Plan.model_fields[name].is_required() and (finished or name in gone):
            # What was derived from a setting that is gone has its name.
            del found[name]
            return True
    return False


def _remove(config: Any, path: list[str], notes: list[str]) -> bool:
    """Remove a wrong setting from a nested config. The path may continue behind its name with a member of a union."""
    table, key = config, ""
    for name in path:
        if not isinstance(table, dict) or name not in table:
            return False
        key = f"{key}.{name}" if key else name
        if isinstance(table[name], dict) and name != path[-1]:
            table = table[name]
            continue
        shown = one_line(json.dumps(table.pop(name)), 60)
        notes.append(f"plan.json: {key} = {shown} is ignored: this version does not support it")
        return True
    return False


def _refusal(found: dict[str, Any], problem: ValidationError) -> str:
    missing = [name for name, field in Plan.model_fields.items() if field.is_required() and name not in found]
    # The first field whose value is not one; that of the version says nothing.
    wrong = min(problem.errors(), key=lambda error: error["loc"] == (VERSION,))
    words = "this version does not support it" if wrong["type"] == "extra_forbidden" else wrong["msg"]
    said = one_line(f"{'.'.join(map(str, wrong['loc']))}: {words}", 160)
    known = Plan.model_fields[VERSION].default
    if found.get(VERSION) == known:
        return f"plan.json is not a plan of this version: {_named('missing', missing) or said}"
    unknown = _named("unknown", [name for name in found if name not in Plan.model_fields])
    fields = "; ".join(filter(None, (_named("missing", missing), unknown))) or said
    versions = found.get("versions")
    writer = versions.get("tui-trainer") if isinstance(versions, dict) else None
    named = f"tui-trainer {one_line(str(writer), 40)}" if writer else "another version"
    written = one_line(str(found.get(VERSION, "none")), 20)
    numbers = f"{VERSION} {written}, but this version reads {known}"
    return f"plan.json was written by {named} ({numbers}): {fields}"


def _named(what: str, names: list[str]) -> str:
    """Return a fault of the file in words: `missing: most_rows`."""
    if not names:
        return ""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{what}: {', '.join(one_line(name, 60) for name in names[:_MOST_NAMES])}{more}"


# Whether the model on the disk is the one that a run began with: its weights, its tokenizer and its config.json.
#
# The plan has their fingerprint (`models/files/fingerprint.py`), and for a model of the hub the commit. Whoever puts
# what
# was learnt on a model asks here, and is answered alike: `resume` as what generates, measures, exports and publishes.


def commit_of(config: Config) -> str:
    """Return the commit of the model in the hub's cache; empty for a folder. Raises ConfigError."""
    folder = _folder(config) if config.model.model_name_or_path else None
    return folder.name if folder and folder.parent.name == "snapshots" else ""


def with_own_commit(plan: Plan) -> Plan:
    """Return the plan with the commit that its run started with as revision, if the cache still has it: a branch may
    have moved on since."""
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
    # Another folder is that of the model below an adapter that went on.
    began_with = plan.model_key if folder is None else base_model_part(plan.model_key)
    if find_task(config.task.type).model_key(config) == began_with:
        return None
    name = one_line(str(folder or plan.config.model.model_name_or_path), 300)
    began = f", which was commit {plan.model_commit}" if plan.model_commit else ""
    hint = f"its weights, its tokenizer or its config.json differ: restore the old model{began}, or start a new run"
    return Problem(message="the model has changed since this run started", where=name, hint=hint)
