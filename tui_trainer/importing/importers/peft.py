"""PEFT's `adapter_config.json`.

Source: `LoraConfig` of peft 0.21.
"""

from tui_trainer.importing.conversion import Importer
from tui_trainer.importing.groups import method
from tui_trainer.importing.importers.transformers import LAYERS, OTHER_TOOL, SEVERAL_PROCESSES, WHOLE_LAYERS
from tui_trainer.importing.rules import Automatic, NotNeeded, Off, Same, To
from tui_trainer.importing.values import task_by

_TASKS = {
    "CAUSAL_LM": "causal_lm",
    "SEQ_CLS": "sequence_classification",
    "TOKEN_CLS": "token_classification",
    "SEQ_2_SEQ_LM": "seq2seq",
}
_PLAIN = "plain LoRA is trained"

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
            "target_modules": LAYERS,
            "modules_to_save": WHOLE_LAYERS,
            "bias": Same(("none",), "biases stay as they are", "biases stay as they are here"),
            "lora_bias": Off("adapters have no bias"),
            "init_lora_weights": Same((True,), "an adapter starts as zero", "an adapter starts as zero here"),
            "fan_in_fan_out": Automatic("the layer's own class says it"),
            "inference_mode": NotNeeded("a run trains"),
            "auto_mapping": Automatic("the model's own class says it"),
            "peft_version runtime_config": OTHER_TOOL,
            "exclude_modules": Off("tuning.target_modules names the layers"),
            "layers_to_transform layers_pattern": Off("every layer of a name gets an adapter"),
            "rank_pattern alpha_pattern": Off("all adapters have one rank and one scale"),
            "layer_replication": Off("the model keeps its layers"),
            "trainable_token_indices": Off("tuning.modules_to_save trains all embeddings"),
            "target_parameters": Off("adapters are for layers"),
            "ensure_weight_tying": Off("it is not passed on"),
            "*_config use_* alora_*": Off(_PLAIN),
            "megatron_*": Off(SEVERAL_PROCESSES),
            "qalora_*": NotNeeded(_PLAIN),
        },
    ),
    groups=(method("peft_type", {"LORA": "lora"}, lora=("r",)),),
)
