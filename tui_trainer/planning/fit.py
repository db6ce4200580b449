"""Compute how much memory a run may use, and the largest micro-batch that fits into it."""

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import Self

from tui_trainer.config.sections import Config, ResolvedConfig, step_rows
from tui_trainer.hardware.facts import Hardware
from tui_trainer.models.shape import ModelShape
from tui_trainer.planning.automatic_values import TrainingDevice
from tui_trainer.planning.measured_steps import correct_parts, nearest_peak
from tui_trainer.planning.memory import estimate as memory
from tui_trainer.planning.memory.dry_run import measure_layer
from tui_trainer.planning.memory.parts import BatchSizes, MemoryPart
from tui_trainer.planning.training_setup import TrainingSetup
from tui_trainer.tasks import find_task

# Usable shares of free memory. The rest is for other programs on a CPU, and lost to the allocator on a GPU.
CPU_SHARE, GPU_SHARE = 0.8, 0.9
# Number of passes whose rows an evaluation sorts or packs together (`training/batches.py`).
EVALUATION_WINDOW = 4
# The fullest of some hundred passes is this many standard deviations above their mean.
_DEVIATIONS = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryBudget:
    """Free and total bytes of the device that computes; None if they are not reported."""

    free_bytes: int | None
    total_bytes: int | None
    where: str
    usable_share: float

    @property
    def budget_bytes(self) -> int | None:
        """Bytes of the free memory that a run may use."""
        return None if self.free_bytes is None else int(self.free_bytes * self.usable_share)

    @classmethod
    def of(cls, hardware: Hardware, target: TrainingDevice, processes: int = 1) -> Self:
        """Return the budget of one of `processes` processes. Each has its own GPU; all share the machine's memory."""
        if target.gpu is None:
            free_bytes, total_bytes = hardware.memory_available_bytes, hardware.memory_bytes
            return cls(
                free_bytes=None if free_bytes is None else free_bytes // processes,
                total_bytes=None if total_bytes is None else total_bytes // processes,
                where="this machine" if processes == 1 else f"each of {processes} processes on this machine",
                usable_share=CPU_SHARE,
            )
        free_bytes, total_bytes = target.gpu.memory_free_bytes, target.gpu.memory_bytes
        free_bytes = total_bytes if free_bytes is None else free_bytes
        return cls(free_bytes=free_bytes, total_bytes=total_bytes, where="the GPU", usable_share=GPU_SHARE)


def with_dry_run(config: Config, shape: ModelShape, setup: TrainingSetup) -> tuple[TrainingSetup, str]:
    """Return the setup with the counts of a dry run, and a clause on how the memory is computed."""
    reason = "sum of all uses of memory at the peak of a step"
    model = find_task(config.task.type).model_config(config, shape.vocabulary, shape.labels)
    layer_bytes, failure = measure_layer(model, shape, setup, longest_row_tokens(config, setup))
    if layer_bytes is None:
        reason += f"; a general formula estimates activations, because the activations of {shape.model_type} "
        reason += f"could not be counted: {failure}"
    return replace(setup, counted=layer_bytes), reason


def largest_micro_batch(
    shape: ModelShape, setup: TrainingSetup, config: ResolvedConfig, room: MemoryBudget, limit: int
) -> int:
    """Return the largest micro-batch of at most `limit` rows whose step fits in the free memory; 1 if none does."""
    budget = room.budget_bytes
    if budget is None:
        return limit
    count = bisect_left(range(1, limit + 1), True, key=lambda rows: needed_bytes(shape, setup, config, rows) > budget)
    return max(count, 1)


def longest_row_tokens(config: Config, setup: TrainingSetup) -> int:
    """Return the length of the longest row of a pass in tokens, limited to what the config allows now."""
    allowed_tokens = config.data.max_length * (setup.row_documents if setup.packed else 1)
    return min(allowed_tokens, setup.longest_row or config.data.max_length)


def pass_rows(setup: TrainingSetup, rows: int) -> int:
    """Return the rows of a pass over `rows` rows of the batch. Unpacked, each document has a row of its own."""
    return rows if setup.packed else rows * setup.row_documents


def most_passes(config: ResolvedConfig, setup: TrainingSetup, micro_batch: int) -> int:
    """Return the number of forward passes in the step with the most rows. With two or more, gradients are summed."""
    return -(-(setup.most_rows or step_rows(config)) // micro_batch)


def needed_bytes(shape: ModelShape, setup: TrainingSetup, config: ResolvedConfig, micro_batch: int) -> int:
    """Return the peak memory in bytes with `micro_batch` rows in each pass of training and evaluation."""
    return memory.total_bytes(parts_of_run(shape, setup, config, micro_batch, micro_batch))


def parts_of_run(
    shape: ModelShape, setup: TrainingSetup, config: ResolvedConfig, micro_batch: int, eval_batch: int
) -> tuple[MemoryPart, ...]:
    """Return the parts of the peak memory with these rows per pass, corrected by peaks that were measured here."""

    def label_count(rows: int, candidates: int) -> int:
        return most_labels(config, setup, pass_rows(setup, rows), pass_rows(setup, candidates))

    def parts_of(rows: int, eval_rows: int) -> tuple[MemoryPart, ...]:
        batch = BatchSizes(
            rows=pass_rows(setup, rows),
            eval_rows=pass_rows(setup, eval_rows),
            row_tokens=longest_row_tokens(config, setup),
            accumulation=most_passes(config, setup, rows),
            most_labels=label_count(rows, step_rows(config)),
            most_eval_labels=label_count(eval_rows, EVALUATION_WINDOW * eval_rows),
        )
        return memory.memory_parts(shape, setup, batch)

    parts = parts_of(micro_batch, eval_batch)
    measured_peak = nearest_peak(setup.measured_peaks, micro_batch, eval_batch)
    return correct_parts(parts, micro_batch, setup.device, measured_peak, parts_of) if measured_peak else parts


def most_labels(config: ResolvedConfig, setup: TrainingSetup, rows: int, candidate_rows: int) -> int:
    """Return the largest likely count of labels in a pass of `rows` out of `candidate_rows`; 0 if all may count."""
    token_sum, label_share = _most_tokens(config, setup, rows, candidate_rows), setup.label_share
    # Each document is assumed to be trained on as a whole or not at all, which spreads the counts most.
    documents = step_rows(config) / most_passes(config, setup, rows)
    label_share += _DEVIATIONS * math.sqrt(label_share * (1 - label_share) / documents)
    if label_share >= 1:
        return token_sum
    return math.ceil(label_share * (token_sum or rows * longest_row_tokens(config, setup)))


def _most_tokens(config: Config, setup: TrainingSetup, rows: int, candidate_rows: int) -> int:
    """Return the largest likely tokens in a pass of `rows` of the padded `candidate_rows`; 0 if rows are full.

    Lengths of documents are assumed to spread like an exponential distribution, within their mean and the longest. The
    longest share p of them is then at most mean + deviation x sqrt((1 - p) / p) long on average (Bhatia and Davis,
    Amer. Math. Monthly 107, 2000). If documents are sorted by length, all of a pass may be long.
    """
    mean_tokens, longest_tokens = setup.document_tokens, longest_row_tokens(config, setup)
    if not mean_tokens or mean_tokens >= longest_tokens or config.data.group_by_length is True:
        return 0
    token_deviation = min(mean_tokens, math.sqrt(mean_tokens * (longest_tokens - mean_tokens)))
    row_share = min(1.0, rows / candidate_rows)
    mean_longest = mean_tokens + token_deviation * math.sqrt((1 - row_share) / row_share)
    likely_most = rows * mean_longest + _DEVIATIONS * token_deviation * math.sqrt(rows)
    return min(rows * longest_tokens, math.ceil(max(likely_most, longest_tokens + (rows - 1) * mean_longest)))
