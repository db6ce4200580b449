"""How long a run takes to its end, and the ways to be done in less time: each of them is enough on its own.

With the step's planned seconds before the run, with measured ones while it goes.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from tui_trainer.config.changes import settings_words, with_changes
from tui_trainer.config.load import value_of
from tui_trainer.config.sections import Config, ScratchSection
from tui_trainer.deadlines import clock_words, length_seconds
from tui_trainer.planning.batching import ACCUMULATION, EFFECTIVE
from tui_trainer.planning.duration import training_flops
from tui_trainer.planning.measured_gains import KeptGains, Measurable
from tui_trainer.planning.plan import Plan
from tui_trainer.planning.training_setup import TrainingSetup
from tui_trainer.runs.cadence import every, times
from tui_trainer.runs.events import WayInTime
from tui_trainer.runs.remaining import EVALUATION_SHARE, SAMPLE_SECONDS, SAVE_BYTES_PER_SECOND
from tui_trainer.units import format_count, format_seconds

# A plan is right within 15 %: what is to fit gets so much of the time.
_SHARE = 0.85
_MOST_WAYS = 3
# The part of a step that goes in proportion to its rows.
_PROPORTIONAL = 0.9
# What saves less of the time is no way.
_LEAST_SAVING = 0.03
_EVALUATION_BUDGET = 0.05
_EVAL, _SAMPLE = "evaluation.eval_steps", "logging.sample_steps"
_ROWS, _CHARACTERS = "data.max_rows", "data.max_chars"
_WIDTH, _LEAST_WIDTH = "model.scratch.hidden_size", 16
_LAYERS = "model.scratch.num_hidden_layers"
# What makes steps faster at an equal loss, where it was measured here, by at least so much.
_SWITCHES: tuple[dict[str, Any], ...] = (
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Switch:
    """Settings that were measured to make steps so many times as fast."""

    patch: Mapping[str, Any]
    speed_up: float
    words: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Outlook:
    """When a planned run would be done if it started now, beside when it has to be."""

    seconds: float
    seconds_left: float

    @property
    def in_time(self) -> bool:
        return self.seconds <= self.seconds_left

    @property
    def words(self) -> str:
        """`done at about 16:40, 1 h 20 min before 18:00`."""
        now = datetime.now().astimezone()
        by, done = (clock_words(now + timedelta(seconds=count), now) for count in (self.seconds_left, self.seconds))
        apart = format_seconds(abs(self.seconds_left - self.seconds))
        return f"done at about {done}, {apart} {'before' if self.in_time else 'after'} {by}"


def outlook(plan: Plan) -> Outlook | None:
    """None without a deadline, and where only a measured step can tell."""
    step = plan.step_seconds.value
    if plan.deadline is None or step is None:
        return None
    return Outlook(seconds=run_seconds(plan, step), seconds_left=seconds_left(plan))


def seconds_left(plan: Plan) -> float:
    """For a run that starts now; below 0 when it is too late. A length counts from the start."""
    assert plan.deadline is not None, "asked for plans with a deadline"
    length = length_seconds(plan.config.targets.deadline)
    return length if length is not None else (plan.deadline.at - datetime.now().astimezone()).total_seconds()


def run_seconds(
    plan: Plan, step_seconds: float, *, config: Config | None = None, steps: int = 0, after: int = 0
) -> float:
    """Seconds from step `after` to the end: steps, evaluations, checkpoints, text samples and the final model.

    `config` and `steps`: others than planned.
    """
    config, steps = config or plan.config, steps or plan.total_steps.value
    rows = max(min(plan.effective_batch_size.value, plan.train_rows.value), 1)
    held_out = min(plan.eval_rows.value, config.evaluation.max_eval_rows or plan.eval_rows.value)
    evaluation = held_out * step_seconds / rows * EVALUATION_SHARE
    save = plan.checkpoint_bytes.value / SAVE_BYTES_PER_SECOND
    sample = every(config.logging.sample_steps, steps)
    samples = (steps // sample - after // sample) * SAMPLE_SECONDS if sample else 0.0
    evaluations = times(steps, every(config.evaluation.eval_steps, steps), after=after)
    saves = 1 + times(steps, every(config.checkpoint.save_steps, steps), after=after)
    return (steps - after) * step_seconds + evaluations * evaluation + saves * save + samples


def at_most_steps(plan: Plan, steps: int) -> dict[str, Any]:
    """At most so many steps, at least one; a whole number of epochs where that is possible."""
    whole_epochs = steps // plan.steps_per_epoch.value
    if plan.config.training.max_steps or whole_epochs < 1:
        return {"training.max_steps": max(1, steps)}
    return {"training.num_train_epochs": float(whole_epochs)}


def way_line(way: WayInTime) -> str:
    """`2 of 5 epochs: training.num_train_epochs = 2.0, 1 h 10 min`."""
    return f"{way.words}: {settings_words(way.patch)}, {format_seconds(way.seconds)}"


def measured_switches(plan: Plan) -> list[Switch]:
    """What was measured to be faster than this config on this machine."""
    kept, found = KeptGains.read(Measurable.of(plan)), []
    for patch in _SWITCHES:
        gain = None if all(value_of(plan.config, key) == value for key, value in patch.items()) else kept.find(patch)
        if gain and gain.is_difference and gain.speed_up and gain.speed_up >= _LEAST_SPEED_UP:
            words = f"{settings_words(patch)} ({gain.speed_up:.2f} times as fast, measured here)"
            found.append(Switch(patch=patch, speed_up=gain.speed_up, words=words))
    return found


def ways_to_make_it(
    plan: Plan, step_seconds: float, seconds: float, switches: Sequence[Switch]
) -> tuple[WayInTime, ...]:
    """Up to three ways to be done in so many seconds, what costs nothing first; none where one step takes longer."""
    found: list[WayInTime] = []
    for way in _ways(plan, step_seconds, _SHARE * seconds, switches):
        if len(found) < _MOST_WAYS and all(way.patch != other.patch for other in found):
            found.append(way)
    return tuple(found)


def _ways(plan: Plan, step_seconds: float, budget: float, switches: Sequence[Switch]) -> Iterator[WayInTime]:
    least = _most_steps(plan, plan.config, step_seconds, budget)
    for switch in sorted(switches, key=lambda one: -one.speed_up):
        yield from _with_fewer_steps(plan, dict(switch.patch), step_seconds / switch.speed_up, budget, switch.words)
    if quiet := _uninterrupted(plan):
        whole = run_seconds(plan, step_seconds)
        if run_seconds(plan, step_seconds, config=with_changes(plan.config, quiet)) < (1 - _LEAST_SAVING) * whole:
            yield from _with_fewer_steps(plan, quiet, step_seconds, budget, "evaluated at the end only")
    yield from _fewer_held_out(plan, step_seconds, budget)
    if not least:
        return
    yield _fewer_steps(plan, {}, plan.config, step_seconds, least, "")
    training = plan.total_steps.value * step_seconds
    between = run_seconds(plan, step_seconds) - training
    # Smaller steps have the same evaluations, and what each costs besides its rows.
    share = _PROPORTIONAL * (budget - between) / training
    if share > 0:
        yield from _less_data(plan, step_seconds, share)
    yield from _smaller_model(plan, step_seconds, budget)
    if share > 0:
        yield from _shorter_rows(plan, step_seconds, share)


def _most_steps(plan: Plan, config: Config, step_seconds: float, budget: float) -> int:
    """The most steps that take no longer; 0 where one does."""
    every_count = range(1, plan.total_steps.value + 1)
    return bisect_left(
        every_count, True, key=lambda steps: run_seconds(plan, step_seconds, config=config, steps=steps) > budget
    )


def _with_fewer_steps(
    plan: Plan, patch: dict[str, Any], step_seconds: float, budget: float, words: str
) -> Iterator[WayInTime]:
    """The patch alone where that is enough, else with the most steps that then fit."""
    config = with_changes(plan.config, patch)
    alone = run_seconds(plan, step_seconds, config=config)
    if alone <= budget:
        yield WayInTime(words=words, patch=patch, seconds=alone)
    elif steps := _most_steps(plan, config, step_seconds, budget):
        yield _fewer_steps(plan, patch, config, step_seconds, steps, words)


def _fewer_steps(
    plan: Plan, patch: dict[str, Any], config: Config, step_seconds: float, most: int, words: str
) -> WayInTime:
    fewer = at_most_steps(plan, most)
    epochs = fewer.get("training.num_train_epochs")
    steps = round(epochs * plan.steps_per_epoch.value) if epochs else fewer["training.max_steps"]
    if epochs:
        count = f"{epochs:g} of {plan.config.training.num_train_epochs:g} epochs"
    else:
        count = f"{steps:,} of {plan.total_steps.value:,} steps"
    seconds = run_seconds(plan, step_seconds, config=config, steps=steps)
    return WayInTime(words=f"{words}, and {count}" if words else count, patch=patch | fewer, seconds=seconds)


def _uninterrupted(plan: Plan) -> dict[str, Any]:
    """Early stopping needs its evaluations."""
    config = plan.config
    patch: dict[str, Any] = {}
    if plan.eval_every_steps.value and not config.evaluation.early_stopping_patience:
        patch[_EVAL] = 0
    return patch | ({_SAMPLE: 0} if plan.sample_every_steps.value else {})


def _fewer_held_out(plan: Plan, step_seconds: float, budget: float) -> Iterator[WayInTime]:
    """Where one evaluation takes much of the time that there is."""
    rows = max(min(plan.effective_batch_size.value, plan.train_rows.value), 1)
    held_out, each = plan.eval_rows.value, step_seconds / rows * EVALUATION_SHARE
    most = max(math.floor(_EVALUATION_BUDGET * budget / each), 1) if budget > 0 else held_out
    if most < held_out:
        words = f"{most:,} of {held_out:,} held-out rows"
        yield from _with_fewer_steps(plan, {"evaluation.max_eval_rows": most}, step_seconds, budget, words)


def _less_data(plan: Plan, step_seconds: float, share: float) -> Iterator[WayInTime]:
    """All epochs over a part of the data, where a setting cuts it to a known part; else as many steps of fewer rows."""
    seconds, limited = _seconds_of_share(plan, step_seconds, share), _limit_of_data(plan)
    if limited is None:
        yield from _smaller_steps(plan, seconds, share)
        return
    key, every_one = limited
    limit = math.floor(share * every_one)
    if limit >= 2 * plan.effective_batch_size.value:
        words = f"{format_count(limit)} of {format_count(every_one)} {'rows' if key == _ROWS else 'characters'}"
        yield WayInTime(words=words, patch={key: limit}, seconds=seconds)


def _seconds_of_share(plan: Plan, step_seconds: float, share: float) -> float:
    """Where each step takes that share of its time."""
    return run_seconds(plan, step_seconds) - (1 - share) * plan.total_steps.value * step_seconds


def _limit_of_data(plan: Plan) -> tuple[str, float] | None:
    """The setting that limits what is read, and how much is read now; None where that is not known, or where the steps
    are counted."""
    data, task = plan.config.data, plan.config.task.type
    trained = 1.0 if data.eval_path else 1 - data.eval_fraction
    if plan.config.training.max_steps or len(plan.sources) > 1:
        return None
    if data.max_chars:
        return _CHARACTERS, float(data.max_chars)
    if task == "char_lm":
        return _CHARACTERS, plan.train_tokens.value / trained
    # Documents of a language model may be cut into several rows: how many there are the plan does not say.
    return None if task == "causal_lm" else (_ROWS, plan.train_rows.value / trained)


def _smaller_steps(plan: Plan, seconds: float, share: float) -> Iterator[WayInTime]:
    training, rows = plan.config.training, math.floor(share * plan.effective_batch_size.value)
    if rows < 1 or plan.train_rows.value <= rows:
        return
    patch: dict[str, Any] = {EFFECTIVE: rows}
    patch |= {ACCUMULATION: "auto"} if training.gradient_accumulation_steps != "auto" else {}
    patch |= {} if training.max_steps else {"training.max_steps": plan.total_steps.value}
    words = f"{rows} of {plan.effective_batch_size.value} rows in each of {plan.total_steps.value:,} steps"
    yield WayInTime(words=words, patch=patch, seconds=seconds)


def _smaller_model(plan: Plan, step_seconds: float, budget: float) -> Iterator[WayInTime]:
    """From scratch with half of the layers, and so on; a pretrained model with LoRA instead of all weights."""
    scratch, tuning = plan.config.model.scratch, plan.config.tuning
    shape, setup = plan.model_shape(), plan.training_setup

    def flops(config: Config, setup: TrainingSetup) -> float:
        changed = plan.model_copy(update={"config": config}).model_shape()
        return training_flops(changed, setup, tokens=1, row_tokens=plan.longest_row)

    whole = training_flops(shape, setup, tokens=1, row_tokens=plan.longest_row)
    if not plan.config.model.model_name_or_path:
        layers = scratch.num_hidden_layers
        halves = [layers >> halvings for halvings in range(1, layers.bit_length())]
        fewer = [({_LAYERS: count}, f"{count} of {layers} layers") for count in halves]
        for patches in filter(None, (fewer, _narrower(scratch))):
            steps = [step_seconds * flops(with_changes(plan.config, patch), setup) / whole for patch, _ in patches]
            place = next((at for at, step in enumerate(steps) if run_seconds(plan, step) <= budget), len(steps) - 1)
            patch, words = patches[place]
            yield from _with_fewer_steps(plan, patch, steps[place], budget, words)
    elif not tuning.has_adapter and plan.config.model.init == "pretrained":
        patch = {"tuning.method": "lora"}
        step = step_seconds * flops(plan.config, replace(setup, method="lora", lora_rank=tuning.r)) / whole
        yield from _with_fewer_steps(plan, patch, step, budget, "LoRA instead of all weights")


def _narrower(scratch: ScratchSection) -> list[tuple[dict[str, Any], str]]:
    """Half as wide, a quarter, and so on, while the heads keep an even width."""
    found, width = [], scratch.hidden_size // 2
    while width >= _LEAST_WIDTH and width % (2 * scratch.num_attention_heads) == 0:
        found.append(({_WIDTH: width}, f"a width of {width} instead of {scratch.hidden_size}"))
        width //= 2
    return found


def _shorter_rows(plan: Plan, step_seconds: float, share: float) -> Iterator[WayInTime]:
    """No row is longer, so that the mean is at most that; packed rows and streams would only become more rows."""
    if plan.packing.value or (plan.config.task.type in ("causal_lm", "char_lm") and not plan.config.training.max_steps):
        return
    mean = plan.train_tokens.value / max(plan.train_rows.value, 1)
    length = math.floor(share * min(mean, plan.config.data.max_length))
    if length >= 16:
        seconds = _seconds_of_share(plan, step_seconds, share)
        yield WayInTime(words=f"rows of at most {length} tokens", patch={"data.max_length": length}, seconds=seconds)
