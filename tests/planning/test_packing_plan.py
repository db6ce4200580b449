"""When a plan packs documents into shared rows, why, and the batch that results."""

import random
from dataclasses import replace

import numpy as np
import pytest

from tui_trainer.config.load import Request
from tui_trainer.data.batching.pack import pack_batch, padding_shares
from tui_trainer.launching.open_run import load_config
from tui_trainer.launching.prepare import estimated_plan
from tui_trainer.models.shape import scratch_shape
from tui_trainer.planning.batch_cut import (
    cut_batch,
    cut_by_length,
    decide_packing,
    longest_row,
    max_rows_of_step,
    packed_cut,
    packing_problems,
)
from tui_trainer.planning.fit import longest_row_tokens, most_labels, most_passes, parts_of_run
from tui_trainer.planning.training_setup import TrainingSetup
from tui_trainer.tasks.contract import DataFacts

FACTS = DataFacts(
    rows=1000, eval_rows=100, tokens=50_000, eval_tokens=5_000, vocabulary=300, exact=True, reason="counted",
    row_tokens=49.0, longest_row=200, packed_rows=6.4,
)  # fmt: skip


def loaded(*assignments: str):
    always = ("training.effective_batch_size=32", "data.max_length=256")
    return load_config(Request(profile="finetune", assignments=(*always, *assignments)))


def shape(model_type: str = "llama"):
    return replace(scratch_shape(loaded().config.model.scratch, 300), model_type=model_type)


NOT_PACKED = [
    (("data.packing=false",), FACTS, "llama", "data.packing = false, from --set"),
    ((), replace(FACTS, packed_rows=None), "llama", "rows are cut from one long text, so they are full"),
    ((), replace(FACTS, packed_rows=31.0), "llama", "packing would save little"),
    ((), FACTS, "opt", "OPT counts positions through the whole row, so packed documents would mix"),
]


def test_packing_is_on_unless_it_saves_nothing_or_would_mix_documents(subtests):
    found = decide_packing(loaded(), FACTS, shape(), 32)
    assert found.value and found.reason == "32 documents of about 49 tokens fill 6.4 rows"
    for config, facts, family, reason in NOT_PACKED:
        with subtests.test(reason):
            planned = decide_packing(loaded(*config), facts, shape(family), 32)
            assert not planned.value
            assert reason in planned.reason


def test_requested_packing_that_would_mix_documents_is_refused():
    settings = loaded("data.packing=true")
    assert not packing_problems(settings, shape())
    problem = packing_problems(settings, shape("bloom"))[0]
    assert (problem.key, problem.where) == ("data.packing", "--set")
    assert "Bloom measures distances through the whole row" in problem.message


CUTS = [
    ((), 100, 8, 1),  # 6.4 rows on average, up to 8 in a step
    ((), 3, 3, 3),
    (("training.per_device_train_batch_size=2",), 100, 2, 4),
    (("training.gradient_accumulation_steps=4",), 100, 2, 4),
    (("training.gradient_accumulation_steps=16",), 100, 1, 8),
]


def test_a_step_is_cut_into_passes_of_similar_rows_where_that_saves_more_than_passes_cost(subtests):
    uneven, even = [10, 12, 14, 200] * 250, [50] * 1000
    for lengths, starting_tokens, micro in ((uneven, 1.0, 1), (uneven, 150.0, 8), (uneven, 1e6, 16), (even, 1.0, 16)):
        with subtests.test(f"{set(lengths)}, starting a pass costs {starting_tokens} tokens"):

            def padding(rows: int, lengths: list[int] = lengths) -> float:
                return padding_shares(lengths, capacity=256, documents=32, micro_batch=rows).padded

            whole = cut_batch(loaded(), lambda limit: limit)
            cut = cut_by_length(whole, replace(FACTS, row_tokens=np.mean(lengths)), padding, starting_tokens)
            assert (cut.micro_batch, cut.accumulation, cut.effective_batch) == (micro, 32 // micro, 32)
            assert cut == whole or "rows of similar length share a pass" in cut.micro_reason


def test_only_a_written_number_of_rows_is_not_cut_by_length():
    key = "training.per_device_train_batch_size"
    written, automatic, default = (
        estimated_plan(load_config(Request(profile="docstring-topics", assignments=assignments)))
        for assignments in ((f"{key}=16",), (f"{key}=auto",), ())
    )
    assert written.per_device_train_batch_size.value == 16
    for free in (automatic, default):
        assert (free.per_device_train_batch_size.value, free.gradient_accumulation_steps.value) == (8, 4)
        assert free.step_flops < written.step_flops, "padding is computed, and counts"


def test_a_micro_batch_counts_packed_rows(subtests):
    for config, fits, micro, accumulation in CUTS:
        with subtests.test(f"{config}, {fits} rows fit"):
            settings = loaded(*config)
            cut = packed_cut(
                settings,
                cut_batch(settings, lambda limit: limit),
                FACTS,
                256,
                lambda limit, fits=fits: min(limit, fits),
            )
            assert (cut.micro_batch, cut.accumulation) == (micro, accumulation)
            assert cut.effective_batch == 32, "a step learns from the same documents, however they lie"
    wide = loaded("data.max_length=4096")
    cut = packed_cut(wide, cut_batch(wide, lambda limit: limit), FACTS, 2039, lambda limit: limit)
    assert (cut.micro_batch, cut.accumulation) == (1, 1), "a small batch is one row"


WIDEST = [
    (256, {}, True, 256),  # 32 x 49 tokens fill several rows
    (4096, {}, True, 2039),  # all in one row, and 30 % more on some steps
    (4096, {"longest_row": 3000}, True, 3000),
    (256, {}, False, 200),  # padded to the longest
    (256, {"exact": False}, False, 256),  # the longest that was looked at, and half as much again
    (1024, {"longest_row": 0, "packed_rows": None}, False, 1024),
    (256, {"row_documents": 2}, True, 400),  # both documents of a pair, which is more than one of 256
    (256, {"row_documents": 2}, False, 200),  # each of them is a row
    (4096, {"row_documents": 2}, True, 2039),
]


def test_the_widest_row_is_no_wider_than_what_a_batch_fills(subtests):
    for length, changes, packed, wanted in WIDEST:
        with subtests.test(f"{length} {changes} packed={packed}"):
            settings = loaded(f"data.max_length={length}")
            assert longest_row(settings.config, replace(FACTS, **changes), packed) == wanted


def test_no_step_has_more_packed_rows_than_planned(subtests):
    for seed in range(40):
        with subtests.test(f"seed {seed}"):
            draw = random.Random(seed)
            longest, width = draw.randint(1, 60), draw.randint(60, 256)
            documents = [np.zeros(draw.randint(1, longest) + 1, dtype=np.int32) for _ in range(draw.randint(1, 80))]
            facts = replace(FACTS, longest_row=longest, row_tokens=width)  # as long as it needs for full rows
            settings = loaded(f"data.max_length={width}", f"training.effective_batch_size={len(documents)}").config
            most = max_rows_of_step(settings, facts, True, len(documents))
            assert len(pack_batch(documents, longest_row(settings, facts, True))) <= most <= len(documents)
    documents = [np.zeros(51, dtype=np.int32)] * 32
    facts = replace(FACTS, longest_row=50)
    assert max_rows_of_step(loaded().config, facts, True, 32) == len(pack_batch(documents, 256)) == 7, "of equal length"


def test_one_pass_is_planned_only_if_a_step_never_has_more_rows():
    config = loaded().config
    # Of documents of 50 tokens at least five share a row: 7 rows at most. One of 200 tokens has a row of its own.
    for longest, micro, passes in ((50, 7, 1), (50, 6, 2), (200, 8, 4), (200, 32, 1)):
        most = max_rows_of_step(config, replace(FACTS, longest_row=longest), True, 32)
        assert most_passes(config, TrainingSetup(packed=True, most_rows=most), micro) == passes, (longest, micro)
    # Padded rows are as many as the documents.
    assert (
        max_rows_of_step(config, FACTS, False, 32) == 32
        and max_rows_of_step(config, replace(FACTS, rows=5), False, 32) == 5
    )


def test_a_padded_pair_takes_two_rows_and_a_packed_pair_a_part_of_one():
    settings, whole = loaded().config, shape()

    def parts(rows, **changes):
        setup = TrainingSetup(longest_row=200, most_rows=rows, **changes)
        return parts_of_run(whole, setup, settings, rows, rows)

    assert parts(4, row_documents=2) == parts(8) != parts(4)
    assert parts(4, row_documents=2, packed=True) == parts(4, packed=True)
    pairs = TrainingSetup(longest_row=400, row_documents=2)
    assert [longest_row_tokens(settings, replace(pairs, packed=packed)) for packed in (True, False)] == [400, 256]


@pytest.mark.full
def test_padded_passes_have_no_more_labels_than_planned(subtests):
    """Lengths of an exponential distribution with the mean of the facts, cut at the limit; the longest lie together."""
    for rows, among in [(16, 16), (8, 32), (1, 64)]:
        with subtests.test(f"{rows} of {among}"):
            settings = loaded().config
            most = most_labels(settings, TrainingSetup(document_tokens=49.0), rows, among)
            draw = np.random.default_rng(3)
            steps = np.minimum(256, 1 + draw.exponential(48.0, size=(100, among)))
            fullest = np.sort(steps, axis=1)[:, -rows:].sum(axis=1).max()
            assert fullest <= most <= rows * 256
            assert most < 2 * fullest


def test_all_tokens_count_as_labels_if_rows_are_full_or_of_similar_length():
    assert most_labels(loaded().config, TrainingSetup(), 16, 16) == 0
    assert most_labels(loaded().config, TrainingSetup(document_tokens=256.0), 16, 16) == 0
    assert most_labels(loaded("data.group_by_length=true").config, TrainingSetup(document_tokens=49.0), 16, 16) == 0


@pytest.mark.full
def test_logits_of_a_chat_are_planned_for_the_learnt_share_only():
    config = loaded().config
    room = 16 * longest_row_tokens(config, TrainingSetup())
    found = [most_labels(config, TrainingSetup(packed=True, label_share=share), 16, 16) for share in (0.05, 0.2, 0.4)]
    assert found == sorted(found) and 0.05 * room < found[0] < found[-1] < room
    assert most_labels(config, TrainingSetup(packed=True, label_share=0.9), 1, 16) == 0, "a pass may be all labels"
