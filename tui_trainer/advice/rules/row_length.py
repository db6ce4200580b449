"""Rules about the length of rows and about padding."""

from collections.abc import Iterator

from tui_trainer.advice.context import Context
from tui_trainer.advice.contract import (
    LEAST_CAUSE_SHARE,
    Cause,
    Remedy,
    Verdict,
    not_applicable,
    passed,
    rule,
    symptom,
    warned,
)
from tui_trainer.advice.run_view import RunView
from tui_trainer.data.preparing.prepare import CUT_TOKENS_KEY, WHOLE_LENGTH_KEY
from tui_trainer.models.problems import length_warning
from tui_trainer.planning.attention import BY_LENGTHS
from tui_trainer.planning.basis import Basis
from tui_trainer.planning.batch_cut import GROUP_BY_LENGTH, LEAST_SAVING, PACKING, packing_obstacle, spares_padding
from tui_trainer.planning.duration import MAX_PACKING_COST_FACTOR, packing_cost_factor
from tui_trainer.runs.events import PACKED_WITH_MASK
from tui_trainer.tasks import find_task, task_names
from tui_trainer.tasks.contract import DataFacts
from tui_trainer.units import format_percent, quantity

GROUP = "Data"
LENGTH = "data.max_length"
# Shortest row length that is proposed so that a plan fits into memory.
_LEAST_LENGTH = 128
# A shorter context has little to learn from, and fewer rows leave little to shuffle.
_SHORTEST_TOKENS = 32
_FEWEST_ROWS = 32
# The fix leaves room for twice as many rows, because it uses estimated counts.
_FIX_ROWS = 2 * _FEWEST_ROWS
_FIX_TOKENS = 128
# One row in a hundred may lose its end.
_MAX_TRUNCATED_SHARE = 0.01
# Kernels are fastest if the row length is a multiple of this.
_LENGTH_MULTIPLE = 8
_UNPACKED = {PACKING: False, GROUP_BY_LENGTH: True}


def _remedies_of_sequence_length(basis: Basis, budget: float) -> Iterator[Remedy]:
    """Yield shorter row lengths as remedies, which cut text that would be learned."""
    length = basis.config.data.max_length
    while length > _LEAST_LENGTH:
        length = max(length // 2, _LEAST_LENGTH)
        yield Remedy(patch={LENGTH: length}, rank=9, drops_data=True)


@rule("Sequence length", 210, LENGTH, remedies=_remedies_of_sequence_length)
def sequence_length(context: Context) -> Verdict:
    """The cost of attention grows with the square of the length; if rows are very long, there are few to shuffle."""
    plan, length, facts = context.required_plan, context.config.data.max_length, context.facts
    shape = context.basis.shape
    if warning := length_warning(shape, length):
        return warned(warning, fix={LENGTH: shape.max_position_embeddings})
    short_note = f"too short as a context; use {_SHORTEST_TOKENS} tokens or more"
    if facts is not None and not facts.is_stream:
        # Each document is a row of its own.
        sentence = f"{facts.rows:,} rows of up to {length:,} tokens, {facts.row_tokens:.0f} tokens on average"
        if facts.longest_row < length:
            longest_text = "the longest" if facts.exact else "the longest sampled row"
            return passed(f"{sentence}, {longest_text} {facts.longest_row:,}")
        if length < _SHORTEST_TOKENS:
            return warned(f"{sentence}: {short_note}", fix={LENGTH: _FIX_TOKENS})
        task = find_task(context.config.task.type)
        if task.gives_windows:
            return passed(f"{sentence}; longer texts are split into windows")
        is_truncated = task.row_kind == "examples"
        return passed(f"{sentence}; longer {'rows are truncated' if is_truncated else 'documents are split into rows'}")
    rows, tokens = plan.train_rows.value, plan.train_tokens.value
    sentence = f"{rows:,} rows of {length:,} tokens, cut from a text of {tokens:,} tokens"
    power_of_two = 1 << max(0, (tokens // _FIX_ROWS).bit_length() - 1)
    good_length = max(_SHORTEST_TOKENS, power_of_two)
    if rows < _FEWEST_ROWS and length > _SHORTEST_TOKENS:
        return warned(f"{sentence}: too few rows to learn from", fix={LENGTH: good_length})
    if length < _SHORTEST_TOKENS and tokens >= _FIX_ROWS * _SHORTEST_TOKENS:
        return warned(f"{sentence}: {short_note}", fix={LENGTH: min(good_length, _FIX_TOKENS)})
    return passed(sentence)


@rule("Length for this task", 211)
def length_by_task(context: Context) -> Verdict:
    """Tokens after the decisive part of a text cost as much as those before it."""
    plan, config = context.required_plan, context.config
    bounds = find_task(config.task.type).usual_length
    if bounds is None and not config.is_from_scratch:
        return not_applicable(f"no typical length is known for {config.task.type}")
    if bounds is None or config.is_from_scratch:
        note = "a model from scratch can be trained with rows of any length"
        return not_applicable(f"typical lengths are known only for pretrained models; {note}")
    low, high = bounds
    longest_row = context.facts.longest_row if context.facts and context.facts.longest_row else plan.longest_row
    length = min(config.data.max_length, longest_row)
    sentence = f"rows of up to {length:,} tokens; {low:,} to {high:,} is typical for {config.task.type}"
    if length > high:
        advice = f"if the ends of the longest rows are not needed, try data.max_length = {high} for faster steps"
        return warned(sentence, advice=advice)
    if length < low and longest_row > config.data.max_length:
        sentence += f"; data.max_length = {low} would truncate fewer rows"
    return passed(sentence)


@rule("Few truncated rows", 212, LENGTH, needed_count="the number of truncated rows")
def truncation(context: Context) -> Verdict:
    """Truncated text is never learned, such as the end of an answer or the words that a label is about."""
    counts, length = context.counts, context.config.data.max_length
    details = context.counted_facts.details if context.counted_facts else {}
    if not counts.rows_read:
        # Documents of a language model are cut into several rows, and none of them is lost.
        if context.facts is None or context.facts.is_stream:
            return not_applicable("rows are cut from one stream of text, so none is truncated")
        documents_text = f"{quantity(counts.train_documents + counts.eval_documents, 'document')}"
        if not counts.cut_documents:
            return passed(f"each of {documents_text} fits into a row; none is split")
        split_text = f"{counts.cut_documents:,} of {documents_text} are split into {counts.pieces:,} rows"
        return passed(f"{split_text}; no token is lost")
    lost_rows, cut_answers = counts.untrained_long_rows, counts.truncated_answers
    rows, long_rows = counts.train_rows + counts.eval_rows + lost_rows, counts.truncated_rows + lost_rows
    share = long_rows / max(rows, 1)
    if not long_rows:
        sentence = f"0 of {rows:,} rows are truncated at {length:,} tokens"
        if find_task(context.config.task.type).gives_windows:
            sentence += f": they are windows of {counts.rows_read:,} texts"
    else:
        sentence = f"{long_rows:,} of {rows:,} rows ({share:.1%}) are longer than {length:,} tokens and are truncated"
        words = counts.train_labels_beyond + counts.eval_labels_beyond
        if words or CUT_TOKENS_KEY in details:
            sentence += f", losing {words:,} words" if words else f", losing about {details[CUT_TOKENS_KEY]:,} tokens"
        sentence += f"; {lost_rows:,} of them lose all tokens to learn from" if lost_rows else ""
    if cut_answers:
        sentence += f"; {quantity(cut_answers, 'answer', 'do')} not fit completely"
    if share <= _MAX_TRUNCATED_SHARE:
        if cut_answers <= _MAX_TRUNCATED_SHARE * rows:
            return passed(sentence)
        advice = "run tui-trainer preview to see which limit truncates answers, then raise this limit"
        return warned(sentence, advice=advice)
    whole_length = -(-int(details.get(WHOLE_LENGTH_KEY, 2 * length)) // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE
    limit = context.basis.shape.max_position_embeddings
    new_length = whole_length if limit is None else min(whole_length, limit)
    if new_length <= length:
        advice = f"the model supports {limit:,} tokens: shorten the texts, or choose another model"
        return warned(sentence, advice=advice)
    if new_length < whole_length or WHOLE_LENGTH_KEY not in details:
        return warned(sentence, fix={LENGTH: new_length})
    return warned(f"{sentence}; 99 % of all rows have about {whole_length:,} tokens or fewer", fix={LENGTH: new_length})


@symptom("Padding")
def padding(view: RunView) -> Cause | None:
    """Rows of a micro-batch are padded to the longest; grouping rows of similar length, or packing, avoids that."""
    sums, plan = view.sums, view.plan
    if not (sums.positions and sums.input_tokens):
        return None
    padded_share = 1 - sums.input_tokens / sums.positions
    share = padded_share * view.share_of_time(view.compute_seconds)
    if share < LEAST_CAUSE_SHARE:
        return None
    can_pack = view.state.task in task_names() and find_task(view.state.task).can_pack
    is_packed, is_grouped = (plan.packing, plan.group_by_length) if plan else (None, None)
    if (is_grouped and not can_pack) or view.is_by_default(PACKING, GROUP_BY_LENGTH):
        # Nothing can be saved if rows have about the same length, or if the plan itself chose this layout.
        return None
    tokens, positions = sums.input_tokens / sums.steps, sums.positions / sums.steps
    return Cause(
        cause="Much of each batch is padding, which is computed and discarded.",
        evidence=f"{format_percent(padded_share)} padding: {tokens:,.0f} tokens in {positions:,.0f} positions per step",
        share=share,
        fix={GROUP_BY_LENGTH: True} if is_grouped is False else None,
        advice='data.packing = "auto" lets documents share rows' if can_pack and not is_packed else "",
    )


@symptom("Packed rows need an attention mask", needs_steps=False, least_share=0)
def packed_with_mask(view: RunView) -> Cause | None:
    """With a mask, attention is computed over the whole packed row, and scores between documents are discarded."""
    messages = [problem.message for problem in view.state.problems if problem.kind == PACKED_WITH_MASK]
    if not messages or not (view.plan and view.plan.packing) or view.is_by_default(PACKING):
        return None
    return Cause(
        cause="Packed rows use a document mask and may be slower than separate rows.",
        evidence=messages[-1],
        # Which layout is faster depends on the lengths of rows and documents, and was not measured here.
        share=0.0,
        fix=_UNPACKED,
        advice="measure it: tui-trainer check --measure padding",
    )


@rule(
    "Little padding", 220, PACKING, GROUP_BY_LENGTH,
    name="padding", fallback="auto", is_for_speed=True, symptoms=(padding, packed_with_mask),
)  # fmt: skip
def little_padding(context: Context) -> Verdict:
    """Padding is computed and discarded; grouping or packing rows of different lengths avoids it.

    Source: Krell et al., Efficient Sequence Packing without Cross-contamination, arXiv:2107.02027.
    """
    facts, packing = context.facts, context.required_plan.packing
    if facts is None:
        return not_applicable("the length of the documents is unknown")
    if facts.is_stream:
        rows, length = context.required_plan.train_rows.value, context.config.data.max_length
        padded_share = -(context.required_plan.train_tokens.value - 1) % length / (rows * length)
        sentence = f"rows are cut from one stream of text, so only the last of {rows:,} is shorter"
        return passed(f"{sentence}: {padded_share:.2%} padding")
    if packing.value:
        ratio = _packing_cost_ratio(context, facts)
        if context.config.data.packing is True and ratio > MAX_PACKING_COST_FACTOR:
            sentence = f"packed rows with a mask need {ratio:.1f} times the computation of unpacked, unpadded rows"
            return warned(f"{sentence} (estimated): {packing.reason}", fix=_UNPACKED, switch_state="packing on")
        return passed(f"packed: {packing.reason}", switch_state="packing on", opposite_patch={PACKING: False})
    if facts.packed_rows is None:
        return _padding_verdict(context, facts, "this task uses one row per example")
    rows = min(context.required_plan.effective_batch_size.value, facts.rows)
    text = f"{rows} documents of about {facts.row_tokens:.0f} tokens would fill {facts.packed_rows:.1f} packed rows"
    can_pack = not packing_obstacle(context.basis.shape.model_type)
    saves = 1 - facts.packed_rows / rows >= LEAST_SAVING
    saves = saves and _packing_cost_ratio(context, facts) <= MAX_PACKING_COST_FACTOR
    if can_pack and context.config.data.packing is False and saves:
        return warned(f"not packed: {text}", fix={PACKING: "auto"}, switch_state="packing: off")
    return _padding_verdict(context, facts, "not packed" if can_pack else packing.reason)


def _packing_cost_ratio(context: Context, facts: DataFacts) -> float:
    plan, basis = context.required_plan, context.basis
    if plan.device == "cuda" and (not plan.packing.value or plan.attention.kernel == BY_LENGTHS):
        return 1.0
    return packing_cost_factor(basis.loaded.config, facts, basis.shape, basis.setup)


def _padding_verdict(context: Context, facts: DataFacts, why: str) -> Verdict:
    """Return the verdict on the padding of rows that are not packed. `why` says why they are not. Each row is padded to
    the longest of its pass."""
    sentence = f"{why}: documents of about {facts.document_tokens:.0f} tokens, the longest {facts.longest_row:,}"
    plan = context.required_plan
    grouping, pass_rows = plan.grouping, plan.per_device_train_batch_size.value
    if grouping is None or facts.padding is None:
        return passed(sentence, switch_state="packing: off")
    model_type, size_costs = context.basis.shape.model_type, plan.training_setup.compiles_each_size
    rounding = find_task(plan.config.task.type).width_rounding(model_type, size_costs=size_costs)
    shares = facts.padding(min(plan.effective_batch_size.value, facts.rows), pass_rows, rounding)
    sentence += f"; {shares.padded:.0%} padding in random batches, {shares.grouped:.0%} in batches grouped by length"
    one_row_note = "; a micro-batch of one row needs little padding" if pass_rows == 1 else ""
    note = ", which this run uses" if grouping.value else one_row_note
    if grouping.value or pass_rows == 1 or not spares_padding(shares):
        opposite = None if pass_rows == 1 and not grouping.value else {GROUP_BY_LENGTH: not grouping.value}
        return passed(sentence + note, switch_state="packing: off, little to save", opposite_patch=opposite)
    if context.is_by_default(PACKING, GROUP_BY_LENGTH):
        reason = "grouping by length is faster, but some models learn less from it"
        return passed(f"{sentence}; {reason}", switch_state="packing: off", opposite_patch={GROUP_BY_LENGTH: "auto"})
    return warned(sentence, fix={GROUP_BY_LENGTH: "auto"}, switch_state="packing: off")
