"""A disk that fills up in the night stops the saving, and with it the safety of the run."""

from tui_trainer.checklist.contract import Context, Verdict, check, failed, not_applicable, passed, warned
from tui_trainer.planning.disk import run_bytes
from tui_trainer.planning.plan import Plan
from tui_trainer.units import format_bytes

_KEY = "checkpoint.save_total_limit"
_ROOMY_SHARE = 0.5


@check(
    order=340,
    title="Disk has room to spare",
)
def look(context: Context) -> Verdict:
    plan, free = context.planned, context.disk_free_bytes
    needed = plan.disk_bytes.value
    if free is None:
        return not_applicable(f"the run writes {format_bytes(needed)}; how much is free is not reported")
    sentence = f"the run writes {format_bytes(needed)} ({plan.disk_bytes.reason}), {format_bytes(free)} are free"
    if needed <= _ROOMY_SHARE * free:
        return passed(sentence)
    fits = _least_bytes(plan) <= _ROOMY_SHARE * free and context.config.checkpoint.save_total_limit > 1
    advice = "" if fits else f"choose another disk: --set output.runs_dir=FOLDER; now {context.config.output.runs_dir}"
    fix = {_KEY: 1} if fits else None
    return (failed if needed > free else warned)(sentence, fix=fix, advice=advice)


def _least_bytes(plan: Plan) -> int:
    """With one checkpoint kept, as many saves as there would be."""
    needed, _ = run_bytes(
        plan.checkpoint_bytes.value,
        plan.final_model_bytes,
        save_total_limit=1,
        saves=plan.total_steps.value,
        keeps_best=plan.config.evaluation.early_stopping_patience > 0,
        total_steps=plan.total_steps.value,
    )
    return needed
