"""The verdict of a gate as lines: counts of each outcome, and the rows that are broken or not learnt."""

from collections.abc import Mapping
from typing import Any

from tui_trainer.lines.plan_and_events import table_lines
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import format_number, quantity

_NAME_WIDTH, _TEXT_WIDTH = 40, 120
# Most rows of an outcome to show. `--json` has all rows.
_SHOWN_ROWS = 20
_MEANINGS = {
    "kept": "right before and now",
    "learnt": "right now, and wrong before (if known)",
    "broken": "right before, and wrong now",
    "wrong": "wrong now",
    "not learnt": "should be learnt, and wrong now",
    "not counted": "wrong before and now",
    "right": "right now",
}
_SHOWN_OUTCOMES = ("broken", "wrong", "not learnt")
# With fewer changed rows, even a split without exception is not rarer than 1 in 20.
_LEAST_CHANGED = 6
_SYMPTOMS = {"looping": "end in a loop", "unstopped": "do not stop", "copying": "only copy the prompt"}


def gate_lines(result: Mapping[str, Any], width: int = 160) -> list[str]:
    """Return the table of outcomes and the verdict on each model. `result` is as in `gate --json`."""
    models, reference = result["models"], one_line(result["reference"], _NAME_WIDTH)
    shown_outcomes = [outcome for outcome in _MEANINGS if any(model["outcomes"].get(outcome) for model in models)]
    table = [["rows that are", *shown_outcomes]]
    for model in models:
        counts = (str(model["outcomes"].get(outcome, 0)) for outcome in shown_outcomes)
        table.append([one_line(model["name"], _NAME_WIDTH), *counts])
    reference_words = f", compared with {reference}" if reference else ""
    lines = [f"{quantity(result['rows'], 'row')} of {one_line(result['suite'])}{reference_words}"]
    lines += [*table_lines(table, width, right=shown_outcomes), ""]
    lines += [f"{outcome}: {_MEANINGS[outcome]}" for outcome in shown_outcomes]
    for model in models:
        lines += ["", *_model_lines(model, result["rows"], reference, result["new_tokens"])]
    return lines


def _model_lines(model: Mapping[str, Any], row_count: int, reference: str, new_tokens: int) -> list[str]:
    name, failures = one_line(model["name"], _NAME_WIDTH), model["failures"]
    lines = [f"{name} {'does not pass: ' + '; '.join(failures) if failures else 'passes'}"]
    if reference:
        lines.append(_sign_test_words(model["better"], model["worse"], model["p_value"]))
    if reference and model["equal_answers"] == row_count:
        advice = "Check that the adapter is the trained one, and that the learning rate was not too low"
        effect = "the training has no effect on these rows"
        lines.append(f"All {row_count:,} answers equal those of {reference}: {effect}. {advice}")
    for symptom, (before, now) in model["symptoms"].items():
        if now > (before or 0):
            limit = f" within {new_tokens:,} tokens" if symptom == "unstopped" else ""
            earlier = "" if before is None else f" ({before:,} of {reference})"
            lines.append(f"{now:,} of {row_count:,} answers {_SYMPTOMS[symptom]}{limit}{earlier}")
    if model["outcomes"].get("broken"):
        advice = "train again with rows of its old kind beside yours: data.replay = FILE"
        lines.append(f"To keep what the model could do before, {advice}")
    for outcome in _SHOWN_OUTCOMES:
        rows = [row for row in model["rows"] if row["outcome"] == outcome]
        for row in rows[:_SHOWN_ROWS]:
            prompt = one_line(row["row"]["prompt"].strip(), _TEXT_WIDTH)
            lines.append(f"  {outcome}: {one_line(row['row']['where'])}  {prompt}")
            lines += [f"    before {_reply_text(row['before'])}"] if row["before"] else []
            lines += [f"    now    {_reply_text(row['now'])}", f"    why    it {row['why']}"]
        if len(rows) > _SHOWN_ROWS:
            lines.append(f"  {len(rows) - _SHOWN_ROWS:,} more rows are {outcome}: --json lists them")
    return lines


def _reply_text(reply: Mapping[str, Any]) -> str:
    text, tokens = reply["text"].strip(), quantity(reply["tokens"], "token")
    if text or not reply["tokens"]:
        return one_line(text, _TEXT_WIDTH) or "(nothing)"
    return (
        f"({tokens} of white space only)" if reply["text"] else f"({tokens} without text, such as unknown characters)"
    )


def _sign_test_words(better: int, worse: int, p_value: float) -> str:
    """Return in words whether the difference of two models is more than chance."""
    changed = better + worse
    if not changed:
        return "No row became right or wrong"
    split = f"{quantity(changed, 'row')} changed: {better:,} became right, {worse:,} became wrong"
    if changed < _LEAST_CHANGED:
        return f"{split}. Fewer than {_LEAST_CHANGED} changed rows are too few to exclude chance"
    verdict = "chance alone can explain this" if p_value > 0.05 else "this is more than chance"
    return f"{split}. Such a split has a probability of {format_number(p_value, 2)} by chance (sign test): {verdict}"
