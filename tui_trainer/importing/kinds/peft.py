"""PEFT's `adapter_config.json`.

Source: `LoraConfig` of peft 0.21.
"""

from tui_trainer.importing import together, trainer_names
from tui_trainer.importing.contract import Kind, Left, Off, Same, To, Why
from tui_trainer.importing.task_names import task_by

_TASKS = {
    "CAUSAL_LM": "causal_lm",
    "SEQ_CLS": "sequence_classification",
    "TOKEN_CLS": "token_classification",
    "SEQ_2_SEQ_LM": "seq2seq",
}
_ALL_ALIKE = "all adapters have one rank and one scale"

KIND = Kind(
    name="peft",
    title="PEFT adapter_config.json",
    rank=3,
    telltale=frozenset(
        {
            "peft_type", "base_model_name_or_path", "r", "target_modules", "modules_to_save", "fan_in_fan_out", "bias",
            "inference_mode", "init_lora_weights", "rank_pattern", "alpha_pattern", "layers_to_transform", "task_type",
        }
    ),
    rules={
        "base_model_name_or_path": To("model.model_name_or_path"),
        "revision": To("model.revision"),
        "task_type": To("task.type", convert=task_by(_TASKS)),
        "r": To("tuning.r"),
        "lora_alpha": To("tuning.lora_alpha"),
        "lora_dropout": To("tuning.lora_dropout"),
        "target_modules": To("tuning.target_modules", convert=trainer_names.module_names),
        "modules_to_save": To("tuning.modules_to_save", convert=trainer_names.module_names),
        "use_rslora": To("tuning.use_rslora"),
        "use_dora": To("tuning.use_dora"),
        "bias": Same(("none",), "biases stay as they are", "biases stay as they are here"),
        "lora_bias": Off("adapters have no bias"),
        "init_lora_weights": Same((True,), "an adapter starts as zero", "an adapter starts as zero here"),
        "fan_in_fan_out": Left(Why.AUTOMATIC, "the layer's own class says it"),
        "inference_mode": Left(Why.NOT_NEEDED, "a run trains"),
        "auto_mapping": Left(Why.AUTOMATIC, "the model's own class says it"),
        "peft_version": Left(Why.NOT_NEEDED, "it concerns the other tool only"),
        "runtime_config": Left(Why.NOT_NEEDED, "it concerns the other tool only"),
        "exclude_modules": Off("tuning.target_modules names the layers"),
        "layers_to_transform": Off("every layer of a name gets an adapter"),
        "layers_pattern": Off("every layer of a name gets an adapter"),
        "rank_pattern": Off(_ALL_ALIKE),
        "alpha_pattern": Off(_ALL_ALIKE),
        "layer_replication": Off("the model keeps its layers"),
        "trainable_token_indices": Off("tuning.modules_to_save trains all embeddings"),
        "target_parameters": Off("adapters are for layers"),
        "ensure_weight_tying": Off("it is not passed on"),
    },
    together=(together.method("peft_type", {"LORA": "lora"}, lora=("r",)),),
    families={
        "*_config": Off("plain LoRA is trained"),
        "use_*": Off("plain LoRA is trained"),
        "megatron_*": Off("training is one process on one GPU"),
        "qalora_*": Left(Why.NOT_NEEDED, "plain LoRA is trained"),
        "alora_*": Off("plain LoRA is trained"),
    },
)  # fmt: skip
