"""Tests for a real card that compare attention by lengths, on the simulated one: they call what there is."""

from __future__ import annotations

from itertools import product

import pytest

from tests.gpu import test_on_a_gpu as on_a_gpu
from tests.simulated_card.machine import simulated_card


@pytest.mark.parametrize(
    ("test", "arguments"),
    [
        *(
            (on_a_gpu.test_attention_by_lengths_gives_the_logits_of_each_document_alone, (family,))
            for family in ("llama", "gpt2")
        ),
        *(
            (on_a_gpu.test_attention_by_lengths_is_that_of_sdpa_for_each_document, case)
            for case in product([(40,), (40, 300)], [64])
        ),
        (on_a_gpu.test_two_packed_rows_have_the_loss_of_their_documents_alone, ("sdpa",)),
    ],
    ids=lambda value: str(value) if isinstance(value, tuple) else value.__name__.split("_gives_")[0][-30:],
)
def test_the_tests_of_attention_by_lengths_pass(test, arguments):
    with simulated_card():
        test(*arguments)
