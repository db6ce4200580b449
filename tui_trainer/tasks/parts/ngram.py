"""Interpolated n-gram models: losses that a trained model has to beat.

With c counts in the training text, T(h) the number of different tokens seen after the context h, and h' the context h
without its first token:

    P(w | h) = (c(h w) + T(h) P(w | h')) / (c(h) + T(h))        P(w | h) = P(w | h')  if h was never seen

The recursion ends in the uniform distribution over the vocabulary, so every token has a probability above zero.

Sources: Witten and Bell, The zero-frequency problem, IEEE Trans. Inf. Theory 37 (1991), method C;
Chen and Goodman, An empirical study of smoothing techniques for language modeling, TR-10-98 (1998), section 2.7.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tui_trainer.data.batching.collate import IGNORE
from tui_trainer.data.preparing.token_rows import Rows, evenly_spaced

UNSEEN = -1
BASELINE_ROWS = 50_000  # enough rows to count the tokens of answers
Integers = NDArray[np.integer]
Indices = NDArray[np.int64]
Probabilities = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Counts:
    """Counts of n-grams of one order. A gram is `context * vocabulary + token`; contexts are numbered 0..C-1."""

    grams: Indices  # sorted, each once [G]
    gram_counts: Indices  # [G]
    context_counts: Indices  # c(h) [C]
    context_types: Indices  # T(h) [C]


def ngram_losses(
    train_ids: Integers,
    eval_ids: Integers,
    eval_mask: NDArray[np.bool_],
    *,
    vocabulary: int,
    orders: Sequence[int] = (1, 2, 3),
) -> dict[int, float]:
    """Return the mean nats per token at the masked positions by order. Order n predicts from the n tokens before.

    Shapes: train_ids [N], eval_ids [M], eval_mask [M], ids in 0..vocabulary-1. `eval_mask` marks the tokens to predict.
    The context of a token is the text before it in `eval_ids`, masked or not."""
    train_tokens, eval_tokens = np.asarray(train_ids, dtype=np.int64), np.asarray(eval_ids, dtype=np.int64)
    mask = np.asarray(eval_mask, dtype=np.bool_)
    train_contexts = np.zeros(len(train_tokens), dtype=np.int64)
    eval_contexts = np.zeros(len(eval_tokens), dtype=np.int64)
    probabilities = np.full(len(eval_tokens), 1 / vocabulary)
    losses: dict[int, float] = {}
    for order in range(max(orders) + 1):
        counts, train_grams = _count(train_contexts, train_tokens, vocabulary)
        eval_grams = _find(counts.grams, eval_contexts, eval_tokens, vocabulary)
        probabilities = _interpolated(counts, eval_contexts, eval_grams, probabilities)
        if order in orders:
            losses[order] = float(-np.log(probabilities[mask]).mean())
        # The gram that ends at a token is the context of the next token in the next order.
        train_contexts, eval_contexts = _shifted(train_grams), _shifted(eval_grams)
    return losses


def unigram_loss(train: Rows, held_out: Rows, eval_rows: Sequence[int], *, vocabulary: int) -> tuple[float, int]:
    """Return (mean nats per label, number of labels) if labels are predicted by their frequency in `train`."""
    train_ids = _labels_of(train, evenly_spaced(len(train), BASELINE_ROWS))
    eval_ids = _labels_of(held_out, eval_rows)
    size, mask = max(vocabulary, int(train_ids.max()) + 1, int(eval_ids.max()) + 1), np.ones(len(eval_ids), np.bool_)
    return ngram_losses(train_ids, eval_ids, mask, vocabulary=size, orders=(0,))[0], len(eval_ids)


def _labels_of(rows: Rows, indices: Sequence[int]) -> Integers:
    all_labels = (rows.example(index).labels for index in indices)
    return np.concatenate([labels[labels != IGNORE] for labels in all_labels if labels is not None])


def _count(context: Indices, tokens: Indices, vocabulary: int) -> tuple[_Counts, Indices]:
    """Count the grams with a complete context. Return also the index of the gram at each position, or UNSEEN."""
    is_complete = context != UNSEEN
    keys = context[is_complete] * vocabulary + tokens[is_complete]
    grams, gram_of_key, gram_counts = np.unique(keys, return_inverse=True, return_counts=True)
    gram_contexts = grams // vocabulary
    context_types = np.bincount(gram_contexts)
    context_counts = np.bincount(gram_contexts, weights=gram_counts).astype(np.int64)
    positions = np.full(len(tokens), UNSEEN, dtype=np.int64)
    positions[is_complete] = gram_of_key
    return _Counts(grams, gram_counts, context_counts, context_types), positions


def _find(grams: Indices, context: Indices, tokens: Indices, vocabulary: int) -> Indices:
    """Return for each held-out position the index of its gram among the counted `grams`, or UNSEEN."""
    if len(grams) == 0:
        return np.full(len(tokens), UNSEEN, dtype=np.int64)
    keys = context * vocabulary + tokens
    indices = np.minimum(np.searchsorted(grams, keys), len(grams) - 1)
    return np.where((context != UNSEEN) & (grams[indices] == keys), indices, UNSEEN)


def _interpolated(counts: _Counts, context: Indices, gram_of_position: Indices, lower: Probabilities) -> Probabilities:
    """Return P(w | h) from `lower`, which is P(w | h'). If h was never seen in training, return `lower`."""
    has_context = (context != UNSEEN) & (context < len(counts.context_counts))
    context_counts = counts.context_counts[context[has_context]]
    context_types = counts.context_types[context[has_context]]
    gram_indices = gram_of_position[has_context]
    gram_counts = np.where(gram_indices == UNSEEN, 0, counts.gram_counts[gram_indices])
    interpolated = (gram_counts + context_types * lower[has_context]) / np.maximum(context_counts + context_types, 1)
    probabilities = lower.copy()
    probabilities[has_context] = np.where(context_counts > 0, interpolated, lower[has_context])
    return probabilities


def _shifted(grams: Indices) -> Indices:
    contexts = np.empty_like(grams)
    contexts[:1] = UNSEEN
    contexts[1:] = grams[:-1]
    return contexts
