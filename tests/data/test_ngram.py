"""The bigram and trigram baselines that a trained model is compared with."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tui_trainer.tasks.parts.ngram import ngram_losses

TRAIN = np.array([0, 1, 2, 0, 1, 3, 0, 1, 2, 2, 1, 0, 3, 3, 0, 1])
VOCABULARY = 6  # 4 and 5 never occur


def losses(train, held_out, mask, vocabulary=VOCABULARY, orders=(1, 2, 3)):
    return ngram_losses(np.array(train), np.array(held_out), np.array(mask), vocabulary=vocabulary, orders=orders)


def probability(context: list[int], token: int, order: int) -> float:
    tokens = [*context, token]
    mask = [False] * len(context) + [True]
    return math.exp(-losses(TRAIN, tokens, mask)[order])


def test_probabilities_sum_to_one_and_none_is_zero(subtests):
    for order in [1, 2, 3]:
        for context in [[0, 1, 2], [2, 2, 1], [4, 4, 4], [5, 0, 1], [0], [], [3, 0, 1], [1, 0, 0]]:
            with subtests.test(order=order, context=context):
                each = [probability(context, token, order) for token in range(VOCABULARY)]
                assert sum(each) == pytest.approx(1)
                assert min(each) > 0


def test_bigrams_follow_the_formula_of_witten_and_bell():
    def unigram(token: int) -> float:
        counts = {0: 5, 1: 5, 2: 3, 3: 3}
        return (counts.get(token, 0) + 4 / VOCABULARY) / (16 + 4)

    # after 1: 2 twice, 3 once, 0 once; three types, four tokens
    assert probability([1], 2, 1) == pytest.approx((2 + 3 * unigram(2)) / 7)
    assert probability([1], 5, 1) == pytest.approx((0 + 3 * unigram(5)) / 7)
    assert probability([4], 2, 1) == pytest.approx(unigram(2))


def test_a_longer_context_backs_off_to_the_shorter_one():
    assert probability([4, 4, 1], 2, 3) == pytest.approx(probability([1], 2, 1))
    assert probability([4, 0, 1], 2, 3) == pytest.approx(probability([0, 1], 2, 2))
    assert probability([0, 1], 2, 2) != pytest.approx(probability([1], 2, 1))
    # A context that only ends the training text backs off.
    train = [0, 1, 2, 1, 0, 2, 2, 0, 0]
    each = [[losses(train, [0, 0, token], [False, False, True])[order] for token in range(6)] for order in (1, 2)]
    assert each[1] == pytest.approx(each[0])
    # A text shorter than the order still gives a loss.
    assert losses([1], [1, 2, 3, 1], [True] * 4)[3] == pytest.approx(losses([1], [1, 2, 3, 1], [True] * 4)[1])


def test_bigrams_approach_the_entropy_of_a_markov_chain():
    random = np.random.default_rng(1)
    matrix = random.dirichlet(np.full(5, 0.5), size=5)
    steps = random.random(60_000)
    limits = matrix.cumsum(axis=1)
    chain = [0]
    for step in steps:
        chain.append(min(4, int(np.searchsorted(limits[chain[-1]], step))))
    tokens = np.array(chain)
    stationary = np.linalg.matrix_power(matrix, 200)[0]
    entropy = -float(stationary @ (matrix * np.log(matrix)).sum(axis=1))
    unigram = -float(stationary @ np.log(stationary))
    found = losses(tokens[:50_000], tokens[50_000:], np.ones(len(tokens) - 50_000, dtype=bool), vocabulary=5)
    assert found[1] == pytest.approx(entropy, abs=0.02)
    assert found[1] < unigram - 0.1
    assert found[3] == pytest.approx(entropy, abs=0.05)


def test_only_masked_positions_are_counted():
    held_out = [0, 1, 2, 0, 1, 3]
    each = [losses(TRAIN, held_out, np.arange(6) == place)[2] for place in range(6)]
    some = losses(TRAIN, held_out, [False, True, False, True, True, False])[2]
    assert some == pytest.approx((each[1] + each[3] + each[4]) / 3)


def test_a_longer_context_lowers_the_loss_of_a_repeating_text():
    text = np.tile(np.array([0, 1, 0, 2, 0, 0, 3]), 300)
    found = losses(text, text[:700], np.arange(700) > 2, vocabulary=4, orders=(0, 1, 2, 3))
    assert found[0] > found[1] > found[2] > found[3]
    assert found[3] < 0.05
