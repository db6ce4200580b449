"""Texts that the model writes on the way, so that a person sees what it has learnt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tui_trainer.training.learner import Learner

TEMPERATURE = 0.8


def write_text(learner: Learner, prompt_ids: list[int], *, new_tokens: int, seed: int) -> str:
    """What the model continues the prompt with. The global random state is the same before and after."""
    model, tokenizer = learner.model, learner.tokenizer
    ids_BT = torch.tensor([prompt_ids], device=learner.device)
    gpus = [learner.device] if learner.device.type == "cuda" else []
    model.eval()
    try:
        with torch.random.fork_rng(devices=gpus), learner.numbers.autocast(), _any_kernels():
            torch.manual_seed(seed)
            output_BT = model.generate(
                input_ids=ids_BT,
                attention_mask=torch.ones_like(ids_BT),
                max_new_tokens=new_tokens,
                do_sample=True,
                temperature=TEMPERATURE,
                pad_token_id=learner.pad_id,
            )
    finally:
        model.train()
    text = tokenizer.decode(output_BT[0, len(prompt_ids) :], skip_special_tokens=True)
    return str(text)


@contextmanager
def _any_kernels() -> Iterator[None]:
    """Sampling may use kernels that have no deterministic form (sums for `top_p`); no weight depends on them."""
    strict = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(strict)
