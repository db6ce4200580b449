"""Texts that a model writes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TEMPERATURE = 0.8
# Of models that name no limit of their own.
_NO_LIMIT = 1 << 30
# What a model keeps of its own generation settings: which tokens begin and end a text and which are never written, and
# how many are written at the most. What they say of least lengths, repeats and beams was chosen for other data.
_KEPT = frozenset({
    "bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "bad_words_ids", "suppress_tokens",
    "begin_suppress_tokens", "max_length", "max_new_tokens", "use_cache", "cache_implementation",
})  # fmt: skip
# How freely a token is drawn: only of models that are published to draw.
_DRAWN = frozenset({
    "do_sample", "temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff",
})  # fmt: skip
# How a text is shaped, by what says that it is not.
_SHAPING: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("min_length", "min_new_tokens", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), (0,)),
    **dict.fromkeys(("length_penalty", "repetition_penalty", "encoder_repetition_penalty", "num_beams"), (1,)),
    **dict.fromkeys(("penalty_alpha", "exponential_decay_length_penalty", "sequence_bias", "stop_strings"), ()),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How the next token is chosen. `temperature` 0 takes the likeliest, of `num_beams` texts that go on at once."""

    max_new_tokens: int
    temperature: float
    seed: int
    num_beams: int = 1

    def settings(self) -> dict[str, Any]:
        """As arguments of `generate`. Without a number of beams it would take that of the model's own settings."""
        drawn = {"do_sample": True, "temperature": self.temperature} if self.temperature else {"do_sample": False}
        return {"max_new_tokens": self.max_new_tokens, "num_beams": self.num_beams, **drawn}


NO_SAMPLING = Sampling(max_new_tokens=1, temperature=0, seed=0)
"""For models that write nothing."""


def shaping_settings(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a generation_config.json (or of an old config.json) that shape texts, and that no model
    keeps here."""
    found = {name: fields.get(name) for name in _SHAPING}
    return {name: value for name, value in found.items() if value is not None and value not in _SHAPING[name]}


def keep_plain_settings(model: Any) -> None:
    """Leave a model no generation settings but those of its tokens, of drawing and of the longest text: so it writes
    the same in evaluations, in samples, for users, and wherever its saved generation_config.json is read."""
    from transformers import GenerationConfig

    settings = getattr(model, "generation_config", None)
    if settings is None:
        return
    kept = _KEPT | (_DRAWN if settings.do_sample else set())
    # With `_from_model_config`: generate() makes settings that came from a config.json anew from it.
    for name, usual in vars(GenerationConfig()).items():
        if name not in kept:
            setattr(settings, name, usual)
    if (settings.pad_token_id or 0) < 0:  # -1 in early Llamas
        settings.pad_token_id = None


def continued(model: Any, tokenizer: Any, prompt_ids: list[int], *, new_tokens: int) -> tuple[str, str]:
    """(the prompt, what the model goes on with). Drawn from torch's own generator, which the caller seeds."""
    sampling = Sampling(max_new_tokens=new_tokens, temperature=TEMPERATURE, seed=0)
    prompt = tokenizer.decode(prompt_ids, skip_special_tokens=True)
    return str(prompt), written(model, tokenizer, [prompt_ids], sampling)[0]


def answered(model: Any, tokenizer: Any, inputs: Sequence[Sequence[int]], *, new_tokens: int) -> list[str]:
    """What an encoder with a decoder writes for each input, always the likeliest token, without chance."""
    return written(model, tokenizer, inputs, Sampling(max_new_tokens=new_tokens, temperature=0, seed=0))


def written(model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[str]:
    """What the model writes behind each prompt, or with an encoder in answer to it, up to its end token."""
    new_ids = generated(model, tokenizer, prompts, **sampling.settings())[0]
    return [str(tokenizer.decode(row, skip_special_tokens=True)) for row in new_ids.tolist()]


def generated(model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], **settings: Any) -> tuple[Any, Any]:
    """(the tokens behind each prompt, int64 [B, T'], the logits of each step where `output_logits` asks for them).

    Shorter prompts are filled up where nothing follows them: with a decoder alone at the left.
    """
    import torch

    has_encoder, pad_id, width = model.config.is_encoder_decoder, pad_token_id(tokenizer), max(map(len, prompts))
    rows, masks = [], []
    for prompt in prompts:
        pads, mask = [pad_id] * (width - len(prompt)), [0] * (width - len(prompt))
        rows.append([*prompt, *pads] if has_encoder else [*pads, *prompt])
        masks.append([1] * len(prompt) + mask if has_encoder else mask + [1] * len(prompt))
    found = model.generate(
        input_ids=torch.tensor(rows, device=model.device),
        attention_mask=torch.tensor(masks, device=model.device),
        pad_token_id=pad_id,
        **settings,
    )
    ids_BT = found if isinstance(found, torch.Tensor) else found.sequences
    return ids_BT[:, 0 if has_encoder else width :], getattr(found, "logits", None)


def ignores_left_padding(model: Any, tokenizer: Any, prompt_ids: Sequence[int]) -> bool:
    """Whether a prompt that is filled up at its left goes on as it does alone; recurrent models may read padding."""
    import torch

    one_step = {"max_new_tokens": 1, "do_sample": False, "num_beams": 1, "output_logits": True}
    one_step["return_dict_in_generate"] = True
    longer = list(prompt_ids) if len(prompt_ids) > 16 else [*prompt_ids, *prompt_ids, *prompt_ids]
    prompt_ids = longer[:-8] if len(prompt_ids) > 16 else prompt_ids
    alone, beside = (
        generated(model, tokenizer, prompts, **one_step)[1][0][0].float()
        for prompts in ([prompt_ids], [prompt_ids, longer])
    )
    finite = alone.isfinite() & beside.isfinite()
    largest = alone[finite].abs().max()
    return bool((alone - beside)[finite].abs().max() <= 4 * torch.finfo(model.dtype).eps ** 0.5 * largest)


def most_tokens(model: Any, tokenizer: Any) -> int:
    """Return how many tokens the model reads and writes in all, as it was trained, or has places for. The tokenizer of
    an encoder-decoder limits what is read, and nothing that is written."""
    places = getattr(model.config.get_text_config(), "max_position_embeddings", None) or _NO_LIMIT
    length = _NO_LIMIT if model.config.is_encoder_decoder else tokenizer.model_max_length
    return int(min(places, length, _NO_LIMIT))


def row_padding_id(model: Any, pad_id: int) -> int:
    """What rows are filled up with for a model that looks for its own padding; `pad_id` where it has none."""
    own = model.config.get_text_config().pad_token_id
    return pad_id if own is None or own < 0 else int(own)


def pad_token_id(tokenizer: Any) -> int:
    """What fills a row up. It has no label and nobody attends to it, so any token does where there is none for it."""
    wanted = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    return next(int(token) for token in wanted if token is not None)
