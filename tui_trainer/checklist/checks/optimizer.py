"""One pass over the weights instead of one for each operation and each tensor."""

from tui_trainer.checklist.contract import Context, Verdict, check, passed, warned
from tui_trainer.checklist.memory_fit import is_short, way_to_fit
from tui_trainer.config.changes import with_changes
from tui_trainer.methods.optimizers import ADAFACTOR, DEFAULT, OPTIMIZERS
from tui_trainer.planning.learning_rates import KEY as LEARNING_RATE
from tui_trainer.planning.learning_rates import peak_rate
from tui_trainer.planning.remedies import OPTIMIZER
from tui_trainer.units import format_bytes, format_count


@check(
    order=120,
    title="Fused AdamW",
    fallback={OPTIMIZER: DEFAULT},
)
def look(context: Context) -> Verdict:
    plan, optimizer = context.planned, OPTIMIZERS[context.config.training.optim]
    name = optimizer.label
    state = sum(part.bytes for part in plan.memory_parts if part.name == "optimizer")
    sentence = f"{name} on {format_count(plan.trained_parameters.value)} parameters, {format_bytes(state)} of state"
    if optimizer.warning:
        fix = {OPTIMIZER: DEFAULT} | _rate_for_adamw(context)
        return warned(f"{sentence}: {optimizer.warning}", fix=fix, switch=f"{name} on")
    if is_short(context) and (other := (way_to_fit(context) or {}).get(OPTIMIZER)):
        sentence += f", and memory is short: {OPTIMIZERS[other].label} keeps less"
        return warned(sentence, fix={OPTIMIZER: other}, switch=f"{name} on")
    details = (optimizer.cpu_note,) if optimizer.cpu_note and plan.device == "cpu" else ()
    sentence += "; gradients are set to None, not to zero"
    other = ADAFACTOR if context.config.training.optim == DEFAULT else DEFAULT
    return passed(sentence, *details, switch=f"{name} on", opposite={OPTIMIZER: other})


def _rate_for_adamw(context: Context) -> dict[str, str]:
    """A learning rate that was written for another optimizer does not stay where AdamW would diverge or stand still."""
    config, written = context.config, context.config.training.learning_rate
    known = peak_rate(with_changes(config, {OPTIMIZER: DEFAULT}))
    return {} if written == "auto" or known.least <= written <= known.most else {LEARNING_RATE: "auto"}
