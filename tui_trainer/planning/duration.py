"""Estimate how long a run takes, before it starts.

The best available source is used: measured times of the same steps on this machine; the measured rate of the same model
with other rows; a known share of the rate of numpy's matmuls, which are timed for a moment, or of the GPU's rate in the
catalogue. There is no estimate for a GPU that is not in the catalogue.
"""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from typing import Self

from tui_trainer.config.fields import Auto
from tui_trainer.config.sections import ANSWERS_SHARE, ResolvedConfig
from tui_trainer.hardware.gpu_models import Card, Version, pcie_rate
from tui_trainer.methods.optimizers import OPTIMIZERS
from tui_trainer.models.modules import Linear, Reads
from tui_trainer.models.shape import ModelShape
from tui_trainer.models.writing import ANSWERS_AT_A_TIME
from tui_trainer.planning.batch_cut import longest_row
from tui_trainer.planning.measured_steps import Calibration, is_busy
from tui_trainer.planning.memory.parts import FP32_BYTES, Static
from tui_trainer.planning.planned import Planned, estimated, exact
from tui_trainer.planning.records import KINDS, MATMULS, TRIAL, Key, find_records, keep_record, records_of_device
from tui_trainer.planning.training_setup import TrainingSetup
from tui_trainer.runs.events import ComputeRates
from tui_trainer.runs.steps_and_eta import EVALUATION_SHARE
from tui_trainer.tasks.contract import DataFacts
from tui_trainer.units import format_bytes, format_percent, format_seconds, quantity

# A model of this width trains at half of numpy's rate of large matmuls, a wider one at more. Measured as CPU
# time on one core (AMD EPYC, torch 2.15): a share of 0.46 at width 128, 0.58 at 192, 0.65 at 256, 0.76 at 512; 0.44
# at 192 with dropout, 0.57 at 512 where 128 tokens make a step and the optimizer takes a part of it.
HALF_RATE_WIDTH = 150
# How much faster whole steps are in bf16 on a CPU that has it. On one core of an AMD EPYC with avx512_bf16 (torch 2.15)
# 0.8 times at width 64, 1.3 at 128, 1.5 at 256, 1.7 at 512, 1.9 at 768; on two cores with amx_bf16 0.5 at 128, 0.9 to
# 1.1 at 256, 1.2 to 1.4 at 512 (`tui-trainer --no-ui` with training.mixed_precision "no" and "bf16"). The
# constants give values in between: 0.9 at 128, 1.2 at 256, 1.5 at 512, 1.6 at 768.
BF16_GAIN, BF16_HALF_GAIN_WIDTH = 1.9, 140
# The share of a card's rate that training reaches. The constants give 0.37 at width 1536, 0.40 at 2048, 0.45 at 4096.
# Source: llm-foundry's benchmarking table on H100 (760M 0.349, 1.3B 0.418, 7B 0.464); TinyLlama on A100 reports 0.56
# at 2048, torchtitan 0.33 to 0.39 for 8B.
CARD_SHARE, CARD_HALF_SHARE_WIDTH = 0.52, 600
# How many times as long a step takes when each matmul unpacks its weight from 4 bits. Estimates: torchtune's README has
# 8B with 4096 tokens a pass on an RTX 4090 at 3,083 tokens/s with LoRA and 2,413 with QLoRA; on an H100, Surogate
# reports 10.2 and 9.4 thousand and Unsloth 8.9 and 8.2; torchtune 1.02 times for 3B on an A100.
UNPACKING_SLOWDOWN, UNPACKING_SLOWDOWN_ON_LARGE_GPUS = 1.28, 1.085
_LARGE_GPUS: tuple[Version, ...] = ((8, 0), (9, 0), (10, 0))
# Decomposing a matrix reaches this share of one core's fp32 matmul rate, by its smaller side: 0.27 at 128, 0.44 at 512.
# A second core gained nothing. CPU time on one core (AMD EPYC, torch 2.15), at 128, 512 and 1024: an SVD 0.25, 0.54,
# 0.57; a QR 0.15, 0.41, 0.48. Products with few columns reach half of it: 0.12 to 0.19, 0.27 to 0.35, 0.23 to 0.27.
DECOMPOSING_SHARE, DECOMPOSING_HALF_SHARE_WIDTH, NARROW_SHARE = 0.55, 130, 0.5
# The same share of a GPU's fp32 rate, estimated: pytorch's pull request 1373 has an SVD of 4160 x 4160 on a Titan X in
# 4.3 s, which is 0.04 to 0.07 of that GPU's rate; PiSSA's README has a fast SVD of 7B in "a few seconds".
DECOMPOSING_CARD_SHARE = 0.05

# Operations of a layer in a pass, forward and backward, and additional operations of an adapter on one matrix: fused
# with its layer, or computed by peft with dropout or DoRA. Counted by `python -m tests.benchmarks.roofline`: 969
# kernels in the 12 layers of BERT; with adapters on 7 matrices, 28 layers of Qwen3 have 81 kernels each in place of 46,
# with dropout 151.
OPERATIONS_OF_LAYER, OPERATIONS_OF_ADAPTER, OPERATIONS_OF_SEPARATE_ADAPTER = 80, 5, 15
# Seconds to start one operation, whatever it computes. Measured as the time that one more layer adds to a step that
# computes next to nothing: 0.93 ms for BERT and 0.92 ms for Llama, between 1 and 8 layers of width 16 with 8 tokens
# (CPU time on one core, AMD EPYC, torch 2.15). There numpy takes 0.39 us to start an addition. The CPU starts a GPU's
# operations as well, while the GPU computes; this was not measured on a GPU.
OPERATION_SECONDS, NUMPY_OPERATION_SECONDS = 11.5e-6, 0.39e-6
# A round figure for the rate of fp32 matmuls on one core.
CORE_FLOPS_PER_SECOND = 1e11


def offload_words(
    shape: ModelShape, setup: TrainingSetup, passes: int, capability: Version | None, without: float | None
) -> str:
    """Return a sentence on the cost of CPU offload: bytes over PCIe, the least time that copying them takes, and for
    comparison `without`, the seconds of the same step without offload.

    FSDP2 and ZeRO 3 copy each weight to the card for the forward and again for the backward pass, and its gradient back
    (`torch.distributed.fsdp.CPUOffloadPolicy`). ZeRO 2 copies gradients, and once per step the updated weights. The
    update on the CPU takes additional time.
    """
    static = Static(shape, replace(setup, cpu_offload=False))
    weight_bytes = static.weights().bytes - static.towers().bytes
    gradient_bytes = FP32_BYTES * setup.trained_parameters
    is_stage_2 = setup.zero_stage == 2
    bytes_to_gpu = static.weight_number_bytes * setup.trained_parameters if is_stage_2 else 2 * passes * weight_bytes
    copied = (bytes_to_gpu + passes * gradient_bytes) / setup.shards
    sentence = f"each step copies {format_bytes(copied)} to the GPU and back"
    if capability is None:
        return sentence
    rate, link = pcie_rate(capability)
    sentence += (
        f", which takes at least {format_seconds(copied / rate)} over {link} (estimated), plus the update on the CPU"
    )
    if without is None:
        return sentence
    return f"{sentence}; with the weights on the GPU a step takes about {format_seconds(without)}"


def training_share(hidden_size: int) -> float:
    """Return the share of numpy's rate of large matmuls that training on a CPU reaches at this hidden size."""
    return hidden_size / (hidden_size + HALF_RATE_WIDTH)


def training_flops(
    shape: ModelShape, setup: TrainingSetup, *, tokens: int, row_tokens: int, document_tokens: float | None = None
) -> float:
    """Return the floating-point operations of one step over `tokens` computed tokens.

    A token costs, for each weight in a matmul, 2 forward, 2 for the gradient of its input and, where it trains, 2 for
    its own; for attention 12 x heads x head size x row, not halved for the causal mask (PaLM, arXiv:2204.02311,
    appendix B). Checkpointing computes the layers forward twice. `document_tokens` is the length of a token's document,
    averaged over tokens (the sum of squares over the sum). Packed attention on a GPU computes only documents, not whole
    rows.
    """
    # Answer tokens for each input token, in the proportion of the longest rows.
    answer_share = setup.target_tokens / max(setup.longest_row or row_tokens, 1) if shape.decoder_layers else 0.0
    attended_tokens = document_tokens if document_tokens and setup.packed and setup.device == "cuda" else row_tokens
    score_count = shape.layers * attended_tokens + shape.decoder_layers * answer_share * (answer_share + 1) * row_tokens
    pair_products = score_count * shape.attention_heads * shape.head_size
    attention_flops, matrix_flops = 12.0 * pair_products, _matrix_flops(shape, setup, "source")
    if answer_share:
        matrix_flops += answer_share * _matrix_flops(shape, setup, "target")
    if setup.gradient_checkpointing:
        attention_flops += 4.0 * pair_products
    return tokens * (matrix_flops + attention_flops)


def recomputed_share(shape: ModelShape, setup: TrainingSetup, row_tokens: int) -> float:
    """Return the extra computation of checkpointing as a share, 0.33 for a third: the layers run forward twice, the
    head does not. The share is higher with adapters, because frozen weights need no gradients."""
    flops_with, flops_without = (
        training_flops(shape, replace(setup, gradient_checkpointing=is_on), tokens=1, row_tokens=row_tokens)
        for is_on in (True, False)
    )
    return flops_with / flops_without - 1


def checkpointing_cost(
    planned_share: float, seconds_with: float | None, seconds_without: float | None
) -> Planned[float]:
    """Return by how much checkpointing lengthens a step, as a share of the step. It is measured if the seconds of a
    step without and with checkpointing are both given; else it is `planned_share`, the share of repeated computation.
    """
    if seconds_with and seconds_without:
        return estimated(max(seconds_with / seconds_without - 1, 0.0), "measured here with and without checkpointing")
    return estimated(planned_share, "the forward pass of layers runs twice")


def _matrix_flops(shape: ModelShape, setup: TrainingSetup, reads: Reads) -> float:
    """Return the operations of matmuls for one input token, or for one answer token of an encoder-decoder."""
    parameters = shape.matrix_parameters_read(reads)
    kinds = (kind for kind in setup.adapted(shape) if kind.reads == reads)
    adapter_parameters = setup.lora_rank * sum(kind.count * kind.uses * (kind.inputs + kind.outputs) for kind in kinds)
    flops = 6.0 * parameters if setup.method == "full" else 4.0 * parameters + 6.0 * adapter_parameters
    if setup.freezes_layers:
        # Forward through all layers, backward through the last ones, and the gradients of the trained weights.
        backward_share = setup.backward_layers / max(shape.layers, 1)
        flops = 2.0 * parameters * (1 + min(backward_share, 1.0) + setup.trained_parameters / max(shape.parameters, 1))
    if setup.gradient_checkpointing:
        heads = (linear for linear in shape.linears if linear.is_head and linear.reads == reads)
        head_parameters = sum(linear.matrix_parameters for linear in heads)
        flops += 2.0 * (parameters - head_parameters + adapter_parameters)
    return flops


# If packing takes more than this many times the operations, it costs more than it saves. Measured for chat-scratch on a
# CPU: with rows of 2048 tokens (1.9 times the operations), 142 ms of CPU time a step packed and 66 ms grouped by
# length; with its own rows of 192 there is no difference.
MAX_PACKING_COST_FACTOR = 1.2


def packing_cost_factor(config: ResolvedConfig, facts: DataFacts, shape: ModelShape, setup: TrainingSetup) -> float:
    """Return the operations of packed rows with a mask, divided by those of unpacked rows without padding.

    With a mask, attention computes the scores of a whole packed row, most of them between documents.
    """
    # The typical length of a token's document is unknown, so the longest document stands for it.
    widths = (longest_row(config, facts, is_packed) for is_packed in (True, False))
    packed_flops, unpacked_flops = (training_flops(shape, setup, tokens=1, row_tokens=width) for width in widths)
    return packed_flops / unpacked_flops


def starting_seconds(shape: ModelShape, setup: TrainingSetup) -> float:
    """Return the launch overhead of one pass, forward and backward, in seconds.

    It is 0 for compiled layers, whose fewer operations were not counted.
    """
    if setup.compiled:
        return 0.0
    is_separate = setup.lora_dropout or setup.use_dora
    adapter_operations = OPERATIONS_OF_SEPARATE_ADAPTER if is_separate else OPERATIONS_OF_ADAPTER
    operation_count = (shape.layers + shape.decoder_layers) * OPERATIONS_OF_LAYER
    operation_count += adapter_operations * sum(layer.count * layer.uses for layer in setup.adapted(shape))
    return operation_count * _operation_seconds(setup)


def _operation_seconds(setup: TrainingSetup) -> float:
    """Return the seconds that starting one operation takes here."""
    slowdown = 1.0 if setup.device == "cuda" else _numpy_operation_seconds() / NUMPY_OPERATION_SECONDS
    return OPERATION_SECONDS * slowdown


def launch_tokens(shape: ModelShape, setup: TrainingSetup, threads: int, row_tokens: int) -> float:
    """Return how many tokens a CPU computes in the time that it takes to start one pass.

    No measured rate of this machine is used, so that a run always gets the same micro-batch.
    """
    seconds = (shape.layers + shape.decoder_layers) * OPERATIONS_OF_LAYER * OPERATION_SECONDS
    flops_per_second = threads * CORE_FLOPS_PER_SECOND * usual_share(shape.hidden_size, setup)
    return seconds * flops_per_second / training_flops(shape, setup, tokens=1, row_tokens=row_tokens)


# The usual length of a text sample, and the shortest that still shows something, for runs of a few seconds.
SAMPLE_TOKENS, _LEAST_SAMPLE_TOKENS, _SAMPLES_SHARE = 160, 32, 0.02
USUAL_SAMPLE_TOKENS: Planned[int] = exact(SAMPLE_TOKENS, "the usual length")


# Operations of a generated token outside of the layers: embedding, mask, positions, head, the choice of the token, and
# the longer cache. Measured as CPU time of a token on one busy core: 0.57 ms, and 0.39 ms for each layer, for Llama;
# 0.95 and 0.34 ms for GPT-2. If a layer has a third of OPERATIONS_OF_LAYER, these are 39 and 74 operations.
OPERATIONS_OF_TOKEN = 45


def generated_token_seconds(shape: ModelShape, setup: TrainingSetup) -> float:
    """Return the seconds in which a token of a text is generated, which is mostly launch overhead."""
    launch_seconds = EVALUATION_SHARE * starting_seconds(shape, replace(setup, compiled=False))
    return launch_seconds + OPERATIONS_OF_TOKEN * _operation_seconds(setup)


def sample_tokens(training_seconds: float | None, samples: int, token_seconds: float) -> Planned[int]:
    """Return the length of each text sample in tokens. All samples together take a small share of the training time."""
    if training_seconds and samples and token_seconds:
        affordable_tokens = round(_SAMPLES_SHARE * training_seconds / samples / token_seconds)
        if affordable_tokens < SAMPLE_TOKENS:
            reason = f"shortened so that {samples} samples take {_SAMPLES_SHARE:.0%} of the time"
            return estimated(max(_LEAST_SAMPLE_TOKENS, affordable_tokens), reason)
    return USUAL_SAMPLE_TOKENS


# A round figure for the rate at which one core reads weights from host memory, in bytes per second.
_HOST_MEMORY_RATE = 1e10


def answer_seconds(shape: ModelShape, setup: TrainingSetup, card: Card | None, rows: int, new_tokens: int) -> float:
    """Return the seconds in which `rows` answers of `new_tokens` tokens are generated: for each token of a batch a
    forward pass, which reads all weights."""
    memory_rate = 1e9 * card.gigabytes_per_second if card else _HOST_MEMORY_RATE
    read_seconds = Static(shape, setup).weights().bytes / memory_rate
    batches = -(-rows // ANSWERS_AT_A_TIME)
    return batches * new_tokens * (generated_token_seconds(shape, setup) + read_seconds)


def answers_interval(
    rows: int | Auto, training_seconds: float | None, evaluations: int, seconds: float
) -> tuple[int, str]:
    """Return (n, its reason): every nth evaluation and the last one generate answers, which take `seconds`. With `rows`
    = "auto" they take a small share of the training time, and otherwise n is 1."""
    interval, share_words = 1, ""
    if rows == "auto" and training_seconds:
        budget_seconds = ANSWERS_SHARE * training_seconds
        interval = min(max(1, math.ceil(evaluations * seconds / budget_seconds)), max(evaluations, 1))
        share = seconds * answer_rounds(evaluations, interval) / training_seconds
        share_words = f", {share:.1%} of the time"
    when = "at each evaluation" if interval == 1 else f"at one of {interval} evaluations, and at the last"
    return interval, f"{when}; answers take about {format_seconds(seconds)}{share_words}"


def answer_rounds(evaluations: int, interval: int) -> int:
    """Return how many of the evaluations generate answers: every `interval`th, and the last one."""
    return -(-evaluations // interval)


@cache
def _numpy_operation_seconds() -> float:
    """Time one small numpy operation, in seconds, as the shortest of ten timings: other programs only slow it down."""
    import numpy as np

    zeros = np.zeros(8, dtype=np.float32)

    def mean_seconds(times: int = 1_000) -> float:
        started_at = time.perf_counter()
        for _ in range(times):
            np.add(zeros, zeros, zeros)
        return (time.perf_counter() - started_at) / times

    return min(mean_seconds() for _ in range(10))


def step_time(
    flops: float,
    hidden_size: int,
    calibration: Calibration,
    setup: TrainingSetup | None = None,
    card: Card | None = None,
    device: str = "",
    *,
    starts: float = 0.0,
) -> Planned[float | None]:
    """Return the seconds of a step of `flops` floating-point operations on this machine, and the source of the figure.

    The seconds are None if only a measured step can give them. `starts` is the launch overhead in seconds. On a CPU it
    adds to the computing time; with a GPU, the CPU spends it while the GPU computes."""
    setup = setup or TrainingSetup()
    if calibration.step_seconds is not None:
        return estimated(calibration.step_seconds, f"measured here, {_runs(calibration, 'the same steps')}")
    if calibration.flops_per_second is not None:
        flops_per_second, runs_text = calibration.flops_per_second, _runs(calibration, "this model with other rows")
        return estimated(flops / flops_per_second, f"{runs_text} here ({flops_per_second / 1e9:.0f} GFLOP/s)")
    if setup.cpu_offload:
        return estimated(None, "weights are on the host, and the transfer speed is unknown: measure a step")
    if setup.device == "cuda":
        return _on_card(flops, hidden_size, setup, card, starts)
    return _on_cpu(flops, hidden_size, setup, device, starts)


def _runs(calibration: Calibration, steps: str) -> str:
    busy_text = " while other programs kept the machine busy" if calibration.load else ""
    return f"from {quantity(calibration.runs, 'measured run')} of {steps}{busy_text}"


def busy_words(load: float | None, cores: int, threads: int, measured_load: float = 0.0) -> str:
    """Return a clause about how other programs change the planned time; empty without an effect or a known load.

    `load` counts runnable tasks of other programs now. The planned time already includes `measured_load`, the load
    while its steps were measured."""
    if load is None:
        return ""
    slowdown = max(1.0, (threads + load) / cores) / max(1.0, (threads + measured_load) / cores)
    # Two readings of a steady load may differ by a half.
    least_slowdown = 1.5 if measured_load else 1.05
    if slowdown * least_slowdown < 1:
        return (
            f"the steps were measured while other programs kept the cores busy (load {measured_load:.1f}); "
            f"the load is {load:.1f} now, so the run should take about {format_percent(slowdown)} of the planned time"
        )
    if not is_busy(load, threads):
        return ""
    consequence = f"expect about {round(slowdown, int(slowdown < 3)):g} times longer while they run"
    if slowdown <= least_slowdown:
        consequence = "the measured steps include this" if measured_load else "enough cores remain for this run"
    return f"other programs keep the cores busy (load {load:.1f}); {consequence}"


def _on_cpu(flops: float, hidden_size: int, setup: TrainingSetup, device: str, starts: float) -> Planned[float | None]:
    flops_per_second, used_share = _fastest_rate(device), training_share(hidden_size)
    reason = f"numpy matmuls reach {flops_per_second / 1e9:.0f} GFLOP/s here; {_share_words(used_share)}"
    if setup.precision != "fp32":
        reason = f"{reason}; bf16 is {bf16_gain(hidden_size):.1f} times as fast as fp32"
    if starts:
        reason += f"; {format_seconds(starts)} of the step is launch overhead"
    return estimated(flops / (flops_per_second * usual_share(hidden_size, setup)) + starts, reason)


def _share_words(share: float) -> str:
    return f"training at this hidden size reaches about {share:.0%} of that"


def usual_share(hidden_size: int, setup: TrainingSetup) -> float:
    """Return the share of the full rate that training reaches at this hidden size. The full rate is the maker's on a
    GPU, and that of numpy's fp32 matmuls on a CPU. The constants above give the measurements."""
    if setup.device == "cuda":
        return CARD_SHARE * hidden_size / (hidden_size + CARD_HALF_SHARE_WIDTH)
    fp32_share = training_share(hidden_size)
    return fp32_share if setup.precision == "fp32" else fp32_share * bf16_gain(hidden_size)


def unpacking_slowdown(capability: Version | None) -> float:
    """Return the factor by which 4-bit weights make a step longer on a GPU of this compute capability."""
    return UNPACKING_SLOWDOWN_ON_LARGE_GPUS if capability in _LARGE_GPUS else UNPACKING_SLOWDOWN


def compute_rates(
    row_flops: float,
    shape: ModelShape,
    setup: TrainingSetup,
    *,
    device: str,
    processes: int = 1,
    card: Card | None = None,
    tried_on: str = "",
) -> ComputeRates:
    """Return the rates to which the speed of one process is compared; `processes` share the cores of a CPU. The rates
    of matmuls that plans measured are read under `device` (`device_key`), those of trials under `tried_on`
    (`trial_device`)."""
    used_share, launch_seconds = usual_share(shape.hidden_size, setup), starting_seconds(shape, setup)
    if setup.device != "cuda":
        cpu_rate = max(_kept_rates(device), default=0.0) or _fastest_rate(device)
        measured_of = "fp32 matmuls"
        return ComputeRates(
            row_flops=row_flops, usual_share=used_share, starting_seconds=launch_seconds,
            measured=cpu_rate / processes, measured_of=measured_of,
        )  # fmt: skip
    if setup.four_bits:
        used_share /= unpacking_slowdown(card.capability if card else None)
    number_type = "tf32" if (setup.precision, setup.tf32) == ("fp32", True) else setup.precision
    tried = [record.figures.get("precisions", {}).get(number_type, {}) for record in records_of_device(TRIAL, tried_on)]
    measured_teraflops = tried[-1].get("teraflops") if tried else None
    makers_rate = card_flops_per_second(card, setup) if card else None
    return ComputeRates(
        row_flops=row_flops,
        usual_share=used_share,
        starting_seconds=launch_seconds,
        measured=1e12 * measured_teraflops if measured_teraflops else None,
        measured_of=f"{number_type} matmuls",
        maker=makers_rate,
        maker_source=f"{card.title} ({card.source})" if card and makers_rate else "",
    )


def _fastest_rate(device: str) -> float:
    """Return the fastest rate of fp32 matmuls that recent processes have measured on this machine, this one included.

    Other programs only slow matmuls down, and a plan should not change with their load.
    """
    current_rate = matrix_flops_per_second()
    if not device:
        return current_rate
    all_rates = _kept_rates(device)
    if current_rate not in all_rates:  # once in a process: it is not measured again
        keep_record(MATMULS, _matmuls_key(device), {"flops_per_second": current_rate})
        all_rates = [*all_rates, current_rate][-KINDS[MATMULS] :]
    return max(all_rates)


def _kept_rates(device: str) -> list[float]:
    return [
        rate
        for record in find_records(MATMULS, _matmuls_key(device))
        if isinstance(rate := record.figures.get("flops_per_second"), float) and 0 < rate < math.inf
    ]


def _matmuls_key(device: str) -> Key:
    return Key(device=device, versions=f"numpy {version('numpy')}")


def bf16_gain(hidden_size: int) -> float:
    """Return how many times as fast as an fp32 step a bf16 step is, on a CPU with native bf16 (see `BF16_GAIN`)."""
    return BF16_GAIN * hidden_size / (hidden_size + BF16_HALF_GAIN_WIDTH)


def _on_card(
    flops: float, hidden_size: int, setup: TrainingSetup, card: Card | None, starts: float
) -> Planned[float | None]:
    card_rate = card_flops_per_second(card, setup) if card else None
    if card is None or card_rate is None:
        missing = f"has no {setup.precision} rate for this GPU" if card else "does not contain this GPU"
        return estimated(None, f"the catalogue {missing}: measure one step first")
    used_share = CARD_SHARE * hidden_size / (hidden_size + CARD_HALF_SHARE_WIDTH)
    reason = f"{card.title}: {card_rate / 1e12:.0f} TFLOP/s ({card.source}); {_share_words(used_share)}"
    compute_seconds = flops / (card_rate * used_share)
    if setup.four_bits:
        unpacking_factor = unpacking_slowdown(card.capability)
        reason += f"; unpacking 4-bit weights makes steps about {unpacking_factor} times as long (estimated)"
        compute_seconds *= unpacking_factor
    if starts > compute_seconds:
        reason = f"launch overhead takes longer than computing ({format_seconds(compute_seconds)}; {reason})"
    return estimated(max(compute_seconds, starts), reason)


@dataclass(frozen=True, slots=True)
class Decomposition:
    """Cost of decomposing each adapted weight before the first step, to initialize adapters; `how` names the kind.

    For m x n with the smaller side n, an SVD with both its matrices takes 6 m n^2 + 20 n^3 operations, and a QR with Q
    4 m n^2 - 4/3 n^3 (Golub and Van Loan, Matrix Computations, 4th edition, sections 8.6.3 and 5.2). A fast SVD
    (`torch.svd_lowrank`) takes two products with r columns for each iteration.
    """

    how: str
    count: int
    operations: float
    fp32_matmuls: float
    """Operations of fp32 matmuls that take one core as long as the decomposition."""

    @classmethod
    def of(cls, init: str, r: int, layers: Iterable[Linear]) -> Self:
        """Return the cost of the decompositions that `tuning.init_lora_weights = init` needs for these layers."""
        iterations = init.removeprefix("pissa_niter_")
        method_text = "a QR" if init == "olora" else "a fast SVD" if iterations.isdigit() else "an SVD"
        matrix_count, operations, matmuls = 0, 0.0, 0.0
        for layer in layers:
            m, n = max(layer.inputs, layer.outputs), min(layer.inputs, layer.outputs)
            share = DECOMPOSING_SHARE * n / (n + DECOMPOSING_HALF_SHARE_WIDTH)
            if iterations.isdigit():
                flops = 4.0 * m * n * r * (int(iterations) + 1)
                share *= NARROW_SHARE
            else:
                flops = 4.0 * m * n**2 - 4 / 3 * n**3 if init == "olora" else 6.0 * m * n**2 + 20.0 * n**3
            matrix_count, operations = matrix_count + layer.count, operations + layer.count * flops
            matmuls += layer.count * flops / share
        return cls(method_text, matrix_count, operations, matmuls)

    def seconds(self, card: Card | None, *, on_card: bool) -> Planned[float | None]:
        """Return how many seconds a process takes for the decomposition, and the source of the figure."""
        work_text = f"{self.how} of each of {self.count:,} matrices before the first step"
        if not on_card:
            flops_per_second, share = core_flops_per_second(), self.operations / self.fp32_matmuls
            speed_text = f"about {share:.0%} of the {flops_per_second / 1e9:.0f} GFLOP/s of matmuls on one core here"
            return estimated(self.fp32_matmuls / flops_per_second, f"{work_text}, at {speed_text}")
        if card is None or card.teraflops.fp32 is None:
            return estimated(None, f"{work_text}; its speed on this GPU is unknown")
        flops_per_second = DECOMPOSING_CARD_SHARE * card.teraflops.fp32 * 1e12
        speed_text = f"about {DECOMPOSING_CARD_SHARE:.0%} of {card.title}'s fp32 rate (an estimate)"
        return estimated(self.operations / flops_per_second, f"{work_text}, at {speed_text}")


def roofline_seconds(
    flops: float, passes: int, shape: ModelShape, setup: TrainingSetup, card: Card | None
) -> float | None:
    """Return the seconds of a step by the manufacturer's rates alone, to compare two batches; None without a rate.

    A pass takes the longest of three times: computing, reading the weights three times, and starting its operations.
    Then the optimizer reads and writes weights, gradients and its state.
    """
    flops_rate = card_flops_per_second(card, setup) if card else None
    if card is None or flops_rate is None or setup.cpu_offload:
        return None
    memory_rate = 1e9 * card.gigabytes_per_second
    used_share = CARD_SHARE * shape.hidden_size / (shape.hidden_size + CARD_HALF_SHARE_WIDTH)
    weight_bytes = shape.parameters * (2 if setup.precision != "fp32" else 4) / setup.shards
    pass_seconds = max(
        flops / passes / (flops_rate * used_share), 3 * weight_bytes / memory_rate, starting_seconds(shape, setup)
    )
    update_bytes = setup.trained_parameters / setup.shards * (12 + 2 * OPTIMIZERS[setup.optim].state_bytes)
    return passes * pass_seconds + update_bytes / memory_rate


def card_flops_per_second(card: Card, setup: TrainingSetup) -> float | None:
    """Return the maker's rate for the matmuls of this setup, per second; fp32 ones run as TF32 if that is allowed."""
    makers_rates = card.teraflops
    fp32_teraflops = makers_rates.tf32 if setup.tf32 and makers_rates.tf32 else makers_rates.fp32
    teraflops = {"fp32": fp32_teraflops, "bf16": makers_rates.bf16, "fp16": makers_rates.fp16}[setup.precision]
    return None if teraflops is None else teraflops * 1e12


@cache
def matrix_flops_per_second(size: int = 512, at_least_seconds: float = 0.05, at_least_times: int = 8) -> float:
    """Return the rate of fp32 matmuls, in operations per second: the best of several runs on all cores and on one core.

    One core may win: if another program uses one of two cores, waiting threads reach a 20th of their usual rate.
    """
    all_cores_rate = 2.0 * size**3 / _best_seconds(size, at_least_seconds, at_least_times)
    return max(all_cores_rate, core_flops_per_second(size, at_least_seconds, at_least_times))


@cache
def core_flops_per_second(size: int = 512, at_least_seconds: float = 0.05, at_least_times: int = 8) -> float:
    """Return the measured rate of fp32 matmuls on one core, in operations per second."""
    from threadpoolctl import ThreadpoolController

    # Only numpy's own library is limited, so that a run in this process keeps its threads.
    with ThreadpoolController().select(internal_api="openblas").limit(limits=1):
        return 2.0 * size**3 / _best_seconds(size, at_least_seconds, at_least_times)


def _best_seconds(size: int, at_least_seconds: float, at_least_times: int) -> float:
    import numpy as np

    matrix = np.ones((size, size), dtype=np.float32)
    matrix @ matrix
    seconds: list[float] = []
    while sum(seconds) < at_least_seconds or len(seconds) < at_least_times:
        started_at = time.perf_counter()
        matrix @ matrix
        seconds.append(time.perf_counter() - started_at)
    return min(seconds)
