"""What becomes of another tool's name for a chat template: one of those here, the model's own, or a refusal."""

import re
from collections.abc import Mapping
from pathlib import Path

from tui_trainer.importing.conversion import Conversion
from tui_trainer.importing.rules import Why
from tui_trainer.safe_text import one_line

SETTING = "task.chat_template"
# How a model is called whose own template is meant: those that give a row without a system message the same one.
QWEN2_5 = re.compile(r"qwen2\.5-(coder-)?[\d.]+b-instruct(-1m)?")
QWEN3 = re.compile(r"qwen3-[\d.]+b(-a\d+b)?(-base)?")
PHI4 = re.compile("phi-4")


def write_template(
    done: Conversion,
    key: str,
    template: str,
    model: str,
    *,
    ours: Mapping[str, str],
    own: Mapping[str, re.Pattern[str]],
    reason: str = "",
) -> None:
    """`ours`: the tool's names for those that are here, `own`: its names for those that models of such a name have.
    `model` is the one of the file.
    """
    if template in ours:
        done.write(SETTING, ours[template], key, reason=reason)
    elif template in own and own[template].fullmatch(Path(model).name.lower()):
        more = f"; {reason}" if reason else ""
        done.leave(Why.ALWAYS, f"it is the model's own chat template, which counts{more}", key)
    else:
        why = "is not that of this model" if template in own else "is none of those here, and may not be the model's"
        hint = f"nearest: --without {key} for the model's own, or {SETTING}"
        done.leave(Why.REFUSED, f"the template {one_line(template, 40)} {why}; {hint}", key)
