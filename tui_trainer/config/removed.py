"""Settings and values that went with their feature: what becomes of a config or a plan that still has one.

One that changes nothing of what is learnt is dropped with a warning. One that does is refused with the reason, unless
it stands at its default. A finished run opens whatever its config said: it is read with `finished`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tui_trainer.errors import Problem
from tui_trainer.safe_text import one_line


@dataclass(frozen=True, kw_only=True, slots=True)
class Removed:
    """A setting that is gone, or one value of a setting that stays.

    `default` is what the setting was where nobody wrote it; `value` is the one value that is gone, None where the
    whole setting is, and `instead` what is used in its place.
    """

    reason: str
    hint: str = ""
    default: Any = None
    value: Any = None
    instead: Any = None
    changes_what_is_learnt: bool = False


_LANGUAGES = "name src_lang and tgt_lang in the tokenizer_config.json of the model, and leave this out"
# By dotted key.
REMOVED: dict[str, Removed] = {
    "task.source_language": Removed(
        reason="the language of the texts is no setting any more",
        hint=_LANGUAGES,
        default="",
        changes_what_is_learnt=True,
    ),
    "task.target_language": Removed(
        reason="the language of the answers is no setting any more",
        hint=_LANGUAGES,
        default="",
        changes_what_is_learnt=True,
    ),
    "model.kernels": Removed(reason="kernels of the hub are not taken any more", value="hub", instead="auto"),
    "targets.deadline": Removed(
        reason="a run has no deadline any more; `tui-trainer plan` says how long it takes", default=""
    ),
    "distributed.strategy": Removed(
        reason="tensor parallelism was removed",
        hint="set it to fsdp, which splits each layer's weights over the cards",
        value="tp",
        instead="fsdp",
        changes_what_is_learnt=True,
    ),
}


def without_removed(
    config: Mapping[str, Any], where: str, notes: list[str], problems: list[Problem], *, finished: bool = False
) -> dict[str, Any]:
    """The nested tables of a config without what is gone.

    What is dropped is reported in `notes`, what is refused in `problems`. `finished`: nothing is refused, since the
    run will not be trained any further.
    """

    def walk(table: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for name, value in table.items():
            key = f"{prefix}{name}"
            removed = REMOVED.get(key)
            if isinstance(value, dict):
                kept[name] = walk(value, f"{key}.")
            elif removed is None or (removed.value is not None and value != removed.value):
                kept[name] = value
            else:
                if removed.value is not None:
                    kept[name] = removed.instead
                if value != removed.default:
                    _report(key, value, removed, where, notes, problems, finished)
        return kept

    return walk(config, "")


def _report(
    key: str, value: Any, removed: Removed, where: str, notes: list[str], problems: list[Problem], finished: bool
) -> None:
    if removed.changes_what_is_learnt and not finished:
        problems.append(Problem(message=removed.reason, where=where, key=key, hint=removed.hint))
        return
    shown = one_line(repr(value), 60) if isinstance(value, str) else str(value)
    place = f"{where}: " if where else ""
    instead = f", {removed.instead!r} is" if removed.value is not None else ""
    notes.append(f"{place}{key} = {shown} is not used{instead}: {removed.reason}")
