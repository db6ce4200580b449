"""The model that a run leaves behind: weights, tokenizer and a card that says how it was made."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tui_trainer.planning.plan import Plan
from tui_trainer.runs.folder import sync_folder
from tui_trainer.training.position import Position
from tui_trainer.units import format_count, format_seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class CardFacts:
    """What the model card says beside the plan. Losses are nats per token."""

    data_description: str
    train_loss: float | None
    baselines: dict[str, float]
    versions: dict[str, str]


def write_final_model(
    target: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    plan: Plan,
    position: Position,
    facts: CardFacts,
) -> None:
    """Write beside, sync, then rename: `model/` is there whole or not at all."""
    beside = target.with_name(f".writing-{target.name}")
    if beside.exists():
        shutil.rmtree(beside)
    beside.mkdir(mode=0o700)
    model.save_pretrained(beside)
    tokenizer.save_pretrained(beside)
    (beside / "README.md").write_text(model_card(plan, position, facts), encoding="utf-8")
    for path in beside.iterdir():
        with path.open("rb") as file:
            os.fchmod(file.fileno(), 0o600)
            os.fsync(file.fileno())
    sync_folder(beside)
    if target.exists():
        old = target.with_name(f".removing-{target.name}")
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
        beside.rename(target)
        shutil.rmtree(old)
    else:
        beside.rename(target)
    sync_folder(target.parent)


def model_card(plan: Plan, position: Position, facts: CardFacts) -> str:
    """Data, settings, losses and versions, in the Markdown that model hubs show."""
    training = plan.config.training
    best = plan.config.evaluation.early_stopping_patience > 0
    loss_rows = [("training, last steps", facts.train_loss)]
    loss_rows += [("held out", position.best_eval_loss if best else position.eval_loss)]
    loss_rows += [(f"held out, {name}", loss) for name, loss in facts.baselines.items()]
    rows = [
        (
            "steps",
            f"{position.step} of {plan.total_steps.value}" + (" (stopped early)" if position.stopped_early else ""),
        ),
        ("weights of", f"step {position.best_step} (the best evaluation)" if best else f"step {position.step}"),
        ("effective batch", f"{plan.effective_batch_size.value} rows of up to {plan.config.data.max_length} tokens"),
        (
            "learning rate",
            f"{training.learning_rate:g}, {training.lr_scheduler_type}, warm-up {plan.warmup_steps.value} steps",
        ),
        ("optimiser", f"AdamW, decay {training.weight_decay:g}, clipping at {training.max_grad_norm:g}"),
        ("seed", str(training.seed)),
        ("time", format_seconds(position.training_seconds) + f" on {plan.cpu_name}, {plan.threads.value} threads"),
    ]
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        "tags: [tui-trainer]",
        "---",
        "",
        f"# {plan.recipe or plan.config.task.type}",
        "",
        f"A model of {format_count(plan.parameters.value)} parameters, trained from random weights by tui-trainer.",
        "",
        "## Data",
        "",
        f"{facts.data_description}. {plan.train_rows.value} training rows, {plan.train_tokens.value:,} tokens; "
        f"{plan.eval_rows.value} held-out rows, vocabulary of {plan.vocabulary.value}.",
        "",
        "## Loss (nats per token)",
        "",
        *_table([(name, "--" if loss is None else f"{loss:.4f}") for name, loss in loss_rows]),
        "",
        "## Settings",
        "",
        *_table(rows),
        "",
        "## Versions",
        "",
        *_table(list(facts.versions.items())),
        "",
    ]
    return "\n".join(lines)


def _table(rows: list[tuple[str, str]]) -> list[str]:
    return ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
