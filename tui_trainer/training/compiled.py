"""Compile decoder layers with torch.compile, and fall back to layers that are not compiled if it fails."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.losses.named_losses import LossSum, NamedLossSums, no_terms
from tui_trainer.models.towers import language_model
from tui_trainer.planning.plan import Plan
from tui_trainer.training.batches import Batches
from tui_trainer.training.job import ReportProblem
from tui_trainer.training.precision import MixedPrecision
from tui_trainer.training.process import reason_to_fall_back
from tui_trainer.units import format_seconds

_MOST_COMPILATIONS = 32
_SEVERAL_PASSES = "a step has several forward passes, and CUDA graphs would overwrite their gradients"
_DEFAULT_MODE = "layers are compiled with torch_compile_mode = default"


class Trainable(Protocol):
    """The attributes of a run that are needed to check compilation, kernels and packing at its start."""

    plan: Plan
    model: Any
    batches: Batches
    device: torch.device
    mixed_precision: MixedPrecision

    @property
    def loss(self) -> LossSum: ...

    @property
    def pad_id(self) -> int: ...


@contextmanager
def compiler() -> Iterator[None]:
    """Configure torch's compiler for one run, and free its code and memory afterwards."""
    log = logging.getLogger("torch._dynamo")
    level_before = log.level
    log.setLevel(logging.ERROR)
    try:
        # Training and evaluation are compiled twice each: for the first number of rows, and then for any number.
        with torch._dynamo.config.patch(recompile_limit=_MOST_COMPILATIONS):
            yield
    finally:
        log.setLevel(level_before)
        torch._dynamo.reset()


def compile_layers(run: Trainable, report: ReportProblem) -> bool:
    """Compile the decoder layers, try a pass with the first batch, and return whether it worked.

    All layers share the code that is compiled for one of them. The trial changes neither weights nor random state.
    """
    layers = decoder_layers(run.model)
    mode = _mode(run.plan, report)
    for layer in layers:
        layer.compile(mode=mode)
    started_at, graphs_before = perf_counter(), count_compiled_graphs()
    try:
        for batch in _passes_of_two_sizes(run):
            _try_one_pass(run, batch)
        require_graphs(graphs_before)
    except Exception as error:  # the compiler raises whatever its parts raise
        for layer in layers:
            layer._compiled_call_impl = None
        torch._dynamo.reset()
        message = f"torch.compile failed: {reason_to_fall_back(error)}"
        report("not compiled", message, "training continues without compilation, at the usual speed")
        return False
    seconds = format_seconds(perf_counter() - started_at)
    report("compiled", f"{len(layers)} layers were compiled in {seconds}", "this time is not counted in any step")
    return True


def count_compiled_graphs() -> int:
    """Return how many graphs torch's compiler has made in this process."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def require_graphs(before: int) -> None:
    """Raise RuntimeError if `count_compiled_graphs` is still `before`, because the compiler may fail silently."""
    if count_compiled_graphs() > before:
        return
    if torch._dynamo.config.disable:
        reason = "TORCH_COMPILE_DISABLE is set"
    elif torch._dynamo.config.suppress_errors:
        reason = "TORCHDYNAMO_SUPPRESS_ERRORS hides the error"
    else:
        reason = "torch could not compile any code of these layers"
    raise RuntimeError(f"nothing was compiled: {reason}")


def _mode(plan: Plan, report: ReportProblem) -> str | None:
    """Return `torch_compile_mode` from the config; None for torch's default mode.

    If a step has several passes, CUDA graphs are refused, because they reuse the memory of gradients between passes.
    """
    mode = plan.config.training.torch_compile_mode
    has_several_passes = plan.packing.value or plan.gradient_accumulation_steps.value > 1 or plan.processes.value > 1
    if mode == "reduce-overhead" and has_several_passes:
        report("another compile mode", _SEVERAL_PASSES, _DEFAULT_MODE)
        return None
    return None if mode == "default" else mode


def without_cuda_graphs(model: nn.Module, report: ReportProblem) -> None:
    """Compile again without CUDA graphs. Called when the steps of a run begin to have several passes."""
    layers = [layer for layer in decoder_layers(model) if layer._compiled_call_impl is not None]
    if not layers:
        return
    torch._dynamo.reset()
    for layer in layers:
        layer.compile(mode=None)
    report("another compile mode", _SEVERAL_PASSES, _DEFAULT_MODE)


@contextmanager
def uncompiled(model: nn.Module) -> Iterator[None]:
    """Return a context in which the layers of a model run without compiled code, for generation.

    The key-value cache depends on the layer's number, so each layer would be compiled separately.
    """
    saved_calls = [(part, part._compiled_call_impl) for part in model.modules() if part._compiled_call_impl is not None]
    for part, _ in saved_calls:
        part._compiled_call_impl = None
    try:
        yield
    finally:
        for part, call in saved_calls:
            part._compiled_call_impl = call


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """Return the decoder layers of the language model.

    These are the modules that the model declares as units for sharding, without nested ones. If it declares none, they
    are the layers that support activation checkpointing.
    """
    class_names = set(getattr(model, "_no_split_modules", None) or ())
    layers = {
        name: module
        for name, module in language_model(model)[1].named_modules()
        if (
            type(module).__name__.removeprefix("FSDP") in class_names
            if class_names
            else isinstance(module, GradientCheckpointingLayer)
        )
    }
    return [module for name, module in layers.items() if not any(name.startswith(f"{outer}.") for outer in layers)]


def _passes_of_two_sizes(run: Trainable) -> list[MicroBatch]:
    """Return two micro-batches with different numbers of rows, so that the compiler makes code for any number."""
    batches = run.batches
    row_count = min(run.plan.effective_batch_size.value, len(batches.rows))
    documents = [batches.rows.example(index) for index in range(row_count)]
    full, half = (next(batches.layout.micro_batches(rows)) for rows in (documents, documents[: -(-row_count // 2)]))
    return [full.to(run.device), half.to(run.device)]


def _try_one_pass(run: Trainable, batch: MicroBatch) -> None:
    gpus = [run.device] if run.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=gpus):
            with run.mixed_precision.autocast():
                result = run.loss(replace(batch, terms=no_terms(run.loss, run.device)))
            NamedLossSums.of(run.loss).loss(result).backward()
            if gpus:
                torch.cuda.synchronize()
    finally:
        run.model.zero_grad(set_to_none=True)
