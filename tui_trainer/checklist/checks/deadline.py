"""Is the run done by the time that was asked for?"""

from collections.abc import Iterator
from dataclasses import replace

from tui_trainer.checklist.contract import Context, Verdict, check, failed, not_applicable, passed, warned
from tui_trainer.checklist.gains import KeptGains, Measurable
from tui_trainer.config.changes import settings_words
from tui_trainer.config.load import value_of
from tui_trainer.planning.deadline_ways import Switch, outlook, ways_to_make_it

# A plan is right within 15 % once steps were measured.
_SURE_SHARE = 1.15
# What makes steps faster at an equal loss, where it was measured here.
_SWITCHES: tuple[dict[str, object], ...] = (
    {"training.torch_compile": True},
    {"data.packing": True},
    {"data.group_by_length": True},
    {"training.gradient_checkpointing": False},
    {"training.mixed_precision": "bf16"},
    {"training.optim": "adamw_torch_fused"},
    {"model.attn_implementation": "sdpa"},
    {"training.empty_cache_steps": 0},
)
_LEAST_SPEED_UP = 1.05


@check(
    order=405,
    title="Done by the deadline",
    why="A run that will miss its deadline is better made smaller now than stopped then.",
)
def look(context: Context) -> Verdict:
    plan = context.planned
    if plan.deadline is None:
        return not_applicable("targets.deadline is empty: the run may take as long as it takes")
    found = outlook(plan)
    if found is None:
        return not_applicable(f"whether it is done in time is not known: {plan.step_seconds.reason}")
    if found.in_time:
        return passed(found.words, plan.step_seconds.reason)
    ways = ways_to_make_it(plan, plan.step_seconds.value or 0.0, found.seconds_left, tuple(_measured(context)))
    is_sure = found.seconds > _SURE_SHARE * found.seconds_left
    advice = "" if ways else "set a later targets.deadline: not one step of this run fits into the time that is left"
    fix = ways[0].patch if ways else None
    verdict = (failed if is_sure else warned)(found.words, plan.step_seconds.reason, fix=fix, advice=advice)
    return replace(verdict, ways=ways)


def _measured(context: Context) -> Iterator[Switch]:
    """What was measured to be faster than this config on this machine."""
    kept = KeptGains.read(Measurable.of(context.config, context.planned, context.hardware))
    for patch in _SWITCHES:
        gain = None if all(value_of(context.config, key) == value for key, value in patch.items()) else kept.find(patch)
        if gain and gain.is_difference and gain.speed_up and gain.speed_up >= _LEAST_SPEED_UP:
            words = f"{settings_words(patch)} ({gain.speed_up:.2f} times as fast, measured here)"
            yield Switch(patch=patch, speed_up=gain.speed_up, words=words)
