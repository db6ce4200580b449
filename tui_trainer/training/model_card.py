"""How a model was made, in the Markdown that model hubs show."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tui_trainer.planning.automatic_values import is_from_scratch
from tui_trainer.planning.plan import Plan
from tui_trainer.runs.score_words import number, score_words
from tui_trainer.tasks.contract import Baselines
from tui_trainer.training.position import Position
from tui_trainer.units import format_count, format_seconds

Rows = list[tuple[str, str]]
# In the words of model hubs.
_PIPELINES = {
    "sequence_classification": "text-classification",
    "token_classification": "token-classification",
    "seq2seq": "text2text-generation",
}
_AUTO_CLASSES = {
    "causal_lm": "AutoModelForCausalLM",
    "chat": "AutoModelForCausalLM",
    "sequence_classification": "AutoModelForSequenceClassification",
    "token_classification": "AutoModelForTokenClassification",
    "seq2seq": "AutoModelForSeq2SeqLM",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class CardFacts:
    """What the model card says beside the plan. Losses are nats per token."""

    data_description: str
    train_loss: float | None
    baselines: Baselines | None
    versions: dict[str, str]


def model_card(plan: Plan, position: Position, facts: CardFacts) -> str:
    """Origin, data, losses, settings and versions."""
    lines = [
        *_front_matter(plan),
        "",
        f"# {plan.recipe or plan.config.task.type}",
        "",
        _origin(plan),
        "",
        *_use(plan),
        "## Data",
        "",
        f"{facts.data_description}. {plan.train_rows.value} training rows, {plan.train_tokens.value:,} tokens; "
        f"{plan.eval_rows.value} held-out rows, vocabulary of {plan.vocabulary.value}.",
        "",
        f"## Loss{'' if plan.config.task.type == 'sequence_classification' else ' (nats per token)'}",
        "",
        *_table(_loss_rows(plan, position, facts)),
        "",
        *_scores(plan, position, facts),
        "## Settings",
        "",
        *_table(_setting_rows(plan, position)),
        "",
        "## Versions",
        "",
        *_table(list(facts.versions.items())),
        "",
    ]
    return "\n".join(lines)


def _front_matter(plan: Plan) -> list[str]:
    name = plan.config.model.model_name_or_path
    base = (
        [f"base_model: {Path(name).name if Path(name).exists() else name}"] if not is_from_scratch(plan.config) else []
    )
    library = "peft" if plan.config.tuning.has_adapter else "transformers"
    purpose = _PIPELINES.get(plan.config.task.type, "text-generation")
    return ["---", f"library_name: {library}", f"pipeline_tag: {purpose}", *base, "tags: [tui-trainer]", "---"]


def _origin(plan: Plan) -> str:
    size = format_count(plan.parameters.value)
    if is_from_scratch(plan.config):
        return f"A model of {size} parameters, trained from random weights by tui-trainer."
    name = plan.config.model.model_name_or_path
    if plan.config.tuning.has_adapter:
        trained = format_count(plan.trained_parameters.value)
        return f"An adapter of {trained} parameters for {name} ({size} parameters), trained by tui-trainer."
    return f"{name}, a model of {size} parameters, tuned as a whole by tui-trainer."


def _use(plan: Plan) -> list[str]:
    """How an adapter is loaded; a whole model is loaded as any other."""
    tuning, kind = plan.config.tuning, _AUTO_CLASSES.get(plan.config.task.type)
    if not tuning.has_adapter or kind is None:
        return []
    model = plan.config.model
    where = repr(model.model_name_or_path) + (f", revision={model.revision!r}" if model.revision != "main" else "")
    # A base model knows neither how many labels there are nor their names.
    has_labels = kind.endswith("Classification")
    code = [
        "from peft import PeftModel",
        f"from transformers import {'AutoConfig, ' if has_labels else ''}{kind}",
        "",
        *(['config = AutoConfig.from_pretrained("path/of/this/folder")'] if has_labels else []),
        f"base = {kind}.from_pretrained({where}{', config=config' if has_labels else ''})",
        'model = PeftModel.from_pretrained(base, "path/of/this/folder")',
        "model = model.merge_and_unload()  # only where a whole model is wanted",
    ]
    return ["## Use", "", "```python", *code, "```", ""]


def _loss_rows(plan: Plan, position: Position, facts: CardFacts) -> Rows:
    best = plan.config.evaluation.early_stopping_patience > 0
    losses = [("training, last steps", facts.train_loss)]
    losses += [("held out", position.best_eval_loss if best else position.eval_loss)]
    losses += [
        (f"held out, {name}", loss) for name, loss in (facts.baselines.losses if facts.baselines else {}).items()
    ]
    return [(name, "--" if loss is None else f"{loss:.4f}") for name, loss in losses]


def _scores(plan: Plan, position: Position, facts: CardFacts) -> list[str]:
    """What else was measured on the held-out rows; nothing where the loss says it all."""
    scores = position.best_scores if plan.config.evaluation.early_stopping_patience else position.scores
    rows: Rows = []
    for score in score_words(scores, facts.baselines.scores if facts.baselines else {}):
        beside = f" ({score.baseline[0]}: {number(score.baseline[1])})" if score.baseline else ""
        rows.append((score.name, number(score.value) + beside))
    return ["## Scores on held-out rows", "", *_table(rows), ""] if rows else []


def _setting_rows(plan: Plan, position: Position) -> Rows:
    training = plan.config.training
    best = plan.config.evaluation.early_stopping_patience > 0
    threads = f", {plan.threads.value} threads" if plan.device == "cpu" else ""
    early = " (stopped early)" if position.stopped_early else ""
    return [
        ("steps", f"{position.step} of {plan.total_steps.value}{early}"),
        ("weights of", f"step {position.best_step} (the best evaluation)" if best else f"step {position.step}"),
        ("effective batch", f"{plan.effective_batch_size.value} rows of up to {plan.config.data.max_length} tokens"),
        (
            "learning rate",
            f"{plan.learning_rate.value:g}, {training.lr_scheduler_type}, warm-up {plan.warmup_steps.value} steps",
        ),
        ("tuning", _tuning_words(plan)),
        ("precision", f"{plan.precision.value}, weights in {plan.weights_dtype.value}"),
        ("optimizer", f"{training.optim}, decay {training.weight_decay:g}, clipping at {training.max_grad_norm:g}"),
        ("seed", str(training.seed)),
        ("time", f"{format_seconds(position.training_seconds)} on {plan.device_name}{threads}"),
    ]


def _tuning_words(plan: Plan) -> str:
    tuning = plan.config.tuning
    if not tuning.has_adapter:
        return "all weights"
    kind = "DoRA" if tuning.use_dora else "LoRA"
    scale = ", rank-stabilised" if tuning.use_rslora else ""
    saved = f", and {tuning.modules_to_save} as a whole" if tuning.modules_to_save else ""
    packed = ""
    if tuning.in_four_bits:
        packed = f"; the frozen weights were in 4 bits ({plan.config.quantization.bnb_4bit_quant_type})"
    return f"{kind} of rank {tuning.r}, alpha {tuning.lora_alpha:g}{scale}, on {tuning.target_modules}{saved}{packed}"


def _table(rows: Rows) -> list[str]:
    return ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
