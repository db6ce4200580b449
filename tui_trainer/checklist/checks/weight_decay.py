"""It keeps weights that the text does not need small, which helps most when text is read again and again.

Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization, arXiv:1711.05101.
"""

from tui_trainer.checklist.contract import Context, Verdict, check, passed, warned

_KEY, _USUAL, _STRONG, _MOST = "training.weight_decay", 0.01, 0.1, 0.5


@check(
    order=470,
    title="Weight decay",
    needs_plan=False,
)
def look(context: Context) -> Verdict:
    decay = context.config.training.weight_decay
    if decay == 0 and context.config.tuning.has_adapter:
        return passed("weight_decay 0: adapters begin at zero, and their low rank holds them back already")
    if decay == 0:
        return warned("weight_decay 0: nothing holds the weights back", fix={_KEY: _USUAL})
    if decay > _MOST:
        return warned(f"weight_decay {decay:g}: stronger than {_MOST:g}, it fights the learning", fix={_KEY: _STRONG})
    return passed(f"weight_decay {decay:g} on matrices, none on norms")
