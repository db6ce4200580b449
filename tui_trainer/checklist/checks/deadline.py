"""A run that will miss its deadline is better made smaller now than stopped then."""

from tui_trainer.checklist.contract import Context, Verdict, check, failed, not_applicable, passed, warned
from tui_trainer.planning.deadline_ways import measured_switches, outlook, ways_to_make_it

# A plan is right within 15 % once steps were measured.
_SURE_SHARE = 1.15


@check(order=405, title="Done by the deadline")
def look(context: Context) -> Verdict:
    plan = context.planned
    if plan.deadline is None:
        return not_applicable("targets.deadline is empty: the run may take as long as it takes")
    found = outlook(plan)
    if found is None:
        return not_applicable(f"whether it is done in time is not known: {plan.step_seconds.reason}")
    if found.in_time:
        return passed(found.words, plan.step_seconds.reason)
    ways = ways_to_make_it(plan, plan.step_seconds.value or 0.0, found.seconds_left, measured_switches(plan))
    is_sure = found.seconds > _SURE_SHARE * found.seconds_left
    advice = "" if ways else "set a later targets.deadline: not one step of this run fits into the time that is left"
    fix = ways[0].patch if ways else None
    verdict = failed if is_sure else warned
    return verdict(found.words, plan.step_seconds.reason, fix=fix, advice=advice, ways=ways)
