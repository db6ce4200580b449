"""The model that a run leaves behind: weights, tokenizer and a card that says how it was made."""

import shutil

from tui_trainer.planning.plan import Plan
from tui_trainer.runs.folder import make_durable, put_in_place
from tui_trainer.training.components import Components
from tui_trainer.training.job import Job
from tui_trainer.training.model_card import model_card, model_facts
from tui_trainer.training.position import Position


def write_final_model(job: Job, plan: Plan, components: Components, position: Position) -> None:
    """Write beside, sync, then rename: `model/` is there whole or not at all. `plan`: as the run has ended with it."""
    model = model_facts(position, job.baselines, plan.config)
    target = job.folder.model
    beside = target.with_name(f".writing-{target.name}")
    if beside.exists():
        shutil.rmtree(beside)
    beside.mkdir(mode=0o700)
    components.method.save_model(components.model, beside)
    components.tokenizer.save_pretrained(beside)
    (beside / "README.md").write_text(model_card(plan, model, job.data.source, job.versions), encoding="utf-8")
    make_durable(beside)
    put_in_place(beside, target)
