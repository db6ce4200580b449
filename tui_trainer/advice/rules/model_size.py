"""Rules about the sizes of the model and of its adapters."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Any

from tui_trainer.advice.context import Context
from tui_trainer.advice.contract import IDLE_GPU_SHARE, Remedy, Verdict, not_applicable, passed, rule, warned
from tui_trainer.advice.remedies import fitting_patch, is_short
from tui_trainer.advice.rules.memory import method_patch
from tui_trainer.config.sections import MODEL_KEY
from tui_trainer.errors import InputError
from tui_trainer.methods.tuning_methods import METHOD_KEY
from tui_trainer.models.catalogue import CatalogueEntry, all_entries
from tui_trainer.models.facts import find_model
from tui_trainer.models.shape import scratch_shape
from tui_trainer.models.targets import ALL_LINEAR, MODULES_KEY
from tui_trainer.models.tokenizer import tokens_per_character
from tui_trainer.planning.basis import Basis, with_settings
from tui_trainer.planning.duration import training_flops
from tui_trainer.planning.measured_steps import LASTING_PARTS
from tui_trainer.tasks import find_task
from tui_trainer.tuning.freeze_layers import LAYERS_KEY
from tui_trainer.units import format_bytes, format_count, format_number, format_percent, format_seconds

_WIDTH, LAYERS = "model.scratch.hidden_size", "model.scratch.num_hidden_layers"
_RANK, _ALPHA = "tuning.r", "tuning.lora_alpha"
# Compute is spent best at 20 tokens per parameter (Hoffmann et al., arXiv:2203.15556). With less than a hundredth of
# these tokens, a smaller model reaches a lower loss in the same time.
_LEAST_TOKENS_A_PARAMETER = 0.2
# A run longer than a day should use a smaller model. A run shorter than an hour has time for a larger model.
_DAY_SECONDS = 86_400.0
_SHORT_SECONDS = 3600.0
# Models whose sizes differ less count as equally large.
_SMALLER = 0.8
_LARGER = 1.5
# A tokenizer that needs this many times as many tokens for a text does not know the language of the text.
_OTHER_LANGUAGE = 1.5
_USUAL_RANK = 16
# Attention has a third of a layer's weights. LoRA with adapters only on attention learns less than full fine-tuning.
# With adapters on every linear layer it learns as much (QLoRA, arXiv:2305.14314, section 4 and figure 2).
_LEAST_ADAPTED_SHARE = 0.5
# A weight can store 2 bits of knowledge (Allen-Zhu and Li, arXiv:2404.05405). A token of text contains about 1.
_BITS_A_PARAMETER = 2.0
_BITS_A_TOKEN = 1.0
# alpha = 2 r is usual (QLoRA, arXiv:2305.14314). A much smaller scale acts like a lower learning rate.
_LEAST_SCALE = 0.5
_GOOD_SCALE = 2.0
_MOST_SCALE = 4.0


_DISTILBERT = "DistilBERT is 40 % smaller and 60 % faster than BERT (arXiv:1910.01108)"


def _remedies_of_model_size(basis: Basis, budget: float) -> Iterator[Remedy]:
    """Yield LoRA as a remedy. It trains other weights, so it comes late."""
    if not basis.setup.has_adapter and not basis.config.is_from_scratch:
        yield Remedy(patch=method_patch(basis.config, "lora"), rank=6)


@rule(
    "Model size", 200, METHOD_KEY, LAYERS_KEY, _WIDTH, LAYERS,
    published_gain=_DISTILBERT, remedies=_remedies_of_model_size,
)  # fmt: skip
def model_size(context: Context) -> Verdict:
    """Time and memory grow with the number of parameters; the text limits what they can learn.

    Source: Sanh et al., DistilBERT, arXiv:1910.01108."""
    plan = context.required_plan
    rows = plan.total_steps.value * min(plan.effective_batch_size.value, plan.train_rows.value)
    # Tokens of the whole run. Data that is read several times counts each time.
    read_tokens = rows * plan.train_tokens.value / max(plan.train_rows.value, 1)
    return (_judge_scratch_model if context.config.is_from_scratch else _judge_pretrained_model)(context, read_tokens)


def _judge_scratch_model(context: Context, tokens: float) -> Verdict:
    parameters, steps = context.required_plan.parameters.value, context.required_plan.total_steps.value
    counts_text = f"{format_count(parameters)} parameters are trained on {format_count(tokens)} tokens"
    # With a fixed number of steps, shorter rows mean that the run reads fewer tokens.
    counts_text += f" in {steps:,} steps of {format_count(tokens / steps)} tokens"
    sentence = f"{counts_text}, {format_number(tokens / parameters, 2)} tokens per parameter"
    if tokens >= _LEAST_TOKENS_A_PARAMETER * parameters:
        return passed(sentence)
    most_parameters = int(tokens / _LEAST_TOKENS_A_PARAMETER)
    fix = _smaller_shape(context, most_parameters)
    advice = "give the model more text or more steps" if fix is None else ""
    return warned(f"{sentence}; at least {_LEAST_TOKENS_A_PARAMETER:g} are needed", fix=fix, advice=advice)


def _judge_pretrained_model(context: Context, tokens: float) -> Verdict:
    """Return the verdict on a pretrained model, by its memory. Few tokens are no fault, because it was pretrained."""
    plan, budget = context.required_plan, context.basis.memory_budget
    count, total = plan.trained_parameters.value, plan.parameters.value
    lasting_bytes = sum(part.bytes for part in plan.memory_parts if part.name in LASTING_PARTS)
    sentence = (
        f"{format_count(count)} of {format_count(total)} parameters are trained on {format_count(tokens)} "
        f"tokens; weights, gradients and optimizer take {format_bytes(lasting_bytes)}"
    )
    if budget.free_bytes is None or lasting_bytes <= budget.usable_share * budget.free_bytes:
        return passed(sentence)
    sentence += f", more than {budget.usable_share:.0%} of the {format_bytes(budget.free_bytes)} free on {budget.where}"
    settings = (fitting_patch(context) if is_short(context) else None) or {}
    fix = method_patch(context.config, settings[METHOD_KEY]) if METHOD_KEY in settings else None
    return warned(sentence, fix=fix, advice="" if fix else "choose a smaller model, or a GPU with more memory")


def _smaller_shape(context: Context, most_parameters: int) -> dict[str, Any] | None:
    """Return the setting for the largest model with at most these parameters: a smaller width, or else fewer layers.
    None if a config.json gives the shape, or if no such model exists."""
    if context.config.model.model_name_or_path:
        return None
    scratch, vocabulary = context.config.model.scratch, context.required_plan.vocabulary.value
    # Heads of an even width: half of a head is rotated by sines, half by cosines.
    step, width, layers = 2 * scratch.num_attention_heads, scratch.hidden_size, scratch.num_hidden_layers
    width_changes = ({"hidden_size": width} for width in range(width - step, max(step, 16) - 1, -step))
    layer_changes = ({"num_hidden_layers": layers} for layers in range(layers - 1, 0, -1))
    for shape_change in chain(width_changes, layer_changes):
        if scratch_shape(scratch.model_copy(update=shape_change), vocabulary).parameters <= most_parameters:
            return {f"model.scratch.{name}": value for name, value in shape_change.items()}
    return None


@rule("Smaller and larger models", 202, MODEL_KEY, published_gain=_DISTILBERT)
def model_choice(context: Context) -> Verdict:
    """Compare this model with a smaller and a larger one by time and memory.

    Source: Sanh et al., DistilBERT, arXiv:1910.01108."""
    plan, config = context.required_plan, context.config
    task, earlier = find_task(config.task.type), context.earlier
    if config.is_from_scratch:
        return not_applicable("a model from scratch has no alternatives by name, because its size is a setting")
    if not task.architectures:
        return not_applicable(f"no models of the catalogue are known to be tuned for {config.task.type}")
    parameters, budget_bytes = plan.parameters.value, context.basis.memory_budget.budget_bytes
    # A smaller model with a larger vocabulary may need more memory.
    smaller_bytes = min(budget_bytes or math.inf, context.basis.needed_bytes())
    smaller_models = _alternatives(context, 0, _SMALLER * parameters, smaller_bytes, reverse=True)
    text, seconds = f"the model has {format_count(parameters)} parameters", context.duration_seconds
    if is_short(context) or (seconds is not None and seconds > _DAY_SECONDS):
        reason = "and does not fit in memory" if is_short(context) else "and trains for longer than 1 day"
        choice = next((candidate for candidate in smaller_models if (candidate.seconds or 0) <= _DAY_SECONDS), None)
        if choice is None:
            message = f"{text} {reason}; no model in the catalogue is small enough"
            return warned(message, advice="lower data.max_length, or use less data (data.max_rows)")
        is_local = find_model(choice.name, head=task.head).folder is not None
        advice = "" if is_local else f"tui-trainer download {choice.name}, then --model {choice.name}"
        fix = {MODEL_KEY: choice.name} if is_local else None
        return warned(f"{text} {reason}; {choice.words}", fix=fix, advice=advice)
    details = [f"smaller: {candidate.words}" for candidate in islice(smaller_models, 1)]
    busy_share = earlier.busy_share if earlier and context.device == "cuda" else None
    is_idle = busy_share is not None and busy_share < IDLE_GPU_SHARE
    if earlier and busy_share is not None and is_idle:
        text += f" and kept the GPU {format_percent(busy_share)} busy in run {earlier.name}"
    if is_idle or (seconds is not None and seconds <= _SHORT_SECONDS):
        # There is time and memory for a larger model.
        larger_models = _alternatives(context, _LARGER * parameters, math.inf, budget_bytes)
        larger = next((candidate for candidate in larger_models if (candidate.seconds or 0) <= _DAY_SECONDS), None)
        details += [f"larger: {larger.words}"] if larger else []
    return passed("; ".join([text, *details]), *details)


@dataclass(frozen=True, slots=True)
class _Alternative:
    """A model that the user could choose instead. `seconds` is the estimated time of the run; None if unknown."""

    name: str
    seconds: float | None
    words: str
    """`distilgpt2, 81.9 M, would take about 2 h 10 min with 2.1 GiB of memory (a vocabulary of the same size)`."""


def _alternatives(
    context: Context, least: float, most: float, budget: float | None, *, reverse: bool = False
) -> Iterator[_Alternative]:
    """Yield models of the catalogue for this task with `least` to `most` parameters that fit `budget`, by size."""
    suffixes = find_task(context.config.task.type).architectures
    entries = [entry for entry in all_entries() if least <= entry.parameters <= most]
    for entry in sorted(entries, key=lambda entry: entry.parameters, reverse=reverse):
        if not str((entry.config.get("architectures") or [""])[0]).endswith(suffixes):
            continue
        if alternative := _plan_alternative(context, entry, math.inf if budget is None else budget):
            yield alternative


def _plan_alternative(context: Context, entry: CatalogueEntry, budget: float) -> _Alternative | None:
    """Return a catalogue model as an alternative; None if it cannot be planned, does not fit or lacks the language."""
    plan, basis = context.required_plan, context.basis
    loaded = with_settings(basis.loaded, {MODEL_KEY: entry.name, "model.revision": "main"})
    try:
        shape = find_task(context.config.task.type).model_shape(loaded.config, plan.vocabulary.value, plan.classes)
        if shape.max_position_embeddings and shape.max_position_embeddings < plan.longest_row:
            return None
        needed_bytes = replace(basis, loaded=loaded).with_setup(basis.setup, shape).needed_bytes()
    except (InputError, LookupError, ValueError):
        return None
    if needed_bytes > budget or (language_and_ratio := _compare_tokens(context, entry)) is None:
        return None
    # The time is assumed to grow with the tokens, under otherwise equal conditions.
    language, token_ratio = language_and_ratio
    flops = partial(training_flops, setup=basis.setup, tokens=1, row_tokens=plan.longest_row)
    seconds, time_text = None, ""
    if context.duration_seconds is not None:
        seconds = context.duration_seconds * flops(shape) / flops(basis.shape) * token_ratio
        time_text = f" would take about {format_seconds(seconds)}"
    size, memory = f"{format_count(shape.parameters)} parameters", format_bytes(needed_bytes)
    return _Alternative(entry.name, seconds, f"{entry.name}, {size},{time_text} with {memory} of memory ({language})")


def _compare_tokens(context: Context, entry: CatalogueEntry) -> tuple[str, float] | None:
    """Return a clause on how many tokens the other model's tokenizer needs for the data, and their ratio to those of
    the present tokenizer; None if the other tokenizer does not know the language."""

    def token_rate(name: str) -> float | None:
        folder = find_model(name, head=find_task(context.config.task.type).head).folder
        return tokens_per_character(folder, context.sample_texts) if folder else None

    # Most models are not on this machine, and then no tokens are counted.
    new_rate = token_rate(entry.name)
    rate = None if new_rate is None else token_rate(context.config.model.model_name_or_path)
    if rate is None or new_rate is None:
        is_same_size = entry.config.get("vocab_size") == context.required_plan.vocabulary.value
        unknown_text = "its tokenizer has not been downloaded, so the number of tokens is unknown"
        return ("a vocabulary of the same size" if is_same_size else unknown_text), 1.0
    if new_rate > _OTHER_LANGUAGE * rate:
        return None
    return f"{format_number(new_rate, 2)} tokens/character instead of {format_number(rate, 2)}", new_rate / rate


@rule("LoRA rank", 204, _RANK, MODULES_KEY)
def lora_rank(context: Context) -> Verdict:
    """The rank bounds what adapters can learn; beyond that it costs memory and time for nothing.

    Source: Hu et al., LoRA, arXiv:2106.09685, section 7.2."""
    plan, tuning, shape = context.required_plan, context.config.tuning, context.basis.shape
    count, tokens = plan.trained_parameters.value, plan.train_tokens.value
    if not tuning.has_adapter:
        return not_applicable(f"all {format_count(count)} parameters are trainable, so there is no adapter")
    layers = context.basis.setup.adapted(shape)
    all_parameters = sum(layer.matrix_parameters for layer in shape.linears if not layer.is_head)
    share = sum(layer.matrix_parameters for layer in layers) / all_parameters
    sentence = (
        f"rank {tuning.r} in a model of width {shape.hidden_size:,}: {format_count(count)} trainable parameters "
        f"({plan.trained_parameters.reason}) for {format_count(tokens)} tokens"
    )
    # The rank at which an adapter, r x (inputs + outputs), has as many weights as the narrowest layer.
    sizes = [(layer.inputs, layer.outputs) for layer in layers]
    sizes += [(tensor.rows, tensor.columns) for tensor in context.basis.setup.lora_experts]
    most_rank = min(inputs * outputs // (inputs + outputs) for inputs, outputs in sizes)
    highest = 1 << max(0, most_rank.bit_length() - 1)
    if tuning.r > most_rank:
        fix = min(_USUAL_RANK, highest)
        return warned(f"{sentence}; above rank {most_rank} an adapter is larger than its layer", fix={_RANK: fix})
    if share < _LEAST_ADAPTED_SHARE and not context.basis.setup.lora_experts:
        return warned(f"{sentence}; adapters cover only {share:.0%} of the weights", fix={MODULES_KEY: ALL_LINEAR})
    # Double the rank until the adapters can store all tokens, or up to the highest rank.
    new_rank = tuning.r
    while new_rank / tuning.r * _BITS_A_PARAMETER * count < _BITS_A_TOKEN * tokens and 2 * new_rank <= highest:
        new_rank *= 2
    if new_rank > tuning.r:
        return warned(f"{sentence}, more than adapters of this rank can learn", fix={_RANK: new_rank})
    return passed(f"{sentence}; adapters cover {share:.0%} of the weights")


@rule("LoRA scaling", 205, _ALPHA)
def lora_alpha(context: Context) -> Verdict:
    """Lowering only the rank makes updates stronger: change lora_alpha with it.

    Source: Hu et al., LoRA, arXiv:2106.09685, section 4.1."""
    tuning = context.config.tuning
    if not tuning.has_adapter:
        return not_applicable(f'tuning.method = "{tuning.method}" has no adapter to scale')
    # rsLoRA divides by the square root of the rank, so that high ranks still learn (arXiv:2312.03732).
    divisor = math.sqrt(tuning.r) if tuning.use_rslora else float(tuning.r)
    scale = tuning.lora_alpha / divisor
    root_text = "the square root of " if tuning.use_rslora else ""
    sentence = f"updates are scaled by {scale:.3g}: lora_alpha {tuning.lora_alpha:g} / {root_text}r {tuning.r}"
    fix = {_ALPHA: float(f"{_GOOD_SCALE * divisor:.3g}")}
    if scale > _MOST_SCALE:
        return warned(f"{sentence}; a scale above {_MOST_SCALE:g} acts like a higher learning rate", fix=fix)
    if scale < _LEAST_SCALE:
        return warned(f"{sentence}; with a scale below {_LEAST_SCALE:g} the adapters hardly change the model", fix=fix)
    return passed(sentence)
