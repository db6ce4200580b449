"""All facts of a run that reports contain, read once from its journal, its plan and its folder.

The JSON report has values as measured, in bytes and seconds. The other reports have formatted text."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tui_trainer.advice.examine import examine
from tui_trainer.config.load import all_settings
from tui_trainer.config.sections import ModelSection, RopeScalingSection
from tui_trainer.config.token_list import tokens_in
from tui_trainer.errors import ConfigError, system_reason
from tui_trainer.planning.plan import Plan
from tui_trainer.planning.plan_file import read_plan_file
from tui_trainer.reporting.curves import Chart, charts_of
from tui_trainer.runs.comparison import Difference, settings_of
from tui_trainer.runs.folder import RunFolder, folder_size, read_fields, read_plain_file
from tui_trainer.runs.json_fields import replace_non_finite
from tui_trainer.runs.overview import RunOverview, overview
from tui_trainer.runs.result import better_earlier_evaluation, format_score, kept_weights, score_words, targets_of
from tui_trainer.runs.state import FollowedJournal, RunState
from tui_trainer.runs.steps_and_eta import speed_rows
from tui_trainer.runs.wording import batch_words
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import MIB, format_bytes, format_count, format_seconds

Rows = list[tuple[str, str]]
_MOST_TOKENS = 8
_JOULES_IN_KWH = 3.6e6


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportedModel:
    """Facts of a run's model, for reports and model cards. `ending` says how the run ended; empty if it has not.

    Losses are in nats per token. `weights_step` is the step of the final weights, and `training_seconds` the time of
    all steps. Baselines are named as in `BaselinesMeasured`."""

    step: int
    weights_step: int
    ending: str = ""
    training_seconds: float
    train_loss: float | None
    eval_loss: float | None
    scores: Mapping[str, float] = field(default_factory=dict)
    baseline_losses: Mapping[str, float] = field(default_factory=dict)
    baseline_scores: Mapping[str, float] = field(default_factory=dict)

    def loss_rows(self) -> Rows:
        named_losses = [("training, last steps", self.train_loss), ("held out", self.eval_loss)]
        named_losses += [(f"held out, {name}", loss) for name, loss in self.baseline_losses.items()]
        return [(name, "--" if loss is None else f"{loss:.4f}") for name, loss in named_losses]

    def score_rows(self) -> Rows:
        """Return (name, value) of each score on the held-out rows; empty if the task has no scores besides the loss."""
        return [(score.name, score.words) for score in score_words(self.scores, self.baseline_scores)]

    def setting_rows(self, plan: Plan) -> Rows:
        training, model, total_steps = plan.config.training, plan.config.model, plan.total_steps.value
        decay_text = f", decay {plan.decay_steps.value} steps, {training.decay_type}" if plan.decay_steps else ""
        floor_text = f", down to {training.min_lr_rate:g} of the peak" if training.min_lr_rate else ""
        threads_text = f", {plan.threads.value} threads" if plan.device == "cpu" else ""
        best_text = " (the best evaluation)" if self.weights_step != self.step else ""
        schedule_text = f"{training.lr_scheduler_type}, warm-up {plan.warmup_steps.value} steps"
        noise_alpha, router_weight = training.neftune_noise_alpha, plan.router_aux_loss_coef
        decay_words = f"weight decay {training.weight_decay:g}"
        text_of_label = {
            "steps": f"{self.step} of {total_steps}",
            "ended": "" if self.step == self.weights_step == total_steps else self.ending,
            "weights of": f"step {self.weights_step}{best_text}",
            "effective batch": f"{batch_words(plan)} of up to {plan.config.data.max_length} tokens",
            "learning rate": f"{plan.learning_rate.value:g}, {schedule_text}{decay_text}{floor_text}",
            "tuning": _tuning_words(plan),
            "added tokens": _added_tokens_words(model),
            "positions": _rope_words(model.rope_scaling),
            "precision": f"{plan.precision.value}, weights in {plan.weights_dtype.value}",
            "attention": plan.attention.words,
            "optimizer": f"{training.optim}, {decay_words}, clipping at {training.max_grad_norm:g}",
            "noise": f"NEFTune, alpha {noise_alpha:g}" if noise_alpha else "",
            "router loss": f"weight {router_weight.value:g}" if router_weight else "",
            "seed": str(training.seed),
            "time": f"{format_seconds(self.training_seconds)} on {plan.device_name}{threads_text}",
        }
        return [(label, text) for label, text in text_of_label.items() if text]


def _added_tokens_words(model: ModelSection) -> str:
    with suppress(ConfigError):  # older runs name a file of tokens, which may no longer exist
        if tokens := tokens_in(model.add_tokens):
            tokens_text = ", ".join(tokens[:_MOST_TOKENS]) + (", ..." if len(tokens) > _MOST_TOKENS else "")
            return f"{len(tokens):,}: {one_line(tokens_text, 160)}"
    return ""


def _rope_words(rope: RopeScalingSection) -> str:
    is_scaled = rope.rope_type != "default"
    return f"{rope.rope_type}, {rope.factor:g} times as many as the base model has" if is_scaled else ""


def _tuning_words(plan: Plan) -> str:
    tuning = plan.config.tuning
    if not tuning.has_adapter:
        weights_text = f"weights chosen by trainable_layers = {tuning.trainable_layers}, the others frozen"
        return weights_text if tuning.trainable_layers else "all weights"
    kind = "DoRA" if tuning.use_dora else "LoRA"
    scale_text = ", rank-stabilised" if tuning.use_rslora else ""
    scale_text += f", LoRA+ ratio {tuning.loraplus_lr_ratio:g}" if tuning.loraplus_lr_ratio != 1 else ""
    saved_text = f", with {tuning.modules_to_save} trained in full" if tuning.modules_to_save else ""
    four_bit_text = f"; the frozen weights were quantized to 4 bits ({plan.config.quantization.bnb_4bit_quant_type})"
    quantization_text = four_bit_text if tuning.in_four_bits else ""
    init_text = f", initialised by {tuning.init_lora_weights}" if tuning.init_lora_weights != "default" else ""
    init_text += f" and saved as LoRA of rank {2 * tuning.r} for the original weights" if tuning.mutates_weights else ""
    adapter_text = f"{kind} of rank {tuning.r}, alpha {tuning.lora_alpha:g}{scale_text}, on {tuning.target_modules}"
    return f"{adapter_text}{saved_text}{quantization_text}{init_text}"


_FILE_LIMIT_BYTES = MIB
CERTIFICATE_FILE = "certificate.json"
# A run's name and location do not affect what it learns.
_NOT_REPORTED = frozenset({"schema_version", "output.runs_dir", "output.name"})


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """Facts of a finished or active run. `plan` is None if the run has no plan or an unreadable one; `plan_fault` is
    then the reason.

    `changed_settings` has the settings that differ from their defaults, each with its value and its default."""

    folder: RunFolder
    listed_run: RunOverview
    state: RunState
    plan: Plan | None
    plan_fault: str
    changed_settings: tuple[Difference, ...]
    config_text: str
    charts: tuple[Chart, ...]
    disk_bytes: int
    exports: dict[str, dict[str, Any]]
    model: ReportedModel


def facts_of(folder: RunFolder) -> RunFacts:
    """Read all facts of a report. A journal of 100,000 steps takes about two seconds."""
    journal = FollowedJournal(folder)
    run_overview, state = overview(folder, journal), journal.state
    plan, plan_fault = _plan_of(folder)
    return RunFacts(
        folder=folder,
        listed_run=run_overview,
        state=state,
        plan=plan,
        plan_fault=plan_fault,
        changed_settings=tuple(_changed_settings(folder)),
        config_text=_file_text(folder.config),
        charts=tuple(charts_of(state)),
        disk_bytes=folder_size(folder.root).bytes,
        exports=certificates(folder),
        model=_model_facts(run_overview, state, plan),
    )


def _plan_of(folder: RunFolder) -> tuple[Plan | None, str]:
    try:
        return read_plan_file(folder.plan.read_bytes(), finished=True), ""
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, f"plan.json cannot be read: {system_reason(error)}"
    except ValueError as error:
        return None, str(error)


def _changed_settings(folder: RunFolder) -> list[Difference]:
    """Return the settings that differ from their defaults, from the plan, or if there is none from config.toml."""
    settings = settings_of(folder)
    return [
        Difference(key=key, values=(settings[key], setting.default))
        for key, setting in all_settings().items()
        if key in settings and key not in _NOT_REPORTED and settings[key] != setting.default
    ]


def _file_text(path: Path) -> str:
    with suppress(OSError):
        return read_plain_file(path, _FILE_LIMIT_BYTES).decode("utf-8", "replace")
    return ""


def certificates(folder: RunFolder) -> dict[str, dict[str, Any]]:
    """Return the certificate of each export, which compares it with the model, by folder name. Skip damaged ones."""
    paths = sorted(folder.exports.glob(f"*/{CERTIFICATE_FILE}"))
    return {path.parent.name: certificate for path in paths if (certificate := read_fields(path))}


def _model_facts(run: RunOverview, state: RunState, plan: Plan | None) -> ReportedModel:
    baselines = state.baselines
    weights = kept_weights(state, plan.config.evaluation.early_stopping_patience if plan else None)
    return ReportedModel(
        step=run.step,
        weights_step=weights.step,
        ending=run.ending,
        training_seconds=sum(state.step_seconds),
        train_loss=run.loss,
        eval_loss=run.eval_loss,
        scores=run.scores,
        baseline_losses=baselines.losses if baselines else {},
        baseline_scores=baselines.scores if baselines else {},
    )


def to_json(facts: RunFacts) -> str:
    """Return the report as JSON. Unknown values are null, and values that JSON does not have are strings."""
    return json.dumps(replace_non_finite(_report_object(facts)), default=str, indent=1, allow_nan=False)


def _report_object(facts: RunFacts) -> dict[str, Any]:
    state, plan, data = facts.state, facts.plan, facts.state.data
    end_event, better_eval = state.failed or state.finished, better_earlier_evaluation(state)
    return {
        "run": facts.folder.name,
        "folder": facts.folder.root,
        "status": facts.listed_run.status,
        "ending": facts.listed_run.ending,
        "step": state.step,
        "total_steps": state.total_steps,
        "ended": None if end_event is None else asdict(end_event),
        "better_before": None if better_eval is None else asdict(better_eval),
        "model": asdict(facts.model),
        "targets": [asdict(target) | {"met": target.met, "words": target.words} for target in targets_of(state)],
        "inference": None if state.inference is None else asdict(state.inference),
        "charts": [asdict(chart) for chart in facts.charts],
        "evaluations": [asdict(evaluation) for evaluation in state.evals],
        "starts": [{**asdict(start), "seconds": start.seconds} for start in state.starts],
        "problems": [asdict(problem) for problem in state.problems],
        "settings": [{"key": it.key, "value": it.values[0], "default": it.values[1]} for it in facts.changed_settings],
        "plan": None if plan is None else plan.model_dump(mode="json"),
        "plan_fault": facts.plan_fault,
        "journal_damage": state.journal_damage,
        "data": None if data is None else asdict(data),
        "costs": {name: value for name, value, *_ in costs_of(facts) if name},
        "doctor": _doctor_verdict(facts),
        "exports": facts.exports,
        "samples": [asdict(sample) for sample in state.samples],
        "config": facts.config_text,
        "versions": state.versions,
    }


Cost = tuple[str, Any, str, Callable[[Any], str]]


def costs_of(facts: RunFacts) -> list[Cost]:
    """Return the costs of a run: name in the JSON report, value (None if unknown), title, and function that formats it.

    The name is empty if the JSON report omits the row, the title if the other reports omit it. Energy and power are
    those of the GPUs. GPU-hours include all starts."""
    state, plan, total_seconds = facts.state, facts.state.plan, facts.state.seconds
    processes = plan.processes if plan else 1
    gpu_hours = total_seconds * processes / 3600 if state.device == "cuda" and total_seconds is not None else None
    joules = state.gauge_summary.energy_joules
    watts = None if joules is None else state.gauge_summary.mean("power_watts")
    average_text = "" if watts is None else f", {watts:.0f} W on average"
    predictions_text = state.inference and f"{format_score(state.inference.samples_per_second)}, in batches"
    eval_count_text, save_count_text = f" ({len(state.evals)})", f" ({len(state.checkpoints)})"
    evaluation_seconds = sum(event.seconds for event in state.evals)
    checkpoint_seconds = sum(event.seconds for event in state.checkpoints)
    return [
        ("seconds", total_seconds, "time of the whole run", format_seconds),
        ("step_seconds", facts.model.training_seconds, "steps", format_seconds),
        ("evaluation_seconds", evaluation_seconds, "evaluations", lambda it: format_seconds(it) + eval_count_text),
        ("checkpoint_seconds", checkpoint_seconds, "checkpoints", lambda it: format_seconds(it) + save_count_text),
        *(("", words, title, str) for title, words in speed_rows(state)),
        ("gpu_hours", gpu_hours, "GPU-hours", "{:.2f}".format),
        ("energy_joules", joules, "GPU energy", lambda joules: f"{joules / _JOULES_IN_KWH:.3g} kWh{average_text}"),
        ("power_watts", watts, "", str),
        ("samples_per_second", state.samples_per_second, "rows per second", format_count),
        ("tokens_per_second", state.tokens_per_second, "tokens per second", format_count),
        ("", predictions_text, "predictions per second", str),
        ("peak_memory_bytes", state.peak_memory_bytes or None, "peak memory", format_bytes),
        ("library_memory_bytes", state.resident_bytes_before, "libraries' part of the peak", format_bytes),
        ("planned_memory_bytes", plan.memory_bytes if plan else None, "planned training memory", format_bytes),
        ("planned_seconds", plan.duration_seconds if plan else None, "planned time", format_seconds),
        ("disk_bytes", facts.disk_bytes, "disk", format_bytes),
    ]


def _doctor_verdict(facts: RunFacts) -> dict[str, Any] | None:
    """Return the doctor's diagnosis; None if no step was trained."""
    if not facts.state.steps:
        return None
    verdict = examine(facts.state)
    findings = [{"diagnosis": finding.name, **asdict(finding.cause)} for finding in verdict.findings]
    return {"verdict": verdict.name, "words": verdict.words, "findings": findings}
