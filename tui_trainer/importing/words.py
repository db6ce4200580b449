"""Rewrites and what was left out, as lines for people and as values for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tui_trainer.config.editing import toml_text
from tui_trainer.importing.contract import LeftOut, Rewrite, Why
from tui_trainer.safe_text import one_line

if TYPE_CHECKING:
    from tui_trainer.importing.imported import Imported

_VALUE_WIDTH, _KEY_WIDTH, _TARGET_WIDTH = 60, 60, 400


def sources_text(rewrite: Rewrite) -> str:
    """`lora_r: 16`, or `micro_batch_size 2 x gradient_accumulation_steps 8`."""
    if not rewrite.sources:
        return "not in the file"
    mark, joint = (" ", " x ") if rewrite.product else (": ", ", ")
    return joint.join(f"{_key(name)}{mark}{shown(value)}" for name, value in rewrite.sources.items())


def rewrite_line(rewrite: Rewrite) -> str:
    """`lora_r: 16 -> tuning.r = 16`, with the reason where there is one."""
    reason = f" ({rewrite.reason})" if rewrite.reason else ""
    value = one_line(toml_text(rewrite.value), _TARGET_WIDTH)
    return f"{sources_text(rewrite)} -> {rewrite.key} = {value}{reason}"


def left_out_line(left: LeftOut) -> str:
    """`report_to: none (not needed: ...)`."""
    return f"{_key(left.key)}: {shown(left.value)} ({left.why}: {left.reason})"


def refusal_words(left: LeftOut) -> str:
    """`task: question-answering cannot be trained here: ...`."""
    return f"{_key(left.key)}: {shown(left.value)} {left.why}: {left.reason}"


def unsaid_line(imported: Imported) -> str:
    """What the other tool takes where the file says nothing: here, our presets count."""
    values = ", ".join(f"{key} = {toml_text(value)}" for key, value in imported.unsaid.items())
    return f"not in the file, where {imported.kind.name} takes: {values}"


def report_lines(imported: Imported) -> list[str]:
    """What was recognised, each rewrite, what does not fit, and what else was left out."""
    where = one_line(str(imported.path))
    lines = [f"{where}: {imported.kind.title} ({imported.kind.name}): {imported.reason}"]
    lines += [rewrite_line(rewrite) for rewrite in imported.rewrites]
    lines += [unsaid_line(imported)] if imported.unsaid else []
    wrong = [left for left in imported.left_out if left.why is Why.DOES_NOT_FIT]
    lines += [f"{where}: {_key(left.key)}: {shown(left.value)} does not fit; {left.reason}" for left in wrong]
    rest = _rest(imported.left_out)
    lines += ["left out:", *(f"  {left_out_line(left)}" for left in rest)] if rest else []
    return lines


def as_values(imported: Imported) -> dict[str, Any]:
    """The same for programs: every value is one that JSON has."""
    rewrites = [
        {
            "from": plain(one.sources),
            "key": one.key,
            "value": one.value,
            "reason": one.reason,
            "line": rewrite_line(one),
        }
        for one in imported.rewrites
    ]
    left_out = [
        {"key": one.key, "value": plain(one.value), "why": str(one.why), "reason": one.reason}
        for one in imported.left_out
    ]
    kind = {"kind": imported.kind.name, "reason": imported.reason}
    return {**kind, "rewrites": rewrites, "left_out": left_out, "unsaid": imported.unsaid, "toml": imported.toml}


def shown(value: Any) -> str:
    """A value of a foreign file on one short line."""
    text = value if isinstance(value, str) and value else json.dumps(plain(value), ensure_ascii=False)
    return one_line(text, _VALUE_WIDTH)


def plain(value: Any) -> Any:
    """The value with nothing in it that JSON does not have: dates, `.inf` and bytes as texts."""
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(inner) for inner in value]
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)


def _key(name: str) -> str:
    return one_line(name, _KEY_WIDTH)


def _rest(left_out: Sequence[LeftOut]) -> list[LeftOut]:
    return [left for left in left_out if left.why is not Why.DOES_NOT_FIT]
