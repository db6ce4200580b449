"""Scores of greedy answers to held-out prompts, which show faults that the held-out loss hides: a model that never
stops, repeats itself or loses its format."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tui_trainer.models.writing import Answer, answer_in_batches, longest_sequence_tokens, stop_ids
from tui_trainer.tasks.parts.scores import normalised

ANSWER_ROWS = 8
"""Usual number of held-out prompts that are answered."""
ANSWER_TOKENS = 128
"""Maximum number of new tokens of an answer."""
STOPPED, LOOPING, LENGTH = "stopped_answers", "looping_answers", "answer_length"
JSON, EXACT = "valid_json", "exact_match"
KEPT = "kept_answers"
"""Share of the rows of `evaluation.gate_suite` that are still answered right, of those that were before training."""

# Longer references are seldom repeated word by word, so exact match says nothing about them.
_SHORT_WORDS = 12
# A loop is a piece of text that is repeated this many times at the end of an answer, over this many tokens or more.
_LOOP_REPEATS, _LEAST_LOOP_TOKENS = 4, 16


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids of a held-out prompt and of its reference answer, without the end token.

    `reference` is the text of the answer; empty if the prompt has no particular answer, such as the beginning of a
    document. `has_end` is false for a reference that was truncated."""

    ids: Sequence[int]
    reference_ids: Sequence[int]
    has_end: bool
    reference: str = ""

    @classmethod
    def of(cls, model: Any, ids: Sequence[int], answer_ids: Sequence[int]) -> Prompt:
        """Return the prompt before an answer, which may end with an end token of the model."""
        has_end = bool(answer_ids) and answer_ids[-1] in stop_ids(model)
        return cls(ids, answer_ids[: len(answer_ids) - has_end], has_end)

    def stops_within(self, limit: int) -> bool:
        return self.has_end and len(self.reference_ids) < limit


def answer_prompts(model: Any, tokenizer: Any, prompts: Sequence[Prompt], *, new_tokens: int) -> list[Answer]:
    """Return the greedy answer to each prompt, of at least one token, and of as many as the model has room for."""
    longest_prompt = max((len(prompt.ids) for prompt in prompts), default=0)
    if not model.config.is_encoder_decoder:
        new_tokens = max(1, min(new_tokens, longest_sequence_tokens(model, tokenizer) - longest_prompt))
    return answer_in_batches(model, tokenizer, [prompt.ids for prompt in prompts], new_tokens=new_tokens)


def free_answer_scores(answers: Sequence[Answer], prompts: Sequence[Prompt]) -> dict[str, float]:
    """Return scores of answers. A score is missing if no reference allows it.

    `stopped_answers` is the share of answers that end before the token limit, of those whose reference does.
    `looping_answers` is the share that repeats one piece of text at the end. `answer_length` is the number of their
    tokens divided by that of the references. `valid_json` is the share of JSON among the answers whose reference is
    JSON, and `exact_match` the share of right answers among those with a short reference."""
    pairs = list(zip(answers, prompts, strict=True))
    scores = {
        STOPPED: [answer.has_stopped for answer, prompt in pairs if prompt.stops_within(answer.limit)],
        LOOPING: [is_looping(answer.ids) for answer, prompt in pairs if not is_looping(prompt.reference_ids)],
        JSON: [is_json(answer.text) for answer, prompt in pairs if is_json(prompt.reference)],
        EXACT: [
            normalised(answer.text) == normalised(prompt.reference)
            for answer, prompt in pairs
            if prompt.reference and len(prompt.reference.split()) <= _SHORT_WORDS
        ],
    }
    shares = {name: sum(values) / len(values) for name, values in scores.items() if values}
    with_reference = [(answer, prompt) for answer, prompt in pairs if prompt.reference]
    if reference_tokens := sum(len(prompt.reference_ids) for _, prompt in with_reference):
        shares[LENGTH] = sum(len(answer.ids) for answer, _ in with_reference) / reference_tokens
    return shares


def is_looping(ids: Sequence[int]) -> bool:
    """Return whether a text ends in a piece that is repeated four times or more, over 16 tokens or more."""
    for period in range(1, len(ids) // _LOOP_REPEATS + 1):
        tail = ids[-max(_LEAST_LOOP_TOKENS, _LOOP_REPEATS * period) :]
        if len(tail) >= _LEAST_LOOP_TOKENS and all(a == b for a, b in zip(tail, tail[period:], strict=False)):
            return True
    return False


def is_json(text: str) -> bool:
    """Return whether a text is a JSON object or array, as a whole."""
    try:
        return isinstance(json.loads(text), dict | list)
    except ValueError:
        return False
