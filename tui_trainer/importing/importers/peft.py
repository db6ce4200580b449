"""`adapter_config.json` of PEFT.

Source: `LoraConfig` of peft 0.21."""

from tui_trainer.importing import groups
from tui_trainer.importing.conversion import Conversion, Given, Importer, Keys
from tui_trainer.importing.importers.transformers import INIT, LAYERS, OTHER_TOOL, SEVERAL_PROCESSES, WHOLE_LAYERS
from tui_trainer.importing.rules import Automatic, NotNeeded, Off, Refused, To, Why, task_by

_TASKS = {
    "CAUSAL_LM": "causal_lm",
    "SEQ_CLS": "sequence_classification",
    "TOKEN_CLS": "token_classification",
    "QUESTION_ANS": "question_answering",
    "SEQ_2_SEQ_LM": "seq2seq",
}
_PLAIN = "only plain LoRA is supported"
# PEFT writes both names for every classifier, although a model has only one of them (peft/peft_model.py).
_HEADS = ("classifier", "score")


def _heads(conversion: Conversion, given: Given) -> None:
    """Convert `modules_to_save` without PEFT's two names for a classifier's head, which is always fully trained."""
    if not isinstance(given.value, list) or not set(_HEADS) <= set(map(str, given.value)):
        return
    reason = "the head of a classifier is always fully trained, whatever its name"
    if other_names := [name for name in given.value if name not in _HEADS]:
        conversion.write("tuning.modules_to_save", other_names, given, reason=reason)
    else:
        conversion.leave(Why.ALWAYS, reason, given)


IMPORTER = Importer(
    name="peft",
    title="PEFT adapter_config.json",
    rank=3,
    telltale="""peft_type base_model_name_or_path r target_modules modules_to_save fan_in_fan_out bias inference_mode
    init_lora_weights rank_pattern alpha_pattern layers_to_transform task_type""",
    tables=(
        {
            "base_model_name_or_path": "model.model_name_or_path",
            "revision": "model.revision",
            "task_type": To("task.type", convert=task_by(_TASKS)),
            "r lora_alpha lora_dropout use_rslora use_dora": "tuning.*",
            "init_lora_weights": INIT,
            "target_modules": LAYERS,
            "target_parameters": "tuning.target_parameters",
            "modules_to_save": WHOLE_LAYERS,
            "fan_in_fan_out": Automatic("determined by the class of the layer"),
            "inference_mode": NotNeeded("a run always trains"),
            "auto_mapping": Automatic("determined by the class of the model"),
            "peft_version runtime_config": OTHER_TOOL,
            "*_config use_* alora_* velora_* kasa_*": Refused(_PLAIN),
            "megatron_core": OTHER_TOOL,
            "megatron_config": Off(SEVERAL_PROCESSES),
            "qalora_*": NotNeeded(_PLAIN),
        },
    ),
    groups=(
        Keys(groups.method, "peft_type", adapter_key="peft_type", methods={"LORA": "lora"}, lora_keys="r"),
        Keys(_heads, "modules_to_save"),
        Keys(
            groups.adapted_layers, "layers_to_transform", "layers_pattern", "target_modules",
            target_key="target_modules",
        ),
        Keys(groups.default_layers, target_key="target_modules"),
    ),
    defaults={"tuning.r": 8, "tuning.lora_alpha": 8},
)  # fmt: skip
