"""What is asked of a process that trains for a measurement: a request, as JSON has it."""

import json
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter

from tui_trainer.config.changes import Patch
from tui_trainer.config.load import Request
from tui_trainer.hardware.diagnosis import GpuChoice

_REQUEST = TypeAdapter(Request)


def question_of(request: Request, gpu: GpuChoice) -> dict[str, Any]:
    return {**_REQUEST.dump_python(request, mode="json"), "gpu": gpu}


def request_of(question: dict[str, Any]) -> Request:
    """What `question_of` has put in words, among other things."""
    return _REQUEST.validate_python(question)


def with_settings(request: Request, patch: Patch) -> Request:
    """The same with these settings instead."""
    own = [one for one in request.assignments if one.partition("=")[0].strip() not in patch]
    shortcuts = {key: value for key, value in request.shortcuts.items() if key not in patch}
    ours = [f"{key}={json.dumps(value)}" for key, value in patch.items()]
    return replace(request, assignments=(*own, *ours), shortcuts=shortcuts)
