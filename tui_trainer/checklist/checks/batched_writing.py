"""Each token that is written reads all weights once, for one row or for thirty."""

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable, passed, warned
from tui_trainer.checklist.memory_fit import memory_with
from tui_trainer.planning.basis import EVAL_BATCH
from tui_trainer.tasks import find_task

_FEW_ROWS = 4


@check(
    order=510,
    title="Texts are written in batches",
)
def look(context: Context) -> Verdict:
    plan, config = context.planned, context.config
    task = find_task(config.task.type)
    if not (task.continues or task.answers_in_evaluations):
        return not_applicable("a model that labels texts writes none; predictions are made in batches all the same")
    rows = plan.per_device_eval_batch_size.value
    answered = min(config.evaluation.generate_rows, plan.eval_rows.value) if task.answers_in_evaluations else 0
    sentence = f"tui-trainer predict writes for batches of rows of similar length, an evaluation for {rows} at once"
    if not answered or rows >= min(answered, _FEW_ROWS) or config.evaluation.per_device_eval_batch_size == "auto":
        return passed(sentence, "tui-trainer bench RUN compares one by one with batches, on this machine")
    sentence += f", of {answered} that are answered each time"
    budget, more = context.basis.room.budget_bytes, plan.per_device_train_batch_size.value
    fits = budget is None or memory_with(context, eval_batch=more) <= budget
    advice = "" if fits and more > rows else "raise evaluation.per_device_eval_batch_size as far as memory allows"
    return warned(sentence, fix={EVAL_BATCH: "auto"} if not advice else None, advice=advice)
