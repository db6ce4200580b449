"""Rules about the training rows and the held-out rows."""

from collections.abc import Mapping

from tui_trainer.advice.context import Context
from tui_trainer.advice.contract import Verdict, failed, not_applicable, passed, rule, warned
from tui_trainer.config.mixture import escape_commas
from tui_trainer.config.sections import DataSection
from tui_trainer.config.token_list import ADD_TOKENS_KEY
from tui_trainer.data.preparing.prepare import CLASS_ROWS_KEY, LABEL_ROWS
from tui_trainer.data.preparing.unknown_tokens import WARNED_SHARE, unknown_text_hint, unknown_words
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import format_count, format_seconds, quantity

GROUP = "Data"
_MAX_CHARS, _MAX_ROWS, _ON_BAD_ROWS = "data.max_chars", "data.max_rows", "data.on_bad_rows"
_EVAL_FRACTION = "data.eval_fraction"
_OVERLAP = "overlap between training and held-out rows"
_SINGLE = "single_label_classification"
# Leaving out a tenth of the data hardly changes what is learnt.
_MOST_LEFT_OUT = 0.1
# The last answers of long conversations have about this share of the tokens. A wrong mask trains on a smaller share.
_LEAST_TRAINED_SHARE = 0.05
_FAILED_UNKNOWN_SHARE = 0.05
# With fewer rows of a label, a held-out tenth has one such row or none.
_FEWEST_LABEL_ROWS = 10
_SHOWN_LABELS = 5
# Classes whose numbers of rows differ by a smaller factor are learnt without class weights.
_MOST_UNEVEN = 10
_GOOD_EVAL_SHARE = DataSection().eval_fraction
# A larger held-out share would be missed in training. A smaller share is enough if it has a certain number of rows.
_MAX_EVAL_SHARE = 0.3
_LEAST_EVAL_SHARE = 0.02
_FEWEST_ROWS = 20
# A few held-out rows equal training rows by chance, so this share is accepted.
_MOST_LEAKED = 0.01


@rule("All data is used", 230, _MAX_CHARS, _MAX_ROWS)
def data_size(context: Context) -> Verdict:
    """A limit that was set for a first try is easily forgotten; more text is the surest way to a lower loss."""
    plan, data, all_tokens = context.required_plan, context.config.data, context.all_token_count
    if all_tokens is None or context.facts is None:
        return not_applicable("the size of the full text is unknown")
    limits = {key: limit for key, limit in ((_MAX_CHARS, data.max_chars), (_MAX_ROWS, data.max_rows)) if limit}
    if not limits:
        return passed(f"{format_count(all_tokens)} tokens: data.max_chars and data.max_rows are 0 (no limit)")
    lost_share = max(0.0, 1 - (context.facts.tokens + context.facts.eval_tokens) / max(all_tokens, 1))
    limits_text = " and ".join(f"{key} {limit:,}" for key, limit in limits.items())
    sentence = f"{lost_share:.0%} of {format_count(all_tokens)} tokens are excluded by {limits_text}"
    if lost_share <= _MOST_LEFT_OUT:
        return passed(sentence)
    step_seconds = context.step_seconds
    all_seconds = None if step_seconds is None else step_seconds * plan.steps_per_epoch.value / (1 - lost_share)
    return warned(
        sentence,
        fix=dict.fromkeys(limits, 0),
        advice=f"with all data, an epoch takes about {format_seconds(all_seconds)}; keep the limit if that is too long",
    )


@rule("Few skipped rows", 229, _ON_BAD_ROWS, needed_count="the number of skipped rows")
def left_out(context: Context) -> Verdict:
    """The model learns nothing from skipped rows and unread files."""
    counts, data = context.counts, context.config.data
    reasons = counts.unused_by_reason(dedup=data.dedup)
    rows, skips = counts.rows_read or counts.documents_read, sum(reasons.values())
    text = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items())
    kind = "rows" if counts.rows_read else "documents"
    sentence = f"{skips:,} of {rows:,} {kind} {'is' if skips == 1 else 'are'} skipped" + (f": {text}" if text else "")
    if file_names := [name for use in (context.facts.splits if context.facts else ()) for name in use.unread_splits]:
        sentence += f"; files not read: {_display_name(', '.join(file_names), 200)}"
    if counts.bad_rows and data.on_bad_rows != "skip":
        return failed(f"{sentence}; an unusable row prevents the run from starting", fix={_ON_BAD_ROWS: "skip"})
    if skips <= _MOST_LEFT_OUT * rows:
        return passed(sentence)
    hint = "run tui-trainer preview to see these rows"
    return warned(sentence, advice=f"raise data.max_length, or {hint}" if counts.untrained_long_rows else hint)


@rule("Chat markers are single tokens", 231, ADD_TOKENS_KEY, needs_plan=False)
def chat_marks(context: Context) -> Verdict:
    """A marker that the tokenizer splits costs several tokens per turn, and ordinary text can contain it. An answer
    then ends with a sequence of tokens instead of one stop token."""
    config, marks = context.config, context.mark_token_counts
    if not marks:
        return not_applicable("no chat template markers are used, or their tokens are unknown")
    split_marks = {mark: pieces for mark, pieces in marks.items() if pieces != 1}
    if not split_marks:
        marks_text = one_line(", ".join(marks), 80)
        return passed(f"each of {len(marks)} chat template markers is one token: {marks_text}")
    pieces = ", ".join(f"{one_line(mark, 30)} into {count or '?'}" for mark, count in list(split_marks.items())[:4])
    sentence = f"{len(split_marks)} of {len(marks)} chat template markers are split into several tokens: {pieces}"
    if config.model.provider != "transformers" or config.tuning.trainable_layers:
        needed_settings = 'set model.provider = "transformers" and train the embedding'
        return warned(sentence, advice=f"to add the markers with {ADD_TOKENS_KEY}, {needed_settings}")
    new_tokens = (config.model.add_tokens, *map(escape_commas, split_marks))
    return warned(sentence, fix={ADD_TOKENS_KEY: ", ".join(filter(None, new_tokens))})


@rule("Special tokens around texts", 237, needs_plan=False)
def text_frame(context: Context) -> Verdict:
    """A model that was trained with special tokens around each text treats text without them as a fragment. An encoder
    makes its prediction from the first of these tokens."""
    missing = context.missing_frame
    if missing is None:
        return not_applicable("the model uses no special tokens around texts, or has no tokenizer.json that lists them")
    if not missing:
        return passed("the tokenizer adds all special tokens that the model was trained with (0 are missing)")
    return warned(
        f"the tokenizer does not add {' and '.join(missing)} around texts, but the model was trained with them",
        advice="copy tokenizer.json and tokenizer_config.json again from the published model: a tokenizer that is "
        "saved without its post_processor loses these special tokens",
    )


@rule("Share of trained tokens", 232, needed_count="the share of trained tokens")
def trained_share(context: Context) -> Verdict:
    """Tokens without a label cost as much as others and teach nothing, and a wrong mask does not show in the loss."""
    facts, counts = context.facts, context.counts
    if facts and (facts.class_count or facts.target_tokens):
        return passed(f"{quantity(counts.train_rows, 'row', 'are')} trained on")
    share = counts.train_labels / max(counts.train_tokens, 1)
    sentence = f"{share:.1%} of {counts.train_tokens:,} tokens are trained on"
    if share < _LEAST_TRAINED_SHARE:
        preview_hint = "run tui-trainer preview to see which tokens are trained on"
        advice = f"{preview_hint}; task.loss_on = all trains on whole conversations"
        return warned(f"{sentence}, so most of the computation teaches nothing", advice=advice)
    return passed(sentence)


@rule("Few unknown tokens", 233, needed_count="the number of unknown tokens")
def known_text(context: Context) -> Verdict:
    """Text that the tokenizer does not know becomes an unknown token: the model cannot read it and never writes it."""
    counts = context.counts
    sentence = unknown_words(counts, context.counted_facts.details if context.counted_facts else {})
    tokens = counts.train_tokens + counts.eval_tokens
    if not sentence:
        return passed(f"none of {tokens:,} tokens is unknown to the tokenizer")
    share = max(counts.unknown_tokens / max(tokens, 1), counts.unknown_labels / max(counts.text_labels, 1))
    if share < WARNED_SHARE:
        return passed(sentence)
    verdict = failed if share >= _FAILED_UNKNOWN_SHARE else warned
    return verdict(sentence, advice=unknown_text_hint(trained_here=context.config.is_from_scratch))


@rule("Class balance", 234, "task.class_weights", needed_count="the number of rows per class")
def label_balance(context: Context) -> Verdict:
    """If one class dominates, a model that always predicts it has a good loss and is useless."""
    details = context.counted_facts.details if context.counted_facts else {}
    if label_rows := details.get(LABEL_ROWS):
        return _rare_labels(label_rows)
    rows = details.get(CLASS_ROWS_KEY, {})
    if details.get("problem_type") != _SINGLE or len(rows) < 2:
        return not_applicable("this check is for classifiers whose rows are counted")
    largest_class, smallest_class = max(rows, key=rows.__getitem__), min(rows, key=rows.__getitem__)
    sentence = (
        f"{len(rows)} classes; the smallest has {rows[smallest_class]:,} rows ({_display_name(smallest_class)}), "
        f"the largest {rows[largest_class]:,} ({_display_name(largest_class)})"
    )
    if context.config.task.class_weights == "balanced":
        sentence += "; balanced weights make all classes count equally"
        return passed(sentence, switch_state="class weights: balanced")
    if rows[largest_class] < _MOST_UNEVEN * rows[smallest_class]:
        return passed(sentence)
    share = rows[largest_class] / sum(rows.values())
    sentence += f"; always predicting the most frequent class is right for {share:.0%} of the rows"
    return warned(sentence, fix={"task.class_weights": "balanced"})


def _rare_labels(rows: Mapping[str, tuple[int, int | None]]) -> Verdict:
    """Return the finding about several labels per row, from (training rows, held-out rows) of each label."""
    rare = [f"{_display_name(name)} ({count})" for name, (count, _) in rows.items() if count < _FEWEST_LABEL_ROWS]
    unseen = [_display_name(name) for name, (_, count) in rows.items() if count == 0]
    faults = []
    for fault, names in ((f"fewer than {_FEWEST_LABEL_ROWS} training rows", rare), ("no held-out row", unseen)):
        if names:
            faults.append(f"{len(names)} of {len(rows)} labels have {fault}: {', '.join(names[:_SHOWN_LABELS])}")
    if faults:
        return warned("; ".join(faults), advice="add rows with these labels, or leave the labels out")
    return passed(f"each of {len(rows)} labels has {_FEWEST_LABEL_ROWS} or more training rows")


def _display_name(name: str, most: int = 30) -> str:
    """Return a name for display in a finding, shortened and in ASCII. The preview of data has the exact names."""
    return one_line(name, most).encode("ascii", "replace").decode()


@rule("Held-out data", 260, _EVAL_FRACTION, needs_plan=False)
def held_out(context: Context) -> Verdict:
    """Only the loss on text that the model has never seen shows whether a change helped."""
    plan, data = context.plan, context.config.data
    share = data.eval_fraction
    if plan and (shared_sources := [use.source for use in plan.splits if use.shares_rows]):
        sentence = f"{', '.join(shared_sources)}: rows used for evaluation are also trained on"
        return warned(sentence, advice="set data.eval_path or data.eval_split to rows that are not in data.split")
    # Held-out rows come from a separate split or file, or else are a share of the training data.
    eval_splits = [use.evaluation_split for use in plan.splits if use.evaluation_split] if plan else []
    split_text = f"the validation split ({', '.join(eval_splits)})" if eval_splits else ""
    eval_source = "data.eval_path" if data.eval_path else split_text
    if not eval_source and share == 0:
        # This also fixes a config without a plan because it has early stopping but no held-out text.
        sentence = "no rows are held out, so overfitting would go unnoticed"
        return warned(sentence, fix={_EVAL_FRACTION: _GOOD_EVAL_SHARE})
    if plan is None:
        eval_text = eval_source or f"{share:.0%} of the text"
        return not_applicable(f"{eval_text} is held out; without a plan, its number of rows is unknown")
    rows = plan.eval_rows.value
    noise_warning = "a loss over so few rows is noisy"
    if eval_source:
        sentence = f"{rows:,} rows of {eval_source} are held out"
        if rows < _FEWEST_ROWS:
            return warned(f"{sentence}: {noise_warning}", advice=f"add more text to {eval_source}")
        return passed(sentence)
    sentence = f"{quantity(rows, 'row', 'are')} held out ({share:.0%} of the text)"
    sentence += f", {plan.train_rows.value:,} are trained on"
    if share > _MAX_EVAL_SHARE:
        return warned(f"{sentence}, so more of the text could be trained on", fix={_EVAL_FRACTION: _GOOD_EVAL_SHARE})
    if share < _LEAST_EVAL_SHARE and rows < _FEWEST_ROWS:
        return warned(f"{sentence}: {noise_warning}", fix={_EVAL_FRACTION: _GOOD_EVAL_SHARE})
    return passed(sentence)


@rule("Held-out rows are not trained on", 262, "data.dedup", needed_count=_OVERLAP)
def eval_leaks(context: Context) -> Verdict:
    """A memorised row tells you nothing about unseen ones, and early stopping relies on the held-out loss."""
    counts = context.counts
    if context.counted_facts is context.first_rows:
        return not_applicable(f"{_OVERLAP} is known once all data is prepared (run tui-trainer preview)")
    if not counts.rows_read and not counts.documents_read:
        return not_applicable("a single stream of text has no rows to compare")
    if not counts.eval_rows:
        return not_applicable("no rows are held out")
    leaked_rows, repeats = counts.leaked_rows, counts.repeated_rows
    if context.config.data.dedup:
        leaks_text = f"{leaked_rows:,} training rows with the text of a held-out row"
        return passed(f"skipped: {leaks_text}, {repeats:,} other duplicate rows")
    # A document may be cut into several rows.
    held_out_rows = counts.eval_documents
    sentence = f"{leaked_rows:,} training rows have the same text as one of {held_out_rows:,} held-out rows"
    if leaked_rows <= _MOST_LEAKED * held_out_rows:
        return passed(sentence)
    return warned(f"{sentence}, so held-out scores are inflated", fix={"data.dedup": True})
