"""With one class far ahead of the others, a model that always says it has a good loss and is of no use."""

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable, passed, warned
from tui_trainer.data.preparing.prepare import CLASS_ROWS
from tui_trainer.terminal.safe_text import one_line

_KEY = "task.class_weights"
_MOST_UNEVEN = 10
_SINGLE = "single_label_classification"


@check(order=234, title="Rare classes count")
def look(context: Context) -> Verdict:
    facts = context.facts
    if facts is None or facts.counts is None:
        return not_applicable("how often each class occurs is known once the data is prepared: tui-trainer preview")
    rows = facts.details.get(CLASS_ROWS, {})
    if facts.details.get("problem_type") != _SINGLE or len(rows) < 2:
        return not_applicable("no task with one class a row")
    most, least = max(rows, key=rows.__getitem__), min(rows, key=rows.__getitem__)
    sentence = f"{len(rows)} classes, from {rows[least]:,} rows ({_shown(least)}) to {rows[most]:,} ({_shown(most)})"
    if context.config.task.class_weights == "balanced":
        return passed(f"{sentence}; each counts as much as the others", switch="class weights: balanced")
    if rows[most] < _MOST_UNEVEN * rows[least]:
        return passed(sentence)
    share = rows[most] / sum(rows.values())
    return warned(
        f"{sentence}: always saying the most frequent is right in {share:.0%} of the rows", fix={_KEY: "balanced"}
    )


def _shown(name: str) -> str:
    """Findings are plain ASCII; the preview has the names as they are."""
    return one_line(name, 30).encode("ascii", "replace").decode()
