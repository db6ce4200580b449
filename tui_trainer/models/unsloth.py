"""Load and adapt models with Unsloth, inside of its own environment, and locate that environment.

Unsloth needs older libraries than this program may use, and patches classes of transformers when it is imported. So
this process never imports it: a run with Unsloth uses the Python of the other environment, with the code of this
package.
"""

from __future__ import annotations

import hashlib
import json
import runpy
import sys
from contextlib import redirect_stdout, suppress
from importlib import import_module, metadata
from inspect import unwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import tui_trainer
from tui_trainer.config.fields import names_in
from tui_trainer.config.sections import Config
from tui_trainer.errors import FolderError, Problem, system_reason
from tui_trainer.models.config_json import bad_model
from tui_trainer.models.heads import CAUSAL
from tui_trainer.models.loading import set_padding, use_eager_for_soft_cap
from tui_trainer.runs.registry import state_folder
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.worker.answering import restart_worker
from tui_trainer.worker.questions import MODULE as WORKER

if TYPE_CHECKING:
    import torch

PACKAGE_NAME: Final = "unsloth"
PROVIDER: Final = "model.provider"
INSTALL: Final = f"`tui-trainer install {PACKAGE_NAME}`"
KERNELS_IN_MODEL: Final = "unsloth kernels"
KERNELS_MISSING: Final = "unsloth kernels missing"
PLATFORM: Final = "Linux"
"""Includes WSL. Source: Unsloth's documentation, "Requirements", which also needs an NVIDIA GPU with capability 7.0."""
FAMILIES: Final = frozenset({"llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3"})
_MADE_FILE: Final = "made.json"


def is_asked(config: Config) -> bool:
    return config.model.provider == PACKAGE_NAME


def environment_folder() -> Path:
    return state_folder() / "environments" / PACKAGE_NAME


def environment_python(folder: Path) -> Path:
    return folder / "bin" / "python"


def requirements() -> list[str]:
    """Return the packages of Unsloth's environment: Unsloth, and the requirements of this program without extras."""
    own_requirements = metadata.requires("tui-trainer") or []
    return [PACKAGE_NAME, *(requirement for requirement in own_requirements if "extra ==" not in requirement)]


def record_installation(folder: Path, version: str) -> None:
    """Record that the environment is complete."""
    record = {"version": version, "requirements": requirements()}
    (folder / _MADE_FILE).write_text(json.dumps(record, indent=1), encoding="utf-8")


def installed_version() -> str:
    """Return the version of Unsloth that is installed for this version of the program, else ""."""
    folder = environment_folder()
    with suppress(OSError, ValueError, LookupError, TypeError):
        record = json.loads((folder / _MADE_FILE).read_bytes())
        if record["requirements"] == requirements() and environment_python(folder).exists():
            return str(record["version"])
    return ""


def environment_problems(config: Config) -> list[Problem]:
    """Return a problem if a run needs Unsloth and its environment is missing or of another program version."""
    if not is_asked(config) or installed_version():
        return []
    message = f"{PACKAGE_NAME}, which has its own environment, is not installed for this version of the program"
    return [Problem(message=message, key=PROVIDER, where=str(environment_folder()), hint=f"install it with {INSTALL}")]


def python_path(config: Config) -> str:
    """Return the Python interpreter that trains with these settings."""
    return str(environment_python(environment_folder())) if is_asked(config) else sys.executable


def module_arguments(config: Config, module: str) -> list[str]:
    """Return the arguments after `-m` that run a module of this package with `python_path`, importing Unsloth first."""
    return [__name__, module] if is_asked(config) else [module]


def python_variables(config: Config) -> dict[str, str]:
    """Return environment variables with which `python_path` finds this package, and nothing else of this environment.

    Raise FolderError if the state folder cannot be written."""
    if not is_asked(config):
        return {}
    package_folder = Path(tui_trainer.__file__).resolve().parent
    # One folder for each location of the package, because two versions of the program may run at the same time.
    folder = environment_folder().parent / f"package-{hashlib.sha256(str(package_folder).encode()).hexdigest()[:12]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            (folder / package_folder.name).symlink_to(package_folder, target_is_directory=True)
    except OSError as error:
        raise FolderError(f"{folder} cannot be written: {system_reason(error)}") from None
    return {"PYTHONPATH": str(folder)}


def restart_in_unsloth_python(config: Config) -> None:
    """Restart a worker, with the same question, in the Python of these settings, unless it runs there already."""
    if is_asked(config) and PACKAGE_NAME not in sys.modules:
        restart_worker([python_path(config), "-P", "-m", *module_arguments(config, WORKER)], python_variables(config))


def load_model(folder: Path, config: Config, dtype: torch.dtype, device: torch.device) -> Any:
    """Load a causal model with its weights by Unsloth. Raise ConfigError."""
    from transformers import AutoConfig
    from unsloth import FastLanguageModel

    model, tuning = config.model, config.tuning
    try:
        stored = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=model.trust_remote_code)
        patched_model, _ = FastLanguageModel.from_pretrained(
            model_name=str(folder),
            # Unsloth silently truncates longer rows.
            max_seq_length=getattr(stored.get_text_config(), "max_position_embeddings", None) or config.data.max_length,
            dtype=dtype,
            load_in_4bit=tuning.in_four_bits,
            load_in_16bit=not tuning.in_four_bits and tuning.has_adapter,
            full_finetuning=not tuning.has_adapter,
            device_map={"": device},
            trust_remote_code=model.trust_remote_code,
            use_gradient_checkpointing=_checkpointing(config),
            use_exact_model_name=True,
            local_files_only=True,
        )
    except Exception as error:  # Unsloth documents no exception types
        sentence = one_line(str(error), 240) or type(error).__name__
        problem = f"{PACKAGE_NAME} cannot load the model: {sentence}"
        raise bad_model(problem, f"set {PROVIDER} = transformers", str(folder)) from None
    use_eager_for_soft_cap(patched_model)
    set_padding(patched_model, CAUSAL, None)
    return patched_model


def adapt(model: Any, config: Config) -> Any:
    """Return the model with LoRA adapters made by Unsloth, which have its backward pass where available."""
    from unsloth import FastLanguageModel

    tuning = config.tuning
    names = names_in(tuning.target_modules)
    return FastLanguageModel.get_peft_model(
        model,
        r=tuning.r,
        lora_alpha=tuning.lora_alpha,
        lora_dropout=tuning.lora_dropout,
        target_modules="all-linear" if names == ("all-linear",) else list(names),
        modules_to_save=list(names_in(tuning.modules_to_save)) or None,
        use_rslora=tuning.use_rslora,
        use_gradient_checkpointing=_checkpointing(config),
        random_state=config.training.seed,
    )


def count_patched_modules(model: Any) -> tuple[int, int]:
    """Return the number of modules whose forward pass is Unsloth's, and the number of all modules.

    Unsloth replaces `forward` of a class or of a single module. Functions that it generates and compiles are in modules
    named `unsloth_compiled_...`. Source: unsloth's `pre_patch` and `patch_peft_model`, unsloth_zoo/compiler.py."""
    modules = list(model.modules())
    return sum(_is_unsloth_forward(module.forward) for module in modules), len(modules)


def _is_unsloth_forward(forward: Any) -> bool:
    function = unwrap(getattr(forward, "__func__", forward))
    return str(getattr(function, "__module__", "")).partition(".")[0].startswith(PACKAGE_NAME)


def _checkpointing(config: Config) -> str | bool:
    """Return the checkpointing argument. Unsloth's own checkpointing stores the inputs of layers in host memory."""
    return PACKAGE_NAME if config.training.gradient_checkpointing else False


def _main() -> None:
    """Import Unsloth, then run a module: `python -m tui_trainer.models.unsloth MODULE ARGUMENTS`."""
    # Unsloth prints a greeting, but standard output is for answers.
    with redirect_stdout(sys.stderr):
        import_module(PACKAGE_NAME)
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
