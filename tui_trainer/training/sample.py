"""Texts that the model writes on the way, so that a person sees what it has learnt."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tui_trainer.data.preparing.token_rows import TokenRow
from tui_trainer.training.compiled import uncompiled
from tui_trainer.training.components import Components


def write_text(components: Components, row: TokenRow, *, seed: int) -> tuple[str, str]:
    """(what was given, what the model makes of it), as its task shows a row."""
    with answering(components, seed):
        return components.task.sample(components.config, components.data, components.model, components.tokenizer, row)


@contextmanager
def answering(components: Components, seed: int) -> Iterator[None]:
    """The model writes. The global random state is the same before and after, and no weight is touched."""
    gpus = [components.device] if components.device.type == "cuda" else []
    components.model.eval()
    try:
        with (
            torch.random.fork_rng(devices=gpus),
            components.together.reading(),
            components.mixed_precision.autocast(),
            _any_kernels(),
            uncompiled(components.model),
        ):
            torch.manual_seed(seed)
            yield
    finally:
        components.model.train()


@contextmanager
def _any_kernels() -> Iterator[None]:
    """Sampling may use kernels that have no deterministic form (sums for `top_p`); no weight depends on them."""
    strict = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(strict)
