"""Measure training options: added to a plain baseline one after another, and each one alone.

The check of an option says which settings it changes, and why it does not apply here."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tui_trainer.advice.checklist import Finding, all_checks, run_checks
from tui_trainer.advice.gather import gather
from tui_trainer.advice.rules.kernels import COMPILE
from tui_trainer.advice.rules.model_size import LAYERS
from tui_trainer.advice.rules.precision import why_no_autotune
from tui_trainer.config.changes import Patch
from tui_trainer.config.load import LoadedConfig, Request
from tui_trainer.config.sections import MODEL_KEY
from tui_trainer.hardware.diagnosis import GpuChoice
from tui_trainer.launching.open_run import load_config
from tui_trainer.launching.prepare import estimated_plan
from tui_trainer.lines.plan_and_events import table_lines
from tui_trainer.measure import starting
from tui_trainer.measure.micro_batches import with_settings
from tui_trainer.measure.sessions import WARM_UP_STEPS
from tui_trainer.measure.steps import Steps, ask_for_steps, others_words, short_run, table, why_not_measurable
from tui_trainer.measure.turns import Notify, TimeLimit, Variant, measure_in_turns, pick_variants, reasons, turns_words
from tui_trainer.methods.optimizers import DEFAULT as OPTIMIZER
from tui_trainer.methods.optimizers import OPTIMIZER_KEY
from tui_trainer.models.catalogue import all_entries
from tui_trainer.models.facts import find_model
from tui_trainer.planning.batch_cut import ACCUMULATION_KEY, EFFECTIVE_BATCH_KEY, MICRO_BATCH_KEY
from tui_trainer.planning.plan import Plan
from tui_trainer.tasks import find_task

MINUTES = 9
_FEWEST_STEPS, _MOST_STEPS = 3, 12
# The rest of the time is for options that are slower than the baseline, and for compiling.
_TIME_SHARE = 0.8
BASELINE = "baseline"
_PLAIN: Patch = {
    "training.mixed_precision": "no",
    "training.tf32": False,
    "data.packing": False,
    "data.group_by_length": False,
    "model.attn_implementation": "eager",
    "model.kernels": "none",
    "dataloader.num_workers": 0,
    COMPILE: False,
    "training.gradient_checkpointing": False,
    MICRO_BATCH_KEY: "auto",
    ACCUMULATION_KEY: "auto",
}
_BATCHES = (8, 16, 32, 64)
_PLAIN_ADAMW = "adamw_torch"
# A smaller model has at most this share of the parameters, because otherwise its speed hardly differs.
_SMALLER_SHARE = 0.8
_SHORT_RUNS_NOTE = "these losses come from short runs and predict little: --whole trains the full run for each line"


@dataclass(frozen=True, slots=True)
class _Switch:
    """A training option. It is not measured if the status of its `check` is one of `skipped_statuses`.

    If `cumulates` is true, the option is also measured on top of the options before it."""

    name: str
    patch: Patch
    check: str = ""
    cumulates: bool = True
    skipped_statuses: tuple[str, ...] = ("n/a",)


_SWITCHES = (
    _Switch("fused attention", {"model.attn_implementation": "auto"}, "attention"),
    _Switch("fused kernels", {"model.kernels": "auto"}, "kernels"),
    _Switch("fused AdamW", {OPTIMIZER_KEY: OPTIMIZER}),
    _Switch("mixed precision", {"training.mixed_precision": "auto"}, "precision"),
    _Switch("TF32", {"training.tf32": True}, "tf32"),
    _Switch("packing", {"data.packing": "auto"}),
    _Switch("grouped by length", {"data.group_by_length": True}, "padding", False, ("n/a", "pass")),
    _Switch("2 loader workers", {"dataloader.num_workers": 2}),
    _Switch("compiled layers", {COMPILE: True}),
    _Switch("gradient checkpointing", {"training.gradient_checkpointing": True}),
    _Switch("Unsloth", {"model.provider": "unsloth", "model.attn_implementation": "auto"}, cumulates=False),
)


@dataclass
class TrainingBench:
    """Measurement of training options, with `steps` steps in each turn; None: as many as fit into `seconds`.

    `only` has parts of names. With `trains_whole_run` each variant trains the whole run once, for its final loss."""

    request: Request
    steps: int | None
    rounds: int
    gpu: GpuChoice
    notify: Notify
    only: Sequence[str] = ()
    seconds: float = 60.0 * MINUTES
    trains_whole_run: bool = False

    def __post_init__(self) -> None:
        if self.trains_whole_run:
            self.rounds = 1

    def measure(self) -> tuple[list[Variant], str]:
        """Return (variants, why not all were measured or ''). Raises InputError if the baseline cannot be trained."""
        self.notify("planning the variants")
        time_limit = TimeLimit(self.seconds)
        variants = pick_variants(list(self.variants()), self.only)
        count = self.steps or _MOST_STEPS
        steps = Steps(self._short_baseline, self.gpu, count=count, least_steps=_FEWEST_STEPS)
        if self.steps is None and not self.trains_whole_run:
            # A step with more rows takes longer.
            row_counts = [self._rows_of(variant) for variant in variants if not variant.reason]
            steps_per_round = sum(rows / self.baseline_rows for rows in row_counts)
            steps.share_seconds = _TIME_SHARE * self.seconds / max(steps_per_round, 1)
        ask_variant = self._take_whole_run if self.trains_whole_run else steps.ask
        measure_in_turns(variants, ask_variant, time_limit, rounds=self.rounds, notify=self.notify)
        self.steps = None if self.trains_whole_run else steps.count
        return variants, time_limit.cut_short

    def _take_whole_run(self, variant: Variant, is_first: bool, seconds: float) -> dict[str, Any]:
        step_count = max(_FEWEST_STEPS, round(self._whole_rows / self._rows_of(variant)) - WARM_UP_STEPS)
        request = short_run(self.request, step_count, self._baseline_settings)
        return ask_for_steps(request, self.gpu, step_count, variant.patch, seconds)

    def _rows_of(self, variant: Variant) -> int:
        return int(variant.patch.get(EFFECTIVE_BATCH_KEY, self.baseline_rows))

    def variants(self) -> Iterator[Variant]:
        """Yield the baseline, options added one after another, each option alone, and other batch sizes.

        The added options come first, because the time may be over before the end."""
        yield self._variant(BASELINE, {})
        switch_variants = [(switch, self._switched(switch)) for switch in _SWITCHES]
        small_patch, lack = self._smaller_model()
        patch: dict[str, Any] = {}
        first_name = ""
        for switch, variant in switch_variants:
            if switch.cumulates and not variant.reason:
                first_name = first_name or switch.name
                patch |= variant.patch
                yield self._variant(f"+ {switch.name}", patch)
        if first_name:
            yield self._accumulated("+ ", patch)
        larger_patch = {**patch, EFFECTIVE_BATCH_KEY: 2 * self.baseline_rows, MICRO_BATCH_KEY: 2 * self.baseline_rows}
        variant = self._variant("+ larger batch", larger_patch)
        yield variant
        yield self._variant("+ smaller model", {**(patch if variant.reason else larger_patch), **small_patch}, lack)
        for switch, variant in switch_variants:
            yield replace(variant, reason=f"the same as + {first_name}") if switch.name == first_name else variant
        yield Variant(name="cuDNN autotune", reason=why_no_autotune(self._baseline_plan.model_shape().model_type))
        yield self._accumulated("", {})
        for rows in _BATCHES:
            reason = "same as the baseline" if rows == self.baseline_rows else ""
            yield self._variant(f"batch {rows}", {EFFECTIVE_BATCH_KEY: rows, MICRO_BATCH_KEY: rows}, reason)
        yield self._variant("smaller model", small_patch, lack)

    def _smaller_model(self) -> tuple[Patch, str]:
        """Return (settings of a smaller model, '') or ({}, why there is none).

        It has half of the layers, or is the next smaller model of the catalogue that is on this machine."""
        config, parameters = self._baseline_plan.config, self._baseline_plan.parameters.value
        kinds = find_task(config.task.type).architectures
        if config.is_from_scratch and not config.model.model_name_or_path:
            layer_count = config.model.scratch.num_hidden_layers
            return ({LAYERS: layer_count // 2}, "") if layer_count > 1 else ({}, "the model has only one layer")
        if config.is_from_scratch or not kinds:
            return {}, "the size of this model is fixed by its config.json"
        entries = sorted(all_entries(), key=lambda entry: -entry.parameters)
        for entry in entries:
            kind = str((entry.config.get("architectures") or [""])[0])
            is_smaller = entry.parameters <= _SMALLER_SHARE * parameters
            if is_smaller and kind.endswith(kinds) and find_model(entry.name).folder:
                return {MODEL_KEY: entry.name, "model.revision": "main"}, ""
        return {}, "no smaller model of the catalogue is on this machine; get one with `tui-trainer download`"

    def _switched(self, switch: _Switch) -> Variant:
        finding = self._findings.get(switch.check)
        if finding and finding.status in switch.skipped_statuses:
            return Variant(name=switch.name, reason=finding.verdict.evidence)
        # The fix that the option's check suggests takes precedence if it changes a setting of the option.
        fix = (finding.fix if finding else None) or {}
        return self._variant(switch.name, fix if set(fix) & set(switch.patch) else switch.patch)

    def _accumulated(self, sign: str, others: Patch) -> Variant:
        rows = max(1, self.baseline_rows // 4)
        reason = "" if rows < self.baseline_rows else "a step has only one row"
        return self._variant(sign + "accumulation", {**others, MICRO_BATCH_KEY: rows}, reason)

    @cached_property
    def baseline_rows(self) -> int:
        """Number of rows in a step of the baseline: as many as fit into one pass, by the plan."""
        loaded = load_config(short_run(self.request, self.steps or _MOST_STEPS, self._plain), gpu=self.gpu)
        return estimated_plan(loaded, gpu=self.gpu).per_device_train_batch_size.value

    @cached_property
    def _plain(self) -> dict[str, Any]:
        """Settings of the baseline. An optimizer other than AdamW is kept, because the learning rate belongs to it."""
        optimizer = self._loaded.config.training.optim
        return {**_PLAIN, **({OPTIMIZER_KEY: _PLAIN_ADAMW} if optimizer == OPTIMIZER else {})}

    @property
    def _baseline_settings(self) -> dict[str, Any]:
        return {**self._plain, EFFECTIVE_BATCH_KEY: self.baseline_rows, MICRO_BATCH_KEY: self.baseline_rows}

    @cached_property
    def _short_baseline(self) -> Request:
        return short_run(self.request, self.steps or _MOST_STEPS, self._baseline_settings)

    @cached_property
    def _loaded(self) -> LoadedConfig:
        return load_config(self.request, gpu=self.gpu)

    @cached_property
    def _requested(self) -> Plan:
        """Plan of the requested run, without changes for measuring."""
        return estimated_plan(self._loaded, gpu=self.gpu)

    @property
    def whole_tokens(self) -> float:
        """Number of tokens that the requested run reads in all of its epochs."""
        return self._whole_rows * self._requested.train_tokens.value / max(self._requested.train_rows.value, 1)

    @property
    def _whole_rows(self) -> int:
        plan = self._requested
        return plan.total_steps.value * min(plan.effective_batch_size.value, plan.train_rows.value)

    @cached_property
    def _findings(self) -> Mapping[str, Finding]:
        names = {switch.check for switch in _SWITCHES}
        context = gather(self._load({}), gpu=self.gpu)
        checks = [check for check in all_checks() if check.name in names]
        return {finding.name: finding for finding in run_checks(context, checks)}

    def _load(self, patch: Patch) -> LoadedConfig:
        return load_config(with_settings(self._short_baseline, patch), gpu=self.gpu)

    @cached_property
    def _baseline_plan(self) -> Plan:
        return estimated_plan(self._load({}), gpu=self.gpu)

    def _variant(self, name: str, patch: Patch, reason: str = "") -> Variant:
        """Return a variant with the settings of `patch`. Its reason says why it cannot be measured, if so."""
        if patch and not reason:
            reason = why_not_measurable(self._baseline_plan, patch, self._load, self.gpu)
        return Variant(name=name, patch=dict(patch), reason=reason)


def trial_lines(result: Mapping[str, Any], width: int) -> list[str]:
    """Return the lines of the tables of `bench train` and of their columns' meaning, from its JSON."""
    rows = result["variants"]
    if not rows[0]["turns"]:
        return []
    amount_words = "all steps of the run" if result["whole"] else f"{result['steps']} steps per round"
    baseline_words = f"{result['batch']} padded rows in one micro-batch, fp32, plain attention"
    cells = table(rows)
    lines = [
        f"{amount_words}, {turns_words(result['rounds'])}",
        f"baseline: {baseline_words}, batches made between steps",
        *table_lines(cells, width, right=cells[0][1:]),
        f"speed-up: ratio of tokens/s; loss: held-out loss after {'the run' if result['whole'] else 'these steps'}; "
        "+: together with all + lines above it",
        *([] if result["whole"] else [_SHORT_RUNS_NOTE]),
        "whole run: time of all steps of the requested run at the measured rate",
        *result["doubts"],
    ]
    if any(row["turns"] for row in result["starts"]):
        start_cells = starting.table(result["starts"])
        lines += ["", *table_lines(start_cells, width, right=start_cells[0][1:])]
    return lines


def doubts(rows: Sequence[Mapping[str, Any]], cores: int) -> list[str]:
    """Return sentences about why figures may mislead: speed-ups within the spread, other programs, a slowed GPU."""
    unclear_names = [row["name"] for row in rows if row["is_clear"] is False]
    sentences = [f"no measurable difference (marked ?): {', '.join(unclear_names)}"] if unclear_names else []
    if others_sentence := others_words(rows, cores):
        sentences.append(others_sentence)
    slow_causes = sorted({row["slowed_by"] for row in rows if row["slowed_by"]})
    return sentences + ([f"the GPU was slowed down by {' and '.join(slow_causes)} meanwhile"] if slow_causes else [])


def reasons_of(result: Mapping[str, Any]) -> list[str]:
    """Return sentences that say which variants were not measured and why, from the JSON of `bench train`."""
    return reasons([*result["variants"], *result["starts"]])
