"""Tests for a real card that compare attention by lengths, run on the simulated one so that they stay usable."""

from __future__ import annotations

import pytest

from tests.gpu import test_on_a_gpu as on_a_gpu
from tests.simulated_card.machine import simulated_card

pytestmark = pytest.mark.full


def test_the_gpu_tests_of_attention_by_lengths_pass():
    with simulated_card():
        on_a_gpu.test_attention_by_lengths_gives_the_logits_of_each_document_alone("llama")
        on_a_gpu.test_attention_by_lengths_is_that_of_sdpa_for_each_document((40, 300), 64)
        on_a_gpu.test_two_packed_rows_have_the_loss_of_their_documents_alone("sdpa")
