"""What is asked of a process that trains for a measurement: a request, as JSON has it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from tui_trainer.config.changes import Patch
from tui_trainer.config.load import Request
from tui_trainer.hardware.diagnosis import GpuChoice


def question_of(request: Request, gpu: GpuChoice) -> dict[str, Any]:
    """A request as JSON has it."""
    return {
        "config_file": str(request.config_file) if request.config_file else "",
        "profile": request.profile,
        "shortcuts": dict(request.shortcuts),
        "assignments": list(request.assignments),
        "gpu": gpu,
    }


def request_of(question: dict[str, Any]) -> Request:
    """What `question_of` has put in words."""
    file = question["config_file"]
    return Request(
        config_file=Path(file) if file else None,
        profile=question["profile"],
        assignments=tuple(question["assignments"]),
        shortcuts=question["shortcuts"],
    )


def with_settings(request: Request, patch: Patch) -> Request:
    """The same with these settings instead."""
    own = [one for one in request.assignments if one.partition("=")[0].strip() not in patch]
    shortcuts = {key: value for key, value in request.shortcuts.items() if key not in patch}
    ours = [f"{key}={json.dumps(value)}" for key, value in patch.items()]
    return replace(request, assignments=(*own, *ours), shortcuts=shortcuts)
