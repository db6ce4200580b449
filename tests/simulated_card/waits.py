"""Where a run may wait for its card, by phase and function. It may nowhere else, and nowhere within a micro-batch."""

from __future__ import annotations

from tests.simulated_card.card import Card, Wait

UPDATE, LOG = ("update", "training/optimizer.py _step"), ("log", "training/recorder.py flush")
EVALUATION = ("evaluation", "training/evaluate.py observe")
ONCE_AN_EVALUATION = {
    EVALUATION: "the sum of the loss",
}
WAITS = (
    ONCE_AN_EVALUATION
    | {
        LOG: "losses and gradient norms of the steps that wait, in one copy",
        UPDATE: "optimizers without a fused kernel ask once a step whether to step; bitsandbytes, for each weight",
        ("evaluation", "tasks/sequence_classification.py scores"): "labels and predictions of all rows, at the end",
        (
            "evaluation",
            "tasks/token_classification.py scores",
        ): "labels, predictions and rows of each batch, at the end",
        ("evaluation", "tasks/question_answering.py scores"): "the likeliest places of each batch, at the end",
        ("evaluation", "tasks/kto.py scores"): "gains and marks of all answers, at the end",
        (
            "evaluation",
            "models/writing.py generate_ids",
        ): "transformers asks after each token whether all answers have ended",
        ("evaluation", "models/writing.py generate_texts"): "the tokens of all answers, for their texts",
        ("evaluation", "models/writing.py generate_answers"): "the tokens of a batch of answers, for their scores",
        (
            "evaluation",
            "models/writing.py ignores_left_padding",
        ): "once an evaluation, before padded prompts",
        (
            "checkpoint",
            "training/checkpoint.py _turn",
        ): "a pinned buffer, on the way of tensors into a file",
        ("checkpoint", "training/precision.py tensors"): "the loss scale",
    }
    | {
        (phase, "training/first_gradients.py words"): "once in a start, beside the copy of the log"
        for phase in ("log", "evaluation", "sample", "checkpoint", "micro-batches")
    }
)
# Before the first step and after the last one nothing is waited for in vain.
_BESIDE_THE_LOOP = ("start", "final model")


def unexpected_waits(card: Card) -> list[Wait]:
    """Waits that are not in the list, and copies within a step that the host stands by for."""
    found = [wait for wait in card.waits if wait.phase not in _BESIDE_THE_LOOP]
    copies = [copy for copy in card.pageable_copies if copy.phase == "micro-batches"]
    return [wait for wait in found if (wait.phase, wait.function) not in WAITS] + copies
