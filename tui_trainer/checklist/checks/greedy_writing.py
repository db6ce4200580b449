"""Each beam is a text of its own that is written as well; bench RUN measures both."""

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable, passed
from tui_trainer.models.writing import NO_SAMPLING, TEMPERATURE
from tui_trainer.tasks import find_task


@check(
    order=520,
    title="Greedy decoding",
    needs_plan=False,
)
def look(context: Context) -> Verdict:
    task, rows = find_task(context.config.task.type), context.config.evaluation.generate_rows
    if not (task.continues or task.answers_in_evaluations):
        return not_applicable("a model that labels texts writes none")
    if task.answers_in_evaluations:
        beams = NO_SAMPLING.num_beams
        return passed(f"answers of evaluations are greedy, {beams} beam, {rows} of them; predict --beams N takes more")
    return passed(
        f"text samples are drawn at temperature {TEMPERATURE:g}, one at a time; predict is greedy unless told"
    )
