"""The table of training, switch by switch: from a plain baseline each alone, and then one upon the other.

Which settings a switch changes, and why it does not apply here, is what its check of the checklist says of the
baseline, and what the plan says of them.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from tui_trainer.advice.checklist import Finding, all_checks, run_checks
from tui_trainer.advice.gather import gather
from tui_trainer.advice.rules.kernels import COMPILE
from tui_trainer.advice.rules.model_size import LAYERS
from tui_trainer.advice.rules.precision import why_no_autotune
from tui_trainer.bench.rounds import (
    WARM_UP_STEPS,
    Columns,
    Rounds,
    Variant,
    chosen,
    measure_in_turns,
    table_of,
    with_spread,
)
from tui_trainer.config.changes import Patch
from tui_trainer.config.load import Request
from tui_trainer.config.sections import MODEL_KEY
from tui_trainer.errors import InputError
from tui_trainer.hardware.diagnosis import GpuChoice
from tui_trainer.launching.micro_batches import question_of, with_settings
from tui_trainer.launching.open_run import load_config
from tui_trainer.launching.prepare import estimated_plan
from tui_trainer.methods.optimizers import DEFAULT as OPTIMIZER
from tui_trainer.methods.optimizers import OPTIMIZER_KEY
from tui_trainer.models.catalogue import all_entries
from tui_trainer.models.facts import find_model
from tui_trainer.planning.batch_cut import ACCUMULATION, EFFECTIVE, MICRO
from tui_trainer.planning.plan import Plan
from tui_trainer.tasks import find_task
from tui_trainer.units import format_bytes, format_seconds
from tui_trainer.worker.asking import WorkerFailed, ask

MINUTES = 9
_COMPILER_SECONDS = 120.0
_FEWEST_STEPS, _MOST_STEPS = 3, 12
# Some switches are slower than the baseline, and compiling takes its time.
_SHARE_OF_THE_TIME = 0.8
BASELINE = "baseline"
_EVAL_ROWS = 64
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
    MICRO: "auto",
    ACCUMULATION: "auto",
}
_BATCHES = (8, 16, 32, 64)
_PLAIN_ADAMW = "adamw_torch"
# Of the parameters: a model that is hardly smaller is no other choice.
_SMALLER = 0.8


@dataclass(frozen=True, slots=True)
class _Switch:
    """`check` names what is asked whether it applies: not where its status is one of `needless`. `cumulates`: it is
    switched on with others as well."""

    name: str
    patch: Patch
    check: str = ""
    cumulates: bool = True
    needless: tuple[str, ...] = ("n/a",)


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
    """`steps` are measured in each turn of each variant; None: twelve, or as many as let each variant have a turn in
    `seconds`. `only` names parts of the names of variants. `whole`: each takes all rows of the run that was asked for,
    once, however long that takes, so that its loss is that of the end."""

    request: Request
    steps: int | None
    rounds: int
    gpu: GpuChoice
    told: Callable[[str], None]
    only: Sequence[str] = ()
    seconds: float = 60.0 * MINUTES
    whole: bool = False

    def __post_init__(self) -> None:
        if self.whole:
            self.rounds = 1

    def measure(self) -> Rounds:
        """Raises InputError where the baseline cannot be trained."""
        self.told("planning the variants")
        ends = monotonic() + self.seconds
        variants = chosen(list(self.variants()), self.only)
        if self.steps is None and not self.whole and self._let_all_have_a_turn(variants):
            variants = [replace(one, question={**one.question, "steps": self.steps}) for one in variants]
        left = max(0.0, ends - monotonic())
        return measure_in_turns(variants, ask_for_steps, rounds=self.rounds, seconds=left, told=self.told)

    def _let_all_have_a_turn(self, variants: Sequence[Variant]) -> bool:
        """Set `steps` by what a few of the baseline take; False where the most is to be taken."""
        self.steps = _MOST_STEPS
        waiting = [one for one in variants if not one.reason]
        first, began = waiting[0], monotonic()
        self.told("timing a few steps of the baseline to choose the number of steps")
        try:
            found = ask_for_steps(
                replace(first, question={**first.question, "steps": _FEWEST_STEPS}), True, self.seconds
            )
        except WorkerFailed:
            # Its own line says why.
            return False
        seconds = monotonic() - began
        step_seconds = found["step_seconds"]
        start_seconds = max(0.0, seconds - (_FEWEST_STEPS + WARM_UP_STEPS) * step_seconds)
        # A step of more rows takes longer.
        steps_at_once = sum(one.question["patch"].get(EFFECTIVE, self.batch) / self.batch for one in waiting)
        left = _SHARE_OF_THE_TIME * (self.seconds - seconds) - start_seconds * len(waiting)
        fitting = int(left / (step_seconds * steps_at_once)) - WARM_UP_STEPS
        self.steps = min(_MOST_STEPS, max(_FEWEST_STEPS, fitting))
        return self.steps < _MOST_STEPS

    def variants(self) -> Iterator[Variant]:
        """The baseline, the switches one upon the other, each alone, and other batch sizes. The chain comes first, as
        the time may be over before the end."""
        yield self._variant(BASELINE, {})
        alone = [(switch, self._switched(switch)) for switch in _SWITCHES]
        smaller, why_not = self._smaller_model()
        together: dict[str, Any] = {}
        first = ""
        for switch, variant in alone:
            if switch.cumulates and not variant.reason:
                first = first or switch.name
                together |= variant.question["patch"]
                yield self._variant(f"+ {switch.name}", together)
        if first:
            yield self._accumulated("+ ", together)
        larger = {**together, EFFECTIVE: 2 * self.batch, MICRO: 2 * self.batch}
        variant = self._variant("+ larger batch", larger)
        yield variant
        yield self._variant("+ smaller model", {**(together if variant.reason else larger), **smaller}, why_not)
        for switch, variant in alone:
            yield replace(variant, reason=f"the same as + {first}") if switch.name == first else variant
        yield Variant(name="cuDNN autotune", reason=why_no_autotune(self._baseline.model_shape().model_type))
        yield self._accumulated("", {})
        for rows in _BATCHES:
            words = "same as the baseline" if rows == self.batch else ""
            yield self._variant(f"batch {rows}", {EFFECTIVE: rows, MICRO: rows}, words)
        yield self._variant("smaller model", smaller, why_not)

    def _smaller_model(self) -> tuple[Patch, str]:
        """Half of the layers where they are a setting, else the next smaller model of the catalogue that is on this
        machine; or why there is none."""
        config, own = self._baseline.config, self._baseline.parameters.value
        kinds = find_task(config.task.type).architectures
        if config.is_from_scratch and not config.model.model_name_or_path:
            layers = config.model.scratch.num_hidden_layers
            return ({LAYERS: layers // 2}, "") if layers > 1 else ({}, "the model has only one layer")
        if config.is_from_scratch or not kinds:
            return {}, "the size of this model is fixed by its config.json"
        entries = sorted(all_entries(), key=lambda entry: -entry.parameters)
        for entry in entries:
            kind = str((entry.config.get("architectures") or [""])[0])
            if entry.parameters <= _SMALLER * own and kind.endswith(kinds) and find_model(entry.name).folder:
                return {MODEL_KEY: entry.name, "model.revision": "main"}, ""
        return {}, "no smaller model of the catalogue is on this machine; get one with `tui-trainer download`"

    def _switched(self, switch: _Switch) -> Variant:
        finding = self._findings.get(switch.check)
        if finding and finding.status in switch.needless:
            return Variant(name=switch.name, reason=finding.verdict.evidence)
        return self._variant(switch.name, self._patch(switch))

    def _patch(self, switch: _Switch) -> Patch:
        """As its check would mend the baseline, where that is about the same settings."""
        finding = self._findings.get(switch.check)
        fix = (finding.fix if finding else None) or {}
        return fix if set(fix) & set(switch.patch) else switch.patch

    def _accumulated(self, sign: str, others: Patch) -> Variant:
        rows = max(1, self.batch // 4)
        reason = "" if rows < self.batch else "a step has only one row"
        return self._variant(sign + "accumulation", {**others, MICRO: rows}, reason)

    @cached_property
    def batch(self) -> int:
        """Rows of a step of the baseline, all in one pass: as many of the config's as fit."""
        return self._plan(self._plain).per_device_train_batch_size.value

    @cached_property
    def _plain(self) -> dict[str, Any]:
        """AdamW in single operations where the run has AdamW: rates for other optimizers do not suit it."""
        asked = load_config(self.request, gpu=self.gpu).config.training.optim
        return {**_PLAIN, **({OPTIMIZER_KEY: _PLAIN_ADAMW} if asked == OPTIMIZER else {})}

    @cached_property
    def _asked(self) -> Plan:
        return estimated_plan(load_config(self.request, gpu=self.gpu), gpu=self.gpu)

    @cached_property
    def whole_tokens(self) -> float:
        """Tokens that the run as it was asked for reads, what it reads again counted again."""
        plan = self._asked
        rows = plan.total_steps.value * min(plan.effective_batch_size.value, plan.train_rows.value)
        return rows * plan.train_tokens.value / max(plan.train_rows.value, 1)

    @cached_property
    def _findings(self) -> Mapping[str, Finding]:
        names = {switch.check for switch in _SWITCHES}
        context = gather(load_config(self._requested(self._settings({})), gpu=self.gpu), gpu=self.gpu)
        return {one.name: one for one in run_checks(context, [c for c in all_checks() if c.name in names])}

    def _settings(self, patch: Patch) -> dict[str, Any]:
        return {**self._plain, EFFECTIVE: self.batch, MICRO: self.batch, **patch}

    def _plan(self, settings: Patch) -> Plan:
        """Raises InputError where these settings cannot be trained with."""
        return estimated_plan(load_config(self._requested(settings), gpu=self.gpu), gpu=self.gpu)

    def _variant(self, name: str, patch: Patch, reason: str = "") -> Variant:
        """With the reason why it cannot be, or would be the baseline again."""
        if patch and not reason:
            try:
                reason = no_change(self._baseline, self._plan(self._settings(patch)), patch)
            except InputError as error:
                reason = "; ".join(problem.message for problem in error.problems)
        upon = self._settings({})
        steps = self._most_steps if not self.whole else self._whole_steps(patch.get(EFFECTIVE, self.batch))
        return steps_variant(name, self.request, self.gpu, steps, patch, upon=upon, reason=reason)

    def _whole_steps(self, rows: int) -> int:
        """Of so many rows each, for all rows of the run."""
        asked = self._asked
        wanted = asked.total_steps.value * min(asked.effective_batch_size.value, asked.train_rows.value)
        return max(_FEWEST_STEPS, round(wanted / rows) - WARM_UP_STEPS)

    @cached_property
    def _baseline(self) -> Plan:
        return self._plan(self._settings({}))

    def _requested(self, patch: Patch) -> Request:
        return short_run(self.request, self._most_steps, patch)

    @property
    def _most_steps(self) -> int:
        return self.steps or _MOST_STEPS


def short_run(request: Request, steps: int, patch: Patch) -> Request:
    """What the user asks for, with these settings instead, few steps, and nothing written between them."""
    settings = {
        **patch,
        "training.max_steps": steps + WARM_UP_STEPS,
        "evaluation.eval_steps": 0,
        "evaluation.max_eval_rows": _EVAL_ROWS,
        "evaluation.early_stopping_patience": 0,
        "evaluation.generate_rows": 0,
        "checkpoint.save_steps": 0,
        "logging.sample_steps": 0,
        "logging.report_to": [],
    }
    return with_settings(request, settings)


def steps_variant(
    name: str,
    request: Request,
    gpu: GpuChoice,
    steps: int,
    patch: Patch,
    *,
    upon: Patch | None = None,
    reason: str = "",
) -> Variant:
    """`steps` of this request are asked of a worker, with the settings `upon` and `patch`."""
    question = question_of(short_run(request, steps, {**(upon or {}), **patch}), gpu)
    return Variant(name=name, question=question | {"steps": steps, "patch": dict(patch)}, reason=reason)


def ask_for_steps(variant: Variant, is_first: bool, seconds: float) -> dict[str, Any]:
    """A worker's figures. Raises WorkerFailed, also where layers that should be compiled are not, and where memory ran
    out and the steps went on in smaller passes."""
    compiles = bool(variant.question["patch"].get(COMPILE))
    limit = min(seconds, _COMPILER_SECONDS) if compiles and seconds < math.inf else seconds
    # Removed here, as a worker that takes too long is killed.
    with TemporaryDirectory(prefix="bench-") as place:
        question = {**variant.question, "folder": place}
        found: dict[str, Any] = ask("take_steps", question, timeout_seconds=limit, sees_gpus=True)
    if "failed" in found:
        return found
    if problem := found["problems"].get("out of memory") or (compiles and found["problems"].get("not compiled")):
        raise WorkerFailed(f"ended with: {problem}", problem)
    return found


def no_change(before: Plan, after: Plan, patch: Patch) -> str:
    """Why a switch that is left to the program stays where the baseline has it; empty: it does not."""
    for key, name in _PLANNED.items():
        was, now = getattr(before, name), getattr(after, name)
        if set(patch) == {key} and was.value == now.value:
            return f"has no effect here: {now.reason}"
    return ""


_PLANNED = {"training.mixed_precision": "precision", "data.packing": "packing", "model.kernels": "kernels"}


def figures(bench: Rounds, whole_tokens: float | None = None) -> list[dict[str, Any]]:
    """A row for each variant: medians over its turns. The speed-up is in tokens a second, as batches differ in size;
    `whole_seconds`: of `whole_tokens` at that rate; `is_clear`: whether the speed-up is larger than what both vary by,
    None where there was one turn."""
    names = (
        "steps", "step_seconds", "samples_per_second", "tokens_per_second", "utilisation_share", "peak_memory_bytes",
        "loss", "others_cores",
    )  # fmt: skip
    baseline = bench.measured[0]
    before, varied = baseline.median("tokens_per_second"), baseline.spread("step_seconds")
    rows = []
    for one in bench.measured:
        now, varies = one.median("tokens_per_second"), one.spread("step_seconds")
        speed_up = now / before if before and now else None
        is_clear = None
        if one is not baseline and speed_up is not None and varied is not None and varies is not None:
            is_clear = abs(speed_up - 1) > varied + varies
        rows.append(
            {
                "name": one.variant.name,
                "settings": one.variant.question.get("patch", {}),
                "reason": one.reason,
                "turns": len(one.answers),
                **{name: one.median(name) for name in names},
                "step_seconds_spread": varies,
                "slowed_by": next((by for answer in one.answers if (by := answer.get("slowed_by"))), ""),
                "speed_up": speed_up,
                "is_clear": is_clear,
                "whole_seconds": whole_tokens / now if now and whole_tokens else None,
            }
        )
    return rows


_COLUMNS: Columns = {
    "": lambda row: row["name"],
    "ms/step": lambda row: with_spread(1e3 * row["step_seconds"], row["step_seconds_spread"]),
    "speed-up": lambda row: _speed_up_words(row),
    "whole run": lambda row: format_seconds(row["whole_seconds"]),
    "samples/s": lambda row: f"{row['samples_per_second']:,.1f}",
    "tokens/s": lambda row: f"{row['tokens_per_second']:,.0f}",
    "busy": lambda row: "--" if row["utilisation_share"] is None else f"{row['utilisation_share']:.0%}",
    "memory": lambda row: format_bytes(int(row["peak_memory_bytes"])),
    "loss": lambda row: f"{row['loss']:.4f}",
}


def _speed_up_words(row: Mapping[str, Any]) -> str:
    return "--" if row["speed_up"] is None else f"{row['speed_up']:.2f}{'?' if row['is_clear'] is False else ''}"


def table(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    # `tune` chooses for one run, and gives its length in words.
    left_out = () if any(row["whole_seconds"] for row in rows) else ("whole run",)
    return table_of({title: show for title, show in _COLUMNS.items() if title not in left_out}, rows)


_BUSY_SHARE = 0.1


def others_words(rows: Sequence[Mapping[str, Any]], cores: int) -> str:
    """What others took of the cores while these were measured; empty: next to nothing."""
    others = [row["others_cores"] for row in rows if row["others_cores"] is not None]
    if not others or max(others) < _BUSY_SHARE * cores:
        return ""
    used = f"other programs used {min(others):.1f} to {max(others):.1f} of {cores} cores meanwhile"
    return f"{used}: measure again when they have ended"


def doubts(rows: Sequence[Mapping[str, Any]], cores: int) -> list[str]:
    """What the figures do not show: speed-ups within what turns vary by, and a machine that others kept busy."""
    unclear = [row["name"] for row in rows if row["is_clear"] is False]
    found = [f"no measurable difference (?): {', '.join(unclear)}"] if unclear else []
    if others := others_words(rows, cores):
        found.append(others)
    slowed = sorted({row["slowed_by"] for row in rows if row["slowed_by"]})
    return found + ([f"the GPU was slowed down by {' and '.join(slowed)} meanwhile"] if slowed else [])
