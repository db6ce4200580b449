"""Kernels of libraries in a model: what they change is taken back, and nothing is fetched for them."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from tui_trainer.training.fused_kernels import use_kernels

CPU = torch.device("cpu")


def test_a_run_that_goes_on_without_a_gpu_is_told_that_they_are_off():
    told = []
    run = SimpleNamespace(device=CPU)
    assert use_kernels(run, "liger", None, lambda *what: told.append(what)) == "none"
    assert [what[:2] for what in told] == [("kernels not used", "liger-kernel is for GPUs")]
    assert use_kernels(run, "none", None, lambda *what: told.append(what)) == "none" and len(told) == 1
