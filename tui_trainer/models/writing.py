"""Texts that a model writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

TEMPERATURE = 0.8


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How the next token is chosen. `temperature` 0 takes the likeliest."""

    max_new_tokens: int
    temperature: float
    seed: int


def continued(model: Any, tokenizer: Any, prompt_ids: list[int], *, new_tokens: int) -> tuple[str, str]:
    """(the prompt, what the model goes on with). Drawn from torch's own generator, which the caller seeds."""
    import torch

    ids_BT = torch.tensor([prompt_ids], device=model.device)
    output_BT = model.generate(
        input_ids=ids_BT,
        attention_mask=torch.ones_like(ids_BT),
        max_new_tokens=new_tokens,
        do_sample=True,
        temperature=TEMPERATURE,
        pad_token_id=pad_token_id(tokenizer),
    )
    prompt = tokenizer.decode(prompt_ids, skip_special_tokens=True)
    text = tokenizer.decode(output_BT[0, len(prompt_ids) :], skip_special_tokens=True)
    return str(prompt), str(text)


def written(model: Any, tokenizer: Any, prompt_ids: list[int], sampling: Sampling) -> str:
    """What the model writes after the prompt, or with an encoder in answer to it, up to its end token."""
    import torch

    ids_BT = torch.tensor([prompt_ids], device=model.device)
    choice = {"do_sample": True, "temperature": sampling.temperature} if sampling.temperature else {"do_sample": False}
    output_BT = model.generate(
        input_ids=ids_BT,
        attention_mask=torch.ones_like(ids_BT),
        max_new_tokens=sampling.max_new_tokens,
        pad_token_id=pad_token_id(tokenizer),
        **choice,
    )
    begin = 0 if model.config.is_encoder_decoder else len(prompt_ids)
    return str(tokenizer.decode(output_BT[0, begin:], skip_special_tokens=True))


def answered(model: Any, tokenizer: Any, inputs: Sequence[Sequence[int]], *, new_tokens: int) -> list[str]:
    """What an encoder with a decoder writes for each input, always the likeliest token, without chance.

    What a model's own settings say of lengths and repeats is set aside: it was chosen for other data.
    """
    import torch

    fill, widest = pad_token_id(tokenizer), max(map(len, inputs))
    ids_BT = torch.tensor([[*ids, *[fill] * (widest - len(ids))] for ids in inputs], device=model.device)
    lengths_B = torch.tensor([len(ids) for ids in inputs], device=model.device)
    output_BT = model.generate(
        input_ids=ids_BT,
        attention_mask=(torch.arange(widest, device=model.device) < lengths_B[:, None]).long(),
        max_new_tokens=new_tokens,
        do_sample=False,
        num_beams=1,
        min_length=0,
        length_penalty=1.0,
        no_repeat_ngram_size=0,
        early_stopping=False,
        pad_token_id=fill,
    )
    return [str(tokenizer.decode(row, skip_special_tokens=True)) for row in output_BT.tolist()]


def pad_token_id(tokenizer: Any) -> int:
    """What fills a row up. It has no label and nobody attends to it, so any token does where there is none for it."""
    wanted = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    return next(int(token) for token in wanted if token is not None)
