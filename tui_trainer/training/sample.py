"""Texts that the model writes on the way, so that a person sees what it has learnt."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

TEMPERATURE = 0.8


def write_text(
    model: Any, tokenizer: PreTrainedTokenizerBase, prompt_ids: list[int], *, new_tokens: int, seed: int
) -> str:
    """What the model continues the prompt with. The global random state is the same before and after."""
    ids_BT = torch.tensor([prompt_ids])
    was_training = model.training
    model.eval()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            output_BT = model.generate(
                ids_BT,
                attention_mask=torch.ones_like(ids_BT),
                max_new_tokens=new_tokens,
                do_sample=True,
                temperature=TEMPERATURE,
                pad_token_id=tokenizer.pad_token_id,
            )
    finally:
        model.train(was_training)
    text = tokenizer.decode(output_BT[0, len(prompt_ids) :], skip_special_tokens=True)
    return str(text)
