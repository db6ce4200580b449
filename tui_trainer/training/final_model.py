"""The model that a run leaves behind: weights, tokenizer and a card that says how it was made."""

from __future__ import annotations

import shutil
from pathlib import Path

from tui_trainer.planning.plan import Plan
from tui_trainer.runs.folder import make_durable, put_in_place
from tui_trainer.training.components import Components
from tui_trainer.training.model_card import CardFacts, model_card


def write_final_model(
    target: Path,
    components: Components,
    plan: Plan,
    facts: CardFacts,
) -> None:
    """Write beside, sync, then rename: `model/` is there whole or not at all."""
    beside = target.with_name(f".writing-{target.name}")
    if beside.exists():
        shutil.rmtree(beside)
    beside.mkdir(mode=0o700)
    components.method.save_model(components.model, beside)
    components.tokenizer.save_pretrained(beside)
    (beside / "README.md").write_text(model_card(plan, facts), encoding="utf-8")
    make_durable(beside)
    put_in_place(beside, target)
