"""Gradients have rare outliers; without a limit one of them undoes hundreds of steps."""

from tui_trainer.checklist.contract import Context, Verdict, check, passed, warned

_KEY, _GOOD, _MOST = "training.max_grad_norm", 1.0, 10.0


@check(
    order=460,
    title="Gradient clipping",
    guides=("A training strategy 3", "E optimisation 8", "C training is unstable 3"),
    claim="more stable, fewer failed runs (guides A, E)",
    needs_plan=False,
)
def look(context: Context) -> Verdict:
    limit = context.config.training.max_grad_norm
    if limit == 0:
        return warned("max_grad_norm 0: a single bad row may throw the weights far off", fix={_KEY: _GOOD})
    if limit > _MOST:
        return warned(f"max_grad_norm {limit:g}: longer than gradients ever are, so it cuts none", fix={_KEY: _GOOD})
    return passed(f"gradients longer than {limit:g} are cut; a step that is not finite changes no weight")
