"""Build the components of a run: model, loss, optimizer, schedule, precision and batches."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor, nn

from tui_trainer.config.sections import is_known_attention
from tui_trainer.data.batching.row_order import RowOrder
from tui_trainer.data.preparing.token_rows import Rows
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.hardware.gpu_models import FLASH_KERNELS
from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.losses.named_losses import LossSum
from tui_trainer.losses.next_token import NextTokenLoss
from tui_trainer.losses.router_loss import RouterLoss
from tui_trainer.methods.lr_schedules import LR_SCHEDULES, LrCurve
from tui_trainer.models import unsloth
from tui_trainer.models.adapters import should_continue_adapter, starting_adapter
from tui_trainer.models.loading import load_adapter
from tui_trainer.models.towers import mask_by_positions, move_to_device
from tui_trainer.models.writing import pad_token_id
from tui_trainer.planning.attention import BY_LENGTHS
from tui_trainer.planning.fused_kernels import Kernels, unfused_adapters_reason
from tui_trainer.planning.processes import SPLITTING, ZERO_STAGES
from tui_trainer.runs.events import PACKED_WITH_MASK
from tui_trainer.tasks import find_task
from tui_trainer.training import varlen
from tui_trainer.training.batches import Batches, Layout, Prefetcher, micro_batches_of_rows
from tui_trainer.training.clock import Clock, Communication
from tui_trainer.training.collectives import Collectives
from tui_trainer.training.compiled import compile_layers, decoder_layers
from tui_trainer.training.fused_kernels import check_attention, fuse_adapters, use_kernels
from tui_trainer.training.fused_lora import FusedAdapters
from tui_trainer.training.job import Job, ReportProblem, StartMeter
from tui_trainer.training.optimizer import RunOptimizer, round_weights
from tui_trainer.training.precision import MixedPrecision, keep_rotary_exact
from tui_trainer.training.probes import packing_difference
from tui_trainer.training.process import device_of, reason_to_fall_back
from tui_trainer.training.ranks import SINGLE_PROCESS, Ranks
from tui_trainer.training.replicas import Replicas
from tui_trainer.training.sharded import Sharded
from tui_trainer.training.step import StepReport, take_step
from tui_trainer.training.zero import Zero, ZeroOptimizer
from tui_trainer.tuning import method_of
from tui_trainer.tuning.adapter_init import InitialAdapters, initial_adapters_of
from tui_trainer.tuning.full import SplitTensor
from tui_trainer.units import format_seconds

# The model of a run is built, checked, given its adapters, and placed on its device.


def build_model(
    job: Job,
    tokenizer: Any,
    device: torch.device,
    report: ReportProblem,
    ranks: Ranks = SINGLE_PROCESS,
    meter: StartMeter | None = None,
) -> Any:
    """Return the model of a run on its device, in training mode. Raises ConfigError if it does not fit the plan.

    All processes of a run get the same weights, but different seeds for later random numbers.
    """
    plan = job.plan
    config = plan.config
    torch.manual_seed(config.training.seed)
    dtype = getattr(torch, plan.weights_dtype.value)
    task = find_task(config.task.type)
    has_masters = config.tuning.method == "full" and dtype != torch.float32 and ranks.host_group is None
    is_stored = not (config.is_from_scratch or unsloth.is_asked(config))
    # With fp32 masters, stored weights are loaded in fp32, and rounded only after the masters have got their values.
    is_rounded = has_masters and is_stored and task.model_shape(config, 0).stored_dtype != plan.weights_dtype.value
    hint = "this is expected for a new task, which trains the new weights on your data"
    built = torch.float32 if is_rounded else dtype
    model = task.build_model(config, job.data, tokenizer, built, device, lambda text: report("new weights", text, hint))
    refuse_poisoned(model, config.model.model_name_or_path)
    if unsloth.is_asked(config):
        # Unsloth checkpoints activations in its own way.
        adapted: Any = unsloth.adapt(model, config) if config.tuning.has_adapter else model
    else:
        adapted = method_of(config.tuning).apply(
            model,
            config.tuning,
            seed=config.training.seed,
            autocast=plan.precision.value != "fp32",
            token_ids=task.trained_token_ids(config),
        )
        adapter = starting_adapter(config, task.head)
        if adapter and should_continue_adapter(config.tuning):
            load_adapter(adapted, adapter.folder)
        if not job.checkpoint and (initial_adapters := initial_adapters_of(adapted)) is not None:
            _decompose(initial_adapters, config.tuning.init_lora_weights, report, ranks, meter)
        if config.training.gradient_checkpointing:
            checkpoint_activations(adapted)
    mask_by_positions(adapted)
    if alpha := config.training.neftune_noise_alpha:
        add_noise(adapted, alpha)
    move_to_device(adapted, device, towers_on_host=plan.training_setup.towers_on_host)
    if is_rounded:
        round_weights(adapted, dtype)
    adapted.train()
    # Later random numbers (dropout) depend on the seed alone, not on how the model was made.
    torch.manual_seed(config.training.seed + ranks.rank)
    return adapted


def _decompose(
    adapters: InitialAdapters, init: str, report: ReportProblem, ranks: Ranks, meter: StartMeter | None
) -> None:
    """Compute initial adapters by decomposing weights, for a run that is not resumed.

    A stop interrupts the decomposition only in a run of one process: several processes must start with equal adapters.
    """
    started_at, matrix_count = perf_counter(), len(adapters)
    go_on = meter(f"decomposing weights for {init}", matrix_count, "matrices") if meter else None
    if adapters.decompose(init, lambda done: go_on is None or go_on(done) or ranks.world_size > 1):
        message = f"{init} decomposed {matrix_count} matrices in {format_seconds(perf_counter() - started_at)}"
        report("weights decomposed", message, "this time is not counted in any step")


def add_noise(model: Any, alpha: float) -> None:
    """Make transformers add noise to the input embeddings in training mode: NEFTune (arXiv:2310.05914)."""
    from transformers.integrations.neftune import neftune_post_forward_hook

    base_model = model.get_base_model() if hasattr(model, "get_base_model") else model
    # An encoder has an embedding of its own. Hooks on the whole model's embedding would never be called.
    embedder = base_model.get_encoder() if base_model.config.is_encoder_decoder else base_model
    embeddings = embedder.get_input_embeddings()
    embeddings.neftune_noise_alpha = alpha
    embeddings.register_forward_hook(neftune_post_forward_hook)


def _report_unsloth(model: nn.Module, report: ReportProblem) -> None:
    """Report whether Unsloth has put its kernels into the model, because it silently skips modules it does not know."""
    patched_count, module_count = unsloth.count_patched_modules(model)
    sentence = f"Unsloth computes {patched_count} of the {module_count} modules of this model"
    if patched_count:
        report(unsloth.KERNELS_IN_MODEL, sentence, "the other modules use torch and transformers")
    else:
        hint = f"the run is no faster than with {unsloth.PROVIDER} = transformers"
        report(unsloth.KERNELS_MISSING, sentence, hint)


def refuse_poisoned(model: nn.Module, name: str) -> None:
    """Raise ConfigError for the first tensor that contains a number which is not finite."""
    for tensor_name, tensor in model.named_parameters():
        if not tensor.numel() or not tensor.is_floating_point():
            continue
        # Both are NaN if any number is NaN, and unlike `isfinite` this allocates nothing as large as the tensor.
        smallest, largest = torch.aminmax(tensor.detach())
        if not (torch.isfinite(smallest) & torch.isfinite(largest)):
            bad_count = int((~torch.isfinite(tensor)).sum())
            message = f"{tensor_name} contains {bad_count:,} values that are not finite"
            hint = "the weights file is damaged, or the model diverged in training: use another copy"
            raise ConfigError(Problem(message=message, where=name, key="model.model_name_or_path", hint=hint))


def checkpoint_activations(model: Any) -> None:
    """Switch on activation checkpointing: layers save only their inputs, and the backward pass computes the rest again.

    transformers 5.2x renames the method that does this. Raises ConfigError for a model without it (ALBERT, MPNet).
    """
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    try:
        enable({"use_reentrant": False})
    except ValueError:
        message = f"{model.config.model_type} does not support gradient checkpointing"
        problem = Problem(message=message, key="training.gradient_checkpointing", hint="set it to false")
        raise ConfigError(problem) from None


class Components:
    """Model, loss, optimizer, precision and batches of a plan."""

    def __init__(
        self, job: Job, report: ReportProblem, ranks: Ranks = SINGLE_PROCESS, meter: StartMeter | None = None
    ) -> None:
        """Build all components. Raises ConfigError if the model does not fit the plan, RunError if processes differ."""
        self.ranks = ranks
        self.plan = plan = job.plan
        self.config = config = plan.config
        self.data = job.data
        self.task = task = find_task(config.task.type)
        self.method = method_of(config.tuning)
        self.device = device_of(plan)
        self.clock = Clock(self.device)
        self.mixed_precision = MixedPrecision(plan.precision.value, self.device)
        self.tokenizer = task.load_tokenizer(config, job.data)
        # With weights on the host, even a run of one process has a process group.
        strategy = plan.strategy.value if ranks.host_group is not None else "ddp"
        stage = ZERO_STAGES.get(strategy, 0)
        # A model that does not fit on one GPU is built on the host, and moved to the GPUs part by part.
        build_device = torch.device("cpu") if strategy not in ("ddp", "deepspeed-2") else self.device
        self.model: Any = build_model(job, self.tokenizer, build_device, report, ranks, meter)
        if self.device.type == "cuda" and not self.mixed_precision.is_coarse:
            keep_rotary_exact(self.model)
        if unsloth.is_asked(config):
            _report_unsloth(self.model, report)
        self.adapters = FusedAdapters(self.model, self.mixed_precision)
        if not unfused_adapters_reason(config, strategy):
            fuse_adapters(self.adapters, report)
        if strategy in (*SPLITTING, "deepspeed-3"):
            self._keep_layers(report)
        self.loss = task.objective(config, job.data, self.model, chunk_tokens=plan.loss_chunk_tokens.value)
        # Evaluations use `loss`.
        self.trained_loss: LossSum = self.loss
        if (coefficient := plan.router_aux_loss_coef) and coefficient.value and isinstance(self.loss, NextTokenLoss):
            self.trained_loss = RouterLoss(self.loss, self.model, coefficient.value)
        communication = Communication(self.clock)
        self.collectives: Collectives = self._split(strategy, communication)
        if stage:
            zero = ZeroOptimizer(self.model, config.training, lr=plan.learning_rate.value)
            self.optimizer: RunOptimizer = zero
            layers = decoder_layers(self.model)
            split_by_zero = partial(Zero, self.device, self.model, self.trained_loss, zero, plan, layers, communication)
        if stage == 3:
            self.collectives = split_by_zero()
            if isinstance(self.loss, NextTokenLoss):
                # DeepSpeed prefetches, in all processes, the weights that the previous pass has used.
                self.loss.always_in_chunks = True
        rows = Rows(job.data.train_path)
        self.row_pass = task.row_pass(config, job.data, self.loss)
        if self.row_pass:
            # Placeholders for trial passes. `row_values.py` computes the real values later.
            rows.row_values = np.zeros((len(rows), self.row_pass.width), dtype=np.float32)
        size_costs = plan.training_setup.compiles_each_size
        layout = partial(
            Layout,
            collate=task.collate_in_run(config, self.model, self.pad_id, plan.longest_row, size_costs=size_costs),
            collate_packed=task.collate_packed_in_run(self.pad_id, plan.longest_row, size_costs=size_costs),
        )
        self.kernels = self._use_kernels(layout, rows, report)
        packed_width, by_lengths = self._probe_packing(rows, report)
        packed_width = packed_width and (plan.packed_width or packed_width)
        fixed_width = plan.longest_row if config.training.torch_compile else 0
        layout = partial(layout, packed_width=packed_width, by_lengths=by_lengths, fixed_width=fixed_width)
        self.eval_layout = layout(rows_per_pass=plan.per_device_eval_batch_size.value)
        step_rows, seed, is_grouped = plan.effective_batch_size.value, config.training.seed, config.data.group_by_length
        order = RowOrder(rows.lengths, effective_batch=step_rows, seed=seed, group_by_length=is_grouped is True)
        self.batches = Batches(rows, layout(rows_per_pass=plan.per_device_train_batch_size.value), order, ranks)
        if ranks.world_size > 1:
            self._require_same(job)
        if not stage:
            peak_rate, ratio = plan.learning_rate.value, config.tuning.loraplus_lr_ratio
            self.optimizer = RunOptimizer(self.model, config.training, lr=peak_rate, loraplus_lr_ratio=ratio)
        self.learning_rate = LR_SCHEDULES[config.training.lr_scheduler_type].learning_rate(
            LrCurve(
                peak=plan.learning_rate.value,
                warmup_steps=plan.warmup_steps.value,
                total_steps=plan.total_steps.value,
                decay_steps=plan.decay_steps.value if plan.decay_steps else 0,
                decay_type=config.training.decay_type,
                min_lr_rate=config.training.min_lr_rate,
            )
        )
        self._check_chunks(rows, report)
        self._compile_optimizer(report)
        if config.training.torch_compile and not compile_layers(self, report):
            # Rows have any width if layers are not compiled, and cuDNN would build a plan for each width.
            torch.backends.cuda.enable_cudnn_sdp(False)
            self.eval_layout = replace(self.eval_layout, fixed_width=0)
            self.batches.layout = replace(self.batches.layout, fixed_width=0)
        if stage == 2:
            self.collectives = split_by_zero()
        elif ranks.world_size > 1 and strategy == "ddp":
            self.collectives = Replicas(self.model, self.trained_loss, self.optimizer, communication)
        self._prefetcher = self._make_prefetcher()

    def _keep_layers(self, report: ReportProblem) -> None:
        """Switch off layerdrop. All processes gather each layer together, so none may skip one."""
        dropping_modules = [module for module in self.model.modules() if getattr(module, "layerdrop", 0)]
        for module in dropping_modules:
            module.layerdrop = 0.0
        if dropping_modules:
            message = "layers that the model would skip at random (layerdrop) are all computed"
            report("layers kept", message, "all processes must gather each layer of a sharded model together")

    def _split(self, strategy: str, communication: Communication) -> Collectives:
        """Shard the model if the strategy uses FSDP2, and return its collectives. DeepSpeed shards the model later."""
        plan, ranks = self.plan, self.ranks
        if strategy not in SPLITTING:
            return Collectives()
        layers, copy_count = decoder_layers(self.model), plan.nodes if strategy == "hsdp" else 1
        return Sharded(
            ranks,
            self.device,
            self.model,
            layers,
            self.mixed_precision,
            communication,
            copy_count,
            offloads=plan.cpu_offload.value,
            towers_on_host=plan.training_setup.towers_on_host,
        )

    @property
    def pad_id(self) -> int:
        return pad_token_id(self.tokenizer)

    def micro_batches_of(self, step: int) -> list[MicroBatch]:
        """Return the micro-batches of an optimizer step, on the device of the run."""
        window = (self._prefetcher or self.batches).micro_batches_of(step)
        return [batch.to(self.device) for batch in window]

    def take_step(self, step: int, fetch: Callable[[], Sequence[MicroBatch]]) -> StepReport:
        """Train on the batch that `fetch` returns, with the learning rate of `step`."""
        # The weights change at the end of the step, after its last pass.
        with self.adapters.copies():
            return take_step(
                fetch,
                self.trained_loss,
                self.optimizer,
                self.mixed_precision,
                self.clock,
                lr=self.learning_rate(step),
                max_grad_norm=self.config.training.max_grad_norm,
                ranks=self.ranks,
                collectives=self.collectives,
            )

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Return a context for forward passes without a backward pass: evaluations and text samples."""
        with self.collectives.evaluation_context(), self.mixed_precision.autocast(), self.adapters.copies():
            yield

    def weights(self) -> dict[str, Tensor | SplitTensor]:
        """Return the tensors of the model that a checkpoint contains, keyed by name."""
        return self.collectives.weights(self.method, self.model)

    def _require_same(self, job: Job) -> None:
        layout = self.batches.layout
        self.ranks.require_same(
            {
                "the versions": job.versions,
                "the data": job.data.fingerprint,
                "the kernels": (self.kernels, bool(self.adapters.layers)),
                "packing": (layout.packed_width, layout.by_lengths),
                "trained weights": [tuple(p.shape) for p in self.model.parameters() if p.requires_grad],
                # Each process decomposes weights by itself, and another GPU may choose other signs.
                "initial adapters": self._initial_adapters(),
            }
        )

    def _initial_adapters(self) -> str:
        """Return a hash of adapters that were initialized by decomposing weights; empty for other adapters."""
        if not self.config.tuning.mutates_weights:
            return ""
        digest = xxhash.xxh3_128()
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                digest.update(parameter.detach().cpu().float().contiguous().numpy())
        return digest.hexdigest()

    def set_layout(self, layout: Layout) -> None:
        """Use another layout for all later steps. Prefetched batches are discarded."""
        self.batches.layout = layout
        if self._prefetcher:
            self._prefetcher.forget()

    def discard_step(self) -> None:
        """Undo a step that has not finished. The caller restores the random generators."""
        self.optimizer.discard_step()
        self.mixed_precision.discard_step()

    def close(self) -> None:
        """Stop the threads that prepare batches, and free DeepSpeed's memory."""
        if self._prefetcher:
            self._prefetcher.close()
        self.collectives.close()

    def _use_kernels(self, layout: Callable[..., Layout], rows: Rows, report: ReportProblem) -> Kernels:
        """Switch on library kernels that agree with the model's own operations, and return the fused kernels in use."""
        kernels = self.plan.kernels.value
        attention = self.config.model.attn_implementation
        library_attends = attention in FLASH_KERNELS or not is_known_attention(attention)
        if kernels == "none" and not library_attends:
            return kernels
        row_count = min(2, self.plan.per_device_train_batch_size.value, len(rows))
        batch = next(micro_batches_of_rows(rows, range(row_count), layout(rows_per_pass=row_count))).to(self.device)
        if library_attends:
            check_attention(self, attention, batch, report)
        return use_kernels(self, kernels, batch, report)

    def _compile_optimizer(self, report: ReportProblem) -> None:
        if not self.optimizer.spec.compiles:
            return
        started_at = perf_counter()
        self.optimizer.compile()
        seconds = format_seconds(perf_counter() - started_at)
        message = f"the optimizer step of {self.optimizer.spec.label} was compiled in {seconds}"
        report("compiled", message, "this time is not counted in any step")

    def _probe_packing(self, rows: Rows, report: ReportProblem) -> tuple[int, bool]:
        """Return (width of packed rows, whether attention gets lengths). The width is 0 if the probe finds a leak."""
        if not self.plan.packing.value:
            return 0, False
        width, reasons, planned = self.plan.longest_row, dict[str, str](), self.plan.attention.kernel
        if varlen.goes_by_lengths(self.model):
            reasons[self.model.config._attn_implementation] = reason = self._leak_by_lengths(rows)
            if not reason:
                return width, True
        elif planned == BY_LENGTHS or (not planned and self.device.type == "cuda" and self.mixed_precision.is_coarse):
            # Earlier versions did not plan attention. Their plans leave the choice to the probe.
            for kernel in varlen.kernels(self.device, self.model):
                if not (reason := varlen.switch_on(self.model, kernel)):
                    if not (reason := self._leak_by_lengths(rows)):
                        return width, True
                    varlen.switch_off(self.model)
                reasons[kernel.name] = reason
            reasons = reasons or {"this machine": "no suitable kernel can be loaded"}
        if reasons:
            reason_words = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
            message = f"variable-length attention is not used ({reason_words})"
            report(PACKED_WITH_MASK, message, "packed rows use a document mask instead, which is slower")
        leak = packing_difference(self, rows)
        if leak is None:
            return width, False
        message = f"packed documents attend to each other in this model ({leak})"
        report("not packed", message, "rows are padded instead, which does not change the steps and the results")
        return 0, False

    def _leak_by_lengths(self, rows: Rows) -> str:
        """Return the reason not to compute attention by lengths; an empty string if the probe finds none."""
        try:
            return packing_difference(self, rows, by_lengths=True) or ""
        except Exception as error:  # kernels raise whatever their parts raise: of heads, cards and arguments
            return reason_to_fall_back(error)

    def _check_chunks(self, rows: Rows, report: ReportProblem) -> None:
        """Check that logits computed in chunks, outside the model, equal the model's own."""
        if not self.plan.loss_chunk_tokens.value or not isinstance(self.loss, NextTokenLoss):
            return
        self.model.eval()
        try:
            with self.collectives.no_gradient_context(), self.mixed_precision.autocast():
                batch = next(micro_batches_of_rows(rows, [0], self.eval_layout)).to(self.device)
                is_same = self.loss.chunks_match_model(batch)
        finally:
            self.model.train()
        if not is_same or not self.loss.chunk_tokens:
            message = "this model changes its logits after the head in an unsupported way"
            hint = "all logits of a micro-batch are computed at once, which takes more memory than planned"
            report("loss cannot be computed in chunks", message, hint)

    def _make_prefetcher(self) -> Prefetcher | None:
        workers, loader = self.plan.loader_workers.value, self.plan.config.dataloader
        if not workers:
            return None
        is_pinned = loader.pin_memory and self.device.type == "cuda"
        # The prefetcher must not refer to `self`, which refers to the prefetcher.
        batches = self.batches

        def make_batches(step: int) -> list[MicroBatch]:
            window = batches.micro_batches_of(step)
            return [batch.pinned() for batch in window] if is_pinned else window

        steps, last_step = workers * loader.prefetch_factor, self.plan.total_steps.value
        return Prefetcher(make_batches, workers=workers, steps=steps, last_step=last_step)
