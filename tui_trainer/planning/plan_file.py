"""plan.json: written, and read again by the version that wrote it, or one whose plans have the same fields."""

import json

from pydantic import ValidationError

from tui_trainer.planning.plan import Plan
from tui_trainer.runs.folder import RunFolder
from tui_trainer.safe_text import one_line

VERSION = "plan_version"
_MOST_NAMES = 3


def write_plan_file(folder: RunFolder, plan: Plan) -> None:
    """Into plan.json, whole or not at all. Raises FolderError."""
    folder.write_file(folder.plan, plan.model_dump_json(indent=1).encode())


def read_plan_file(content: bytes) -> Plan:
    """The plan. Raises ValueError with a clause about plan.json: by whom it was written, and which field is wrong."""
    try:
        return Plan.model_validate_json(content)
    except ValidationError as error:
        problem = error
    try:
        found = json.loads(content)
    except ValueError as error:
        raise ValueError(f"plan.json is damaged: {one_line(str(error), 80)}") from None
    if not isinstance(found, dict):
        raise ValueError("plan.json is damaged: it holds no fields") from None
    missing = _named("missing", [name for name in Plan.model_fields if name not in found])
    unknown = _named("unknown", [name for name in found if name not in Plan.model_fields])
    # The first field whose value is not one; that of the version says nothing.
    wrong = min(problem.errors(), key=lambda error: error["loc"] == (VERSION,))
    said = one_line(f"{'.'.join(map(str, wrong['loc']))}: {wrong['msg']}", 160)
    fields = "; ".join(filter(None, (missing, unknown))) or said
    known = Plan.model_fields[VERSION].default
    if found.get(VERSION) == known:
        raise ValueError(f"plan.json is not a plan of this version: {fields}") from None
    versions = found.get("versions")
    writer = versions.get("tui-trainer") if isinstance(versions, dict) else None
    named = f"tui-trainer {one_line(str(writer), 40)}" if writer else "another version"
    written = one_line(str(found.get(VERSION, "none")), 20)
    numbers = f"{VERSION} {written}, where this one reads {known}"
    raise ValueError(f"plan.json was written by {named} ({numbers}): {fields}") from None


def _named(what: str, names: list[str]) -> str:
    """`missing: most_rows`."""
    if not names:
        return ""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{what}: {', '.join(one_line(name, 60) for name in names[:_MOST_NAMES])}{more}"
