"""Tokens without a label cost as much as the others and teach nothing; a wrong mask shows in no loss."""

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable, passed, warned

_MOST_UNTRAINED, _LEAST_SHARE = 0.1, 0.05


@check(order=232, title="The rows have something to learn")
def look(context: Context) -> Verdict:
    facts = context.facts
    if facts is None or facts.counts is None:
        return not_applicable("which tokens train is known once the data is prepared: tui-trainer preview")
    counts = facts.counts
    rows = counts.train_rows + counts.eval_rows + counts.untrained_rows
    untrained = counts.untrained_rows / max(rows, 1)
    if untrained > _MOST_UNTRAINED:
        return warned(
            f"{counts.untrained_rows:,} of {rows:,} rows ({untrained:.0%}) have nothing to learn "
            f"within {context.config.data.max_length:,} tokens and are left out",
            advice="raise data.max_length, or see by tui-trainer preview which tokens train",
        )
    if facts.classes or facts.target_tokens:
        return passed(f"{counts.train_rows:,} rows train, {counts.untrained_rows:,} have nothing to learn")
    share = counts.train_labels / max(counts.train_tokens, 1)
    sentence = f"{share:.1%} of {counts.train_tokens:,} tokens train, {counts.untrained_rows:,} rows have none"
    if share < _LEAST_SHARE:
        advice = (
            "see by tui-trainer preview which tokens those are; task.loss_on = all learns the whole of a conversation"
        )
        return warned(f"{sentence}: most of each pass learns nothing", advice=advice)
    return passed(sentence)
