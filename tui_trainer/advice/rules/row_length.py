"""How long rows are, and what of them is padding."""

from collections.abc import Iterator

from tui_trainer.advice.context import Context
from tui_trainer.advice.contract import (
    BAR_SHARE,
    Cause,
    Remedy,
    Rule,
    Verdict,
    not_applicable,
    passed,
    percent,
    symptom,
    warned,
)
from tui_trainer.advice.run_view import RunView
from tui_trainer.data.preparing.cache import Counts
from tui_trainer.data.preparing.prepare import CUT_TOKENS, WHOLE_LENGTH
from tui_trainer.models.problems import length_warning
from tui_trainer.planning.attention import BY_LENGTHS
from tui_trainer.planning.basis import Basis
from tui_trainer.planning.batch_cut import KEY as PACKING
from tui_trainer.planning.batch_cut import LEAST_SAVING, against_packing, spares_padding
from tui_trainer.planning.duration import MOST_TIMES_OF_PACKING, times_of_packing
from tui_trainer.runs.events import PACKED_WITH_MASK
from tui_trainer.tasks import find_task, task_names
from tui_trainer.tasks.contract import DataFacts

LENGTH = "data.max_length"
# The shortest that a plan is made to fit with.
_LEAST_LENGTH = 128
_SHORTEST_TOKENS, _FEWEST_ROWS = 32, 32
# A row for each of twice as many: the fix is made on estimated counts.
_FIX_ROWS, _FIX_TOKENS = 2 * _FEWEST_ROWS, 128
_MOST_CUT = 0.01
_ROUND = 8
_GROUPED = "data.group_by_length"
_UNPACKED = {PACKING: False, _GROUPED: True}


class SequenceLength(Rule):
    """Attention costs the square of the length; rows that are too long leave few to shuffle."""

    name, title, order = "sequence_length", "Sequence length suits the text", 210
    settings = (LENGTH,)

    def before(self, context: Context) -> Verdict:
        plan, length, facts = context.planned, context.config.data.max_length, context.facts
        shape = context.basis.shape
        if beyond := length_warning(shape, length):
            return warned(beyond, fix={LENGTH: shape.max_position_embeddings})
        if facts is not None and not facts.is_stream:
            task = find_task(context.config.task.type)
            ends = "what is longer loses its end" if task.rows == "examples" else "a longer document gives several rows"
            return _of_documents(facts, length, "a longer text gives several windows" if task.gives_windows else ends)
        rows, tokens = plan.train_rows.value, plan.train_tokens.value
        sentence = f"rows of {length:,} tokens, {rows:,} of them from {tokens:,} tokens"
        power_of_two = 1 << max(0, (tokens // _FIX_ROWS).bit_length() - 1)
        fit = max(_SHORTEST_TOKENS, power_of_two)
        if rows < _FEWEST_ROWS and length > _SHORTEST_TOKENS:
            return warned(f"{sentence}: too few to learn from", fix={LENGTH: fit})
        if length < _SHORTEST_TOKENS and tokens >= _FIX_ROWS * _SHORTEST_TOKENS:
            sentence += f": too short a context, {_SHORTEST_TOKENS} is the least"
            return warned(sentence, fix={LENGTH: min(fit, _FIX_TOKENS)})
        return passed(sentence)

    def remedies(self, basis: Basis, budget: float) -> Iterator[Remedy]:
        """Shorter rows drop what was to be learnt."""
        length = basis.config.data.max_length
        while length > _LEAST_LENGTH:
            length = max(length // 2, _LEAST_LENGTH)
            yield Remedy(patch={LENGTH: length}, rank=9, drops_data=True)


def _of_documents(facts: DataFacts, length: int, ends: str) -> Verdict:
    """Each document is a row of its own; `ends` says what becomes of a longer one."""
    sentence = f"rows of up to {length:,} tokens, {facts.rows:,} of them, {facts.row_tokens:.0f} tokens on average"
    if length < _SHORTEST_TOKENS and facts.longest_row >= length:
        return warned(f"{sentence}: too short a context, {_SHORTEST_TOKENS} is the least", fix={LENGTH: _FIX_TOKENS})
    if facts.longest_row >= length:
        return passed(f"{sentence}; {ends}")
    longest = f"the longest {facts.longest_row:,}"
    return passed(f"{sentence}, {longest}" if facts.exact else f"{sentence}, {longest} of those that were looked at")


class LengthByTask(Rule):
    """Tokens behind what decides the answer cost as much as those before it."""

    name, title, order = "length_by_task", "Length suits the task", 211

    def before(self, context: Context) -> Verdict:
        plan, config = context.planned, context.config
        usual = find_task(config.task.type).usual_length
        if config.is_from_scratch or usual is None:
            return not_applicable(
                "a model from scratch learns the length that it is given; the ranges are of pretrained ones"
            )
        low, high = usual
        longest = context.facts.longest_row if context.facts and context.facts.longest_row else plan.longest_row
        used = min(config.data.max_length, longest)
        sentence = f"rows of up to {used:,} tokens; {config.task.type} takes {low:,} to {high:,} as a rule"
        if used <= high:
            short = (
                "" if longest <= config.data.max_length or used >= low else f"; data.max_length {low:,} would cut fewer"
            )
            return passed(sentence + short)
        advice = (
            f"try data.max_length = {high} where the ends of the longest rows can be spared: a step costs in proportion"
        )
        return warned(sentence, advice=advice)


class Truncation(Rule):
    """What is cut off is never learnt: the end of an answer, or the words that a label is about."""

    name, title, order = "truncation", "Few rows lose their end", 212
    settings = (LENGTH,)
    counted = "how many rows are too long"

    def before(self, context: Context) -> Verdict:
        counts, length = context.counts, context.config.data.max_length
        details = context.counted.details if context.counted else {}
        if not counts.rows_read:
            return _documents(counts, context.facts)
        lost, answers = counts.untrained_long_rows, counts.truncated_answers
        rows, long = counts.train_rows + counts.eval_rows + lost, counts.truncated_rows + lost
        share = long / max(rows, 1)
        if not long:
            sentence = f"0 of {rows:,} rows lose their end at {length:,} tokens"
            if find_task(context.config.task.type).gives_windows:
                sentence += f": they are windows of the {counts.rows_read:,} that were read"
        else:
            sentence = f"{long:,} of {rows:,} rows ({share:.1%}) are longer than {length:,} tokens and lose their end"
            words = counts.train_labels_beyond + counts.eval_labels_beyond
            if words or CUT_TOKENS in details:
                sentence += f", {words:,} words" if words else f", about {details[CUT_TOKENS]:,} tokens"
            sentence += f"; of {lost:,} of them that is all that is to be learnt" if lost else ""
        if answers:
            sentence += f"; {answers:,} answers do not fit whole"
        if share <= _MOST_CUT:
            if answers <= _MOST_CUT * rows:
                return passed(sentence)
            return warned(sentence, advice="see by tui-trainer preview which limit cuts answers, and raise it")
        wanted = -(-int(details.get(WHOLE_LENGTH, 2 * length)) // _ROUND) * _ROUND
        limit = context.basis.shape.max_position_embeddings
        possible = wanted if limit is None else min(wanted, limit)
        if possible <= length:
            return warned(
                sentence, advice=f"the model was made for {limit:,} tokens: shorten the texts, or choose another"
            )
        if possible < wanted or WHOLE_LENGTH not in details:
            return warned(sentence, fix={LENGTH: possible})
        return warned(f"{sentence}; about {wanted:,} tokens would hold 99 % of them", fix={LENGTH: possible})


def _documents(counts: Counts, facts: DataFacts | None) -> Verdict:
    """Documents of a language model are cut into several rows, and none of them is lost."""
    if facts is None or facts.is_stream:
        return not_applicable("rows are cut from one stream of text: none loses its end")
    documents = counts.train_documents + counts.eval_documents
    if not counts.cut_documents:
        return passed(f"each of {documents:,} documents fits into a row; none is cut")
    return passed(
        f"{counts.cut_documents:,} of {documents:,} documents are cut into {counts.pieces:,} rows; no token is lost"
    )


@symptom("Padding")
def padding(view: RunView) -> Cause | None:
    """Rows of one pass are as long as its longest; grouping like with like, or packing, avoids it."""
    sums, plan = view.sums, view.plan
    if not (sums.positions and sums.input_tokens):
        return None
    padded = 1 - sums.input_tokens / sums.positions
    share = padded * view.share(view.compute_seconds)
    if share < BAR_SHARE:
        return None
    can_pack = view.state.task in task_names() and find_task(view.state.task).packs
    is_packed, is_grouped = (plan.packing, plan.group_by_length) if plan else (None, None)
    if (is_grouped and not can_pack) or view.is_by_default(PACKING, _GROUPED):
        # Rows of about one length cannot spare more, and the plan has weighed what it decided itself.
        return None
    tokens, positions = sums.input_tokens / sums.steps, sums.positions / sums.steps
    return Cause(
        cause="Much of each batch is padding, which is computed and thrown away.",
        evidence=f"{percent(padded)} padding: {tokens:,.0f} tokens in {positions:,.0f} positions a step",
        share=share,
        fix={_GROUPED: True} if is_grouped is False else None,
        advice='data.packing = "auto": documents can share rows' if can_pack and not is_packed else "",
    )


@symptom("Packed rows are masked", needs_steps=False, least_share=0)
def packed_with_mask(view: RunView) -> Cause | None:
    """With a mask, attention is computed over the whole packed row, and what lies between documents is thrown away."""
    told = [problem.message for problem in view.state.problems if problem.kind == PACKED_WITH_MASK]
    if not told or not (view.plan and view.plan.packing) or view.is_by_default(PACKING):
        return None
    return Cause(
        cause="Packed rows have a mask of documents, and may be slower than rows of their own.",
        evidence=told[-1],
        # Which of both is faster goes by the length of rows and documents: nobody has measured it here.
        share=0.0,
        fix=_UNPACKED,
        advice="measure it: tui-trainer check --measure padding",
    )


class Padding(Rule):
    """Padding is computed and thrown away; grouping or packing rows avoids it where rows differ in length.

    Source: Krell et al., Efficient Sequence Packing without Cross-contamination, arXiv:2107.02027.
    """

    name, title, order = "padding", "No time spent on padding", 220
    settings = (PACKING, _GROUPED)
    fallback = "auto"
    is_for_speed = True
    during = (padding, packed_with_mask)

    def before(self, context: Context) -> Verdict:
        facts, packing = context.facts, context.planned.packing
        if facts is None:
            return not_applicable("how long the documents are is not known")
        if facts.is_stream:
            return _stream(context)
        if packing.value:
            times = _times_of_packing(context, facts)
            if context.config.data.packing is True and times > MOST_TIMES_OF_PACKING:
                sentence = (
                    f"packed rows with a mask compute {times:.1f} times what rows of their own would without padding"
                )
                return warned(f"{sentence} (reckoned): {packing.reason}", fix=_UNPACKED, switch="packing on")
            return passed(f"packed: {packing.reason}", switch="packing on", opposite={PACKING: False})
        if facts.packed_rows is None:
            return _padded(context, facts, "this task has one row for each example")
        rows = min(context.planned.effective_batch_size.value, facts.rows)
        fill = f"{rows} documents of about {facts.row_tokens:.0f} tokens would fill {facts.packed_rows:.1f} packed rows"
        can_pack = not against_packing(context.basis.shape.model_type)
        saves = (
            1 - facts.packed_rows / rows >= LEAST_SAVING and _times_of_packing(context, facts) <= MOST_TIMES_OF_PACKING
        )
        if can_pack and context.config.data.packing is False and saves:
            return warned(f"not packed: {fill}", fix={PACKING: "auto"}, switch="packing: off")
        return _padded(context, facts, "not packed" if can_pack else packing.reason)


def _times_of_packing(context: Context, facts: DataFacts) -> float:
    plan, basis = context.planned, context.basis
    if plan.device == "cuda" and (not plan.packing.value or plan.attention.kernel == BY_LENGTHS):
        return 1.0
    return times_of_packing(basis.loaded.config, facts, basis.shape, basis.setup)


def _stream(context: Context) -> Verdict:
    plan, length = context.planned, context.config.data.max_length
    rows = plan.train_rows.value
    missing = -(plan.train_tokens.value - 1) % length
    return passed(
        f"rows are cut from one stream of text, so only the last of {rows:,} is shorter: "
        f"{missing / (rows * length):.2%} padding"
    )


def _padded(context: Context, facts: DataFacts, why: str) -> Verdict:
    """Rows of one pass are as long as its longest, unless like is put to like."""
    sentence = f"{why}: documents of about {facts.document_tokens:.0f} tokens, the longest {facts.longest_row:,}"
    plan = context.planned
    grouping, pass_rows = plan.grouping, plan.per_device_train_batch_size.value
    if grouping is None or facts.padding is None:
        return passed(sentence, switch="packing: off")
    shares = facts.padding(min(plan.effective_batch_size.value, facts.rows), pass_rows)
    sentence += f"; {shares.padded:.0%} padding in batches as they come, {shares.grouped:.0%} in those drawn by length"
    how = ", as here" if grouping.value else "; one row in a pass needs none" if pass_rows == 1 else ""
    if grouping.value or pass_rows == 1 or not spares_padding(shares):
        other = None if pass_rows == 1 and not grouping.value else {_GROUPED: not grouping.value}
        return passed(sentence + how, switch="packing: off, little to save", opposite=other)
    if context.is_by_default(PACKING, _GROUPED):
        learns = "batches drawn by length are faster, and some models learn less from them"
        return passed(f"{sentence}; {learns}", switch="packing: off", opposite={_GROUPED: "auto"})
    return warned(sentence, fix={_GROUPED: "auto"}, switch="packing: off")
