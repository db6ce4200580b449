"""What a report and a model card both state of a run's model: its losses, its scores, and how it was trained."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tui_trainer.planning.plan import Plan
from tui_trainer.runs.score_words import number, score_words
from tui_trainer.units import format_seconds

Rows = list[tuple[str, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFacts:
    """A model and the run that it came from; `ending` says how that ended, empty before.

    Losses are in nats per token. `weights_step` is the step that the weights are of, `training_seconds` the time of all
    steps; baselines are named as in `BaselinesMeasured`.
    """

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
        losses = [("training, last steps", self.train_loss), ("held out", self.eval_loss)]
        losses += [(f"held out, {name}", loss) for name, loss in self.baseline_losses.items()]
        return [(name, "--" if loss is None else f"{loss:.4f}") for name, loss in losses]

    def score_rows(self) -> Rows:
        """What else was measured on the held-out rows; nothing where the loss says it all."""
        rows = []
        for score in score_words(self.scores, self.baseline_scores):
            beside = f" ({score.baseline[0]}: {number(score.baseline[1])})" if score.baseline else ""
            rows.append((score.name, number(score.value) + beside))
        return rows

    def setting_rows(self, plan: Plan) -> Rows:
        training, warm_up = plan.config.training, plan.warmup_steps.value
        threads = f", {plan.threads.value} threads" if plan.device == "cpu" else ""
        best = " (the best evaluation)" if self.weights_step != self.step else ""
        is_whole = self.step == self.weights_step == plan.total_steps.value
        return [
            ("steps", f"{self.step} of {plan.total_steps.value}"),
            *([("ended", self.ending)] if self.ending and not is_whole else []),
            ("weights of", f"step {self.weights_step}{best}"),
            (
                "effective batch",
                f"{plan.effective_batch_size.value} rows of up to {plan.config.data.max_length} tokens",
            ),
            ("learning rate", f"{plan.learning_rate.value:g}, {training.lr_scheduler_type}, warm-up {warm_up} steps"),
            ("tuning", _tuning_words(plan)),
            ("precision", f"{plan.precision.value}, weights in {plan.weights_dtype.value}"),
            *([("attention", plan.attention.words)] if plan.attention.words else []),
            ("optimizer", f"{training.optim}, decay {training.weight_decay:g}, clipping at {training.max_grad_norm:g}"),
            ("seed", str(training.seed)),
            ("time", f"{format_seconds(self.training_seconds)} on {plan.device_name}{threads}"),
        ]


def _tuning_words(plan: Plan) -> str:
    tuning = plan.config.tuning
    if not tuning.has_adapter:
        return "all weights"
    kind = "DoRA" if tuning.use_dora else "LoRA"
    scale = ", rank-stabilised" if tuning.use_rslora else ""
    saved = f", and {tuning.modules_to_save} as a whole" if tuning.modules_to_save else ""
    kept = f"; the frozen weights were in 4 bits ({plan.config.quantization.bnb_4bit_quant_type})"
    packed = kept if tuning.in_four_bits else ""
    return f"{kind} of rank {tuning.r}, alpha {tuning.lora_alpha:g}{scale}, on {tuning.target_modules}{saved}{packed}"
