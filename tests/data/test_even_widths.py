"""Padded rows get a little more padding, so that batches have few different sizes."""

from types import SimpleNamespace

import numpy as np

from tui_trainer.config.sections import Config
from tui_trainer.data.batching.collate import (
    IGNORE,
    collate_answers,
    collate_whole,
    count_coarse_sizes,
    round_collate_widths,
    round_up_coarsely,
    round_up_to_multiple,
)
from tui_trainer.data.batching.layout import RowLayout
from tui_trainer.data.preparing.token_rows import TokenRow
from tui_trainer.planning.training_setup import TrainingSetup
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


def test_widths_are_multiples_of_eight_up_to_the_planned_width(subtests):
    for longest, width in [(3, 8), (8, 8), (9, 16), (29, 30)]:
        with subtests.test(longest=longest):
            batch = round_collate_widths(whole, PAD, 30, 0, round_up_to_multiple)(rows_of(longest, 2))
            assert batch.input_ids.shape == (2, width) == batch.model_arguments["attention_mask"].shape
            assert batch.token_count == longest + 2 == batch.model_arguments["attention_mask"].sum(), (
                "padding is not counted"
            )
            assert (batch.input_ids[:, longest:] == PAD).all()
    # A requested width is kept.
    assert round_collate_widths(whole, PAD, 64, 0, round_up_to_multiple)(rows_of(5), width=21).input_ids.shape == (
        1,
        21,
    )


def test_answers_are_padded_as_well_and_their_padding_has_no_label():
    def answering(rows, *, width=0):
        return collate_answers(rows, PAD, 0, width=width)

    rows = rows_of(5, 7, answers=(3, 11))
    plain, batch = answering(rows), round_collate_widths(answering, PAD, 64, 64, round_up_to_multiple)(rows)
    read = batch.model_arguments["decoder_input_ids"]
    assert batch.labels.shape == read.shape == (2, 16)
    assert (batch.labels[:, :11] == plain.labels).all() and (batch.labels[:, 11:] == IGNORE).all()
    assert (read[:, :11] == plain.model_arguments["decoder_input_ids"]).all() and (read[:, 11:] == PAD).all()
    narrow = round_collate_widths(answering, PAD, 64, 12, round_up_coarsely)(rows)
    assert narrow.labels.shape == narrow.model_arguments["decoder_input_ids"].shape == (2, 12), (
        "no more positions than there are"
    )


ROUNDING = [
    ("token_classification", "bert", TrainingSetup(device="cuda", precision="bf16"), round_up_to_multiple),
    ("token_classification", "bert", TrainingSetup(), round_up_to_multiple),
    ("token_classification", "bert", TrainingSetup(precision="bf16"), round_up_coarsely),
    ("token_classification", "fnet", TrainingSetup(precision="bf16"), None),
    ("causal_lm", "llama", TrainingSetup(device="cuda", precision="bf16"), None),
    ("causal_lm", "llama", TrainingSetup(), None),
    ("causal_lm", "llama", TrainingSetup(precision="bf16"), round_up_coarsely),
]  # fmt: skip


def test_widths_are_rounded_where_it_changes_no_result_and_helps(subtests):
    for task, family, setup, expected in ROUNDING:
        with subtests.test(task=task, family=family, setup=setup):
            assert find_task(task).width_rounding(family, size_costs=setup.compiles_each_size) is expected


def test_coarse_sizes_are_few_and_close():
    sizes = [round_up_coarsely(count, 4096) for count in range(1, 4097)]
    assert all(count <= size <= count + 7 or size / count < 1.125 for count, size in enumerate(sizes, 1))
    assert len(set(sizes)) == 16 + 8 * 5 and sizes == sorted(sizes)
    for most in (1, 8, 9, 127, 128, 129, 144, 145, 255, 256, 257, 300, 1000, 1024):
        assert count_coarse_sizes(most) == len({round_up_coarsely(count, most) for count in range(1, most + 1)})
    assert (
        round_up_coarsely(0, 9),
        round_up_coarsely(300, 310),
        round_up_coarsely(12, 8),
        round_up_to_multiple(300, 512),
    ) == (0, 310, 12, 304)


def test_a_model_sees_few_batch_sizes_and_the_same_labels(subtests):
    """A decoder in 16 bits on a CPU compiles each size."""
    for packed in [False, True]:
        with subtests.test(packed=packed):
            draw, task = np.random.default_rng(0), find_task("causal_lm")
            longest = 255
            documents = [
                TokenRow(draw.integers(1, 8, size=min(longest, 2 + int(size)), dtype=np.int32))
                for size in draw.exponential(45, size=1600)
            ]
            model = SimpleNamespace(config=SimpleNamespace(model_type="llama"))
            about = {"rows_per_pass": 8, "packed_width": longest if packed else 0}
            plain = RowLayout(collate=task.collate(model, PAD), collate_packed=task.collate_packed(PAD), **about)
            evenly = RowLayout(
                collate=task.collate_in_run(Config(), model, PAD, longest, size_costs=True),
                collate_packed=task.collate_packed_in_run(PAD, longest, size_costs=True),
                **about,
            )
            shapes: dict[str, set[int]] = {"plain": set(), "even": set()}
            inputs = {"plain": 0, "even": 0}
            for start in range(0, len(documents), 16):
                for one in plain.passes(documents[start : start + 16]):
                    found = {"plain": plain.batch(one), "even": evenly.batch(one)}
                    for name, batch in found.items():
                        shapes[name].add(batch.input_ids.size)
                        inputs[name] += batch.input_ids.size
                    before, after = found.values()
                    assert after.token_count == before.token_count and after.input_ids.shape[1] <= longest
                    assert (after.labels[after.labels != IGNORE] == before.labels[before.labels != IGNORE]).all()
                    assert (after.input_ids[:, : before.input_ids.shape[1]] == before.input_ids).all()
            assert len(shapes["even"]) <= 24 < 2 * len(shapes["even"]) < len(shapes["plain"])
            assert inputs["even"] < 1.08 * inputs["plain"]
