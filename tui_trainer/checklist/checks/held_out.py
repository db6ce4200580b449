"""Only the loss of text that the model never read says whether a change was good."""

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable, passed, warned

_KEY, _GOOD_SHARE = "data.eval_fraction", 0.1
_MOST_SHARE, _LEAST_SHARE, _FEWEST_ROWS = 0.3, 0.02, 20


@check(order=260, title="Text is held out", needs_plan=False)
def look(context: Context) -> Verdict:
    plan, data = context.plan, context.config.data
    share = data.eval_fraction
    if plan and (shared := [use.source for use in plan.splits if use.shares_rows]):
        sentence = f"{', '.join(shared)}: rows that are evaluated on are trained on as well"
        return warned(sentence, advice="name rows in data.eval_path or data.eval_split that data.split leaves out")
    if data.eval_path:
        return _apart(context, "data.eval_path")
    if plan and (named := [use.evaluates for use in plan.splits if use.evaluates]):
        return _apart(context, f"the validation split, {', '.join(named)},")
    if share == 0:
        # Early stopping without held-out text keeps a plan from being made: this fixes it.
        sentence = "0 rows are held out: nothing shows when the model begins to memorise"
        return warned(sentence, fix={_KEY: _GOOD_SHARE})
    if plan is None:
        return not_applicable(f"{share:.0%} of the text is to be held out; no plan says how many rows that is")
    rows = plan.eval_rows.value
    sentence = f"{rows:,} rows are held out ({share:.0%} of the text), {plan.train_rows.value:,} train"
    if share > _MOST_SHARE:
        return warned(f"{sentence}: text that could be learnt from", fix={_KEY: _GOOD_SHARE})
    if share < _LEAST_SHARE and rows < _FEWEST_ROWS:
        return warned(f"{sentence}: a loss of so few rows is noise", fix={_KEY: _GOOD_SHARE})
    return passed(sentence)


def _apart(context: Context, what: str) -> Verdict:
    """Held out is what lies apart from the training data."""
    if context.plan is None:
        return not_applicable(f"{what} names what is held out; no plan says how many rows that is")
    rows = context.plan.eval_rows.value
    sentence = f"{rows:,} rows of {what} are held out"
    if rows < _FEWEST_ROWS:
        return warned(f"{sentence}: a loss of so few is noise", advice=f"give {what} more text")
    return passed(sentence)
