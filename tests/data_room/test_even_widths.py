"""Rows that are padded anyway get a little more padding, so that there are few sizes of results."""

import numpy as np
import pytest

from tui_trainer.data.batching.collate import IGNORE, WIDTH_STEP, collate_answers, collate_whole, in_even_widths
from tui_trainer.data.preparing.token_rows import TokenRow
from tui_trainer.tasks import find_task

PAD = 9


def rows_of(*lengths, answers=()):
    own = answers or [None] * len(lengths)
    return [
        TokenRow(np.ones(length, dtype=np.int64), labels=None if answer is None else np.full(answer, 2, dtype=np.int64))
        for length, answer in zip(lengths, own, strict=True)
    ]


def whole(rows, pad_id=PAD, *, width=0):
    return collate_whole(rows, pad_id, np.zeros(len(rows), dtype=np.int64), width=width)


@pytest.mark.parametrize(("longest", "width"), [(3, 8), (8, 8), (9, 16), (29, 30)])
def test_inputs_are_as_wide_as_a_multiple_of_eight_and_never_wider_than_the_plan_says(longest, width):
    batch = in_even_widths(whole, PAD, 30, 0)(rows_of(longest, 2))
    assert WIDTH_STEP == 8 and batch.input_ids.shape == (2, width) == batch.more["attention_mask"].shape
    assert batch.tokens == longest + 2 == batch.more["attention_mask"].sum(), "padding is not counted"
    assert (batch.input_ids[:, longest:] == PAD).all()


def test_a_width_that_is_asked_for_is_kept():
    assert in_even_widths(whole, PAD, 64, 0)(rows_of(5), width=21).input_ids.shape == (1, 21)


def test_answers_are_filled_up_as_well_and_what_is_filled_up_has_no_label():
    def answering(rows, *, width=0):
        return collate_answers(rows, PAD, 0, width=width)

    rows = rows_of(5, 7, answers=(3, 11))
    plain, batch = answering(rows), in_even_widths(answering, PAD, 64, 64)(rows)
    read = batch.more["decoder_input_ids"]
    assert batch.labels.shape == read.shape == (2, 16)
    assert (batch.labels[:, :11] == plain.labels).all() and (batch.labels[:, 11:] == IGNORE).all()
    assert (read[:, :11] == plain.more["decoder_input_ids"]).all() and (read[:, 11:] == PAD).all()
    narrow = in_even_widths(answering, PAD, 64, 12)(rows)
    assert narrow.labels.shape == narrow.more["decoder_input_ids"].shape == (2, 12), "no more positions than there are"


def test_models_that_more_padding_changes_get_no_more_than_they_must():
    task = find_task("token_classification")
    assert task.width_step("bert") == WIDTH_STEP
    assert task.width_step("fnet") == 1
    assert find_task("causal_lm").width_step("llama") == 1
