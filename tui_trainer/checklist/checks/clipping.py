"""Gradients have rare outliers; without a limit one of them undoes hundreds of steps.

Source: Pascanu et al., On the difficulty of training recurrent neural networks, arXiv:1211.5063.
"""

from tui_trainer.checklist.contract import Context, Verdict, check, passed, warned

_KEY, _GOOD, _MOST = "training.max_grad_norm", 1.0, 10.0


@check(
    order=460,
    title="Gradient clipping",
    needs_plan=False,
)
def look(context: Context) -> Verdict:
    limit = context.config.training.max_grad_norm
    if limit == 0:
        return warned("max_grad_norm 0: a single bad row may throw the weights far off", fix={_KEY: _GOOD})
    if limit > _MOST:
        return warned(f"max_grad_norm {limit:g}: longer than gradients ever are, so it cuts none", fix={_KEY: _GOOD})
    return passed(f"gradients longer than {limit:g} are cut; a step that is not finite changes no weight")
