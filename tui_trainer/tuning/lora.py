"""Train LoRA adapters on frozen weights (arXiv:2106.09685) with peft, so that plain peft loads them.

Adapters are always fp32, because 16-bit weights lose an update below a 512th of the weight. Modules that are saved
as a whole have the dtype of the rest of the model. If that is 16 bits, the optimizer keeps fp32 copies of them.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tui_trainer.config.fields import is_pattern, names_in
from tui_trainer.config.sections import TuningSection
from tui_trainer.models.heads import CALIBRATION
from tui_trainer.models.towers import language_model, tower_modules
from tui_trainer.tuning.adapter_init import InitialAdapters, initial_adapters_of, saved_config
from tui_trainer.tuning.full import Method, SplitTensor

if TYPE_CHECKING:
    from torch import Tensor

# Attribute of an adapted model: whether its config differs from the config in the files from which it was loaded.
_OTHER_CONFIG = "has_other_config"


class Lora(Method):
    name = "lora"
    weights_file = "adapter_model.safetensors"
    index_file = ""

    def apply(
        self, model: Any, tuning: TuningSection, *, seed: int, autocast: bool, token_ids: Sequence[int] = ()
    ) -> Any:
        import torch
        from peft import LoraConfig, get_peft_model
        from peft.utils import ModulesToSaveWrapper

        target_names, alpha = names_in(tuning.target_modules), float(tuning.lora_alpha)
        saved_names = names_in(tuning.modules_to_save)
        targets: str | list[str] = "all-linear" if target_names == ("all-linear",) else list(target_names)
        if tower_modules(model):
            targets, saved_names = _in_language_model(model, target_names, saved_names)
        if is_pattern(tuning.target_modules):
            targets = tuning.target_modules
        task_type, head_names = _ending(model)
        # Random values of adapters depend on the seed alone, not on random numbers that were used to make the model.
        torch.manual_seed(seed)
        config = LoraConfig(
            task_type=task_type,
            r=tuning.r,
            # 16.0 becomes 16, because tools that read adapter_config.json expect a whole number. peft takes any number.
            lora_alpha=int(alpha) if alpha.is_integer() else alpha,  # type: ignore[arg-type]
            lora_dropout=tuning.lora_dropout,
            target_modules=targets,
            target_parameters=list(names_in(tuning.target_parameters)) or None,
            # The head of a classifier is new or from another task, so it is trained as a whole and gets no adapter.
            exclude_modules=rf"(.*\.)?({'|'.join(head_names)})(\..*)?" if head_names else None,
            modules_to_save=list(dict.fromkeys((*saved_names, *head_names))) or None,
            use_rslora=tuning.use_rslora,
            use_dora=tuning.use_dora,
            trainable_token_indices=_rows_of(model, token_ids) if token_ids else None,
            # Initializations that change the weights follow once the adapters exist (`adapter_init.py`).
            init_lora_weights="gaussian" if tuning.init_lora_weights == "gaussian" else True,
            # If head and embedding were one weight, they stay one: otherwise a merge drops what one of them has learnt.
            ensure_weight_tying=bool(saved_names) and bool(getattr(model.config, "tie_word_embeddings", False)),
        )
        with warnings.catch_warnings():
            # peft uses a deprecated name of transformers, and warns that GPT-2's matrices are transposed.
            warnings.simplefilter("ignore")
            peft_model: Any = get_peft_model(model, config)
        wrappers = (module for module in peft_model.modules() if isinstance(module, ModulesToSaveWrapper))
        spared_parameters = {parameter for wrapper in wrappers for parameter in wrapper.parameters()}
        for parameter in peft_model.parameters():
            if parameter.requires_grad and parameter not in spared_parameters and parameter.dtype != torch.float32:
                parameter.data = parameter.data.float()
        if autocast:
            _without_input_casts(peft_model)
        setattr(peft_model, _OTHER_CONFIG, bool(head_names) or _differs(model))
        if tuning.mutates_weights:
            peft_model.initial_adapters = InitialAdapters(peft_model)
        return peft_model

    def weights(self, model: Any) -> dict[str, Tensor]:
        """Return the adapter's weights under peft's names. A weight that is both head and embedding has two names."""
        from peft.utils import get_peft_model_state_dict

        state: dict[str, Tensor] = get_peft_model_state_dict(model, save_embedding_layers=False)
        return {name: tensor.detach() for name, tensor in state.items()}

    def checkpoint_tensors(self, model: Any) -> dict[str, Tensor | SplitTensor]:
        weights, initial_adapters = self.weights(model), initial_adapters_of(model)
        return initial_adapters.saved(weights) if initial_adapters is not None else dict(weights)

    def describe(self, model: Any, folder: Path) -> None:
        saved_config(model).save_pretrained(folder)
        _keep_labels(model, folder)

    def save_model(self, model: Any, folder: Path) -> None:
        if initial_adapters_of(model) is not None:
            from safetensors.torch import save_file

            self.describe(model, folder)
            tensors = self.checkpoint_tensors(model)
            whole_tensors = {name: x.gather() if isinstance(x, SplitTensor) else x for name, x in tensors.items()}
            # Weights are copied, because head and embedding may be one tensor.
            copies = {name: tensor.cpu().contiguous().clone() for name, tensor in whole_tensors.items()}
            save_file(copies, folder / self.weights_file, metadata={"format": "pt"})
        else:
            model.save_pretrained(folder, save_embedding_layers=False)
            (folder / "README.md").unlink(missing_ok=True)
            _keep_labels(model, folder)
        # A task may use other stop tokens than the base model.
        if (generation_config := getattr(model.get_base_model(), "generation_config", None)) is not None:
            generation_config.save_pretrained(folder)


def _rows_of(model: Any, token_ids: Sequence[int]) -> dict[str, list[int]]:
    """Return the rows that train for added tokens, keyed by the module paths of the embedding and of an untied head."""
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    tables = [table] if head is None or head.weight is table.weight else [table, head]
    return {path: list(token_ids) for path, module in model.named_modules() if any(module is x for x in tables)}


def _in_language_model(model: Any, names: tuple[str, ...], saved: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return (regular expression for paths of target modules, paths of modules to save) in the language model.

    Names without paths would also match layers of towers, which have the same names.
    """
    from torch import nn

    language_path, language = language_model(model)
    if names == ("all-linear",):
        linears = (path.rpartition(".")[2] for path, part in language.named_modules() if isinstance(part, nn.Linear))
        names = tuple(dict.fromkeys(linears))
    target_pattern = rf"{re.escape(language_path)}\.(.*\.)?({'|'.join(map(re.escape, names))})"
    tower_prefixes = {f"{path}." for path in tower_modules(model)}
    paths = [path for path, _ in model.named_modules() if path.endswith(saved) and saved]
    return target_pattern, tuple(path for path in paths if not f"{path}.".startswith(tuple(tower_prefixes)))


def _keep_labels(model: Any, folder: Path) -> None:
    """Write the model's config into the adapter's folder if it differs from the base model's config.

    The config has a classifier's labels and thresholds, the vocabulary size with added tokens, and extended positions.
    `AutoConfig.from_pretrained` reads it, but peft does not.
    """
    if not getattr(model, _OTHER_CONFIG, False) and not hasattr(model.config, CALIBRATION):
        return
    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.save_pretrained(folder)


def _differs(model: Any) -> bool:
    """Return whether the model's tokens or positions differ from those of the files from which it was loaded."""
    from transformers import AutoConfig

    config = model.config
    if not config.name_or_path:
        return False
    has_code = hasattr(config, "auto_map")
    stored_config = AutoConfig.from_pretrained(config.name_or_path, local_files_only=True, trust_remote_code=has_code)
    return any(
        getattr(config.get_text_config(), name, None) != getattr(stored_config.get_text_config(), name, None)
        for name in ("vocab_size", "rope_parameters", "max_position_embeddings")
    )


def head_module_names(model: Any) -> tuple[str, ...]:
    """Return the names of the modules of a classifier's head; () for other models."""
    return _ending(model)[1]


def _ending(model: Any) -> tuple[str, tuple[str, ...]]:
    """Return (peft's name for the task of a model, modules of a classifier's head).

    peft itself saves only modules called `classifier` and `score`, and leaves the rest of a head random and frozen.
    """
    name = type(model).__name__
    task_by_ending = {
        "ForSequenceClassification": "SEQ_CLS",
        "ForTokenClassification": "TOKEN_CLS",
        **dict.fromkeys(("ForQuestionAnswering", "ForQuestionAnsweringSimple"), "QUESTION_ANS"),
    }
    task = next((task for suffix, task in task_by_ending.items() if name.endswith(suffix)), "")
    if not task:
        return ("SEQ_2_SEQ_LM" if getattr(model.config, "is_encoder_decoder", False) else "CAUSAL_LM"), ()
    heads = (name for name, part in model.named_children() if name != model.base_model_prefix and _has_weights(part))
    pooler_names = ("pooler",) if _has_weights(getattr(model.base_model, "pooler", None)) else ()
    return task, (*pooler_names, *heads)


def _has_weights(module: Any) -> bool:
    return module is not None and any(True for _ in module.parameters())


def _without_input_casts(adapted: Any) -> None:
    """Stop peft from casting the input of each adapter to fp32.

    Autocast casts the input back, and both copies would be kept. Without the cast the memory peak was 13 % lower (fake
    tensors, Llama shape of 1.2B). peft.helpers offers this as a context manager.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    for module in adapted.modules():
        if isinstance(module, BaseTunerLayer):
            setattr(module, "cast_input_dtype_enabled", False)  # noqa: B010  # set by each kind of layer, not declared


METHOD = Lora()
