"""Models as Unsloth loads and adapts them, in the environment of its own where a run with it trains.

Unsloth needs older libraries than this program may have, and changes classes of transformers when it is imported. So
it never comes into this process: what trains with it runs in the other environment's Python, on this package's code.
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
from tui_trainer.models.loading import keep_soft_cap, settle_padding
from tui_trainer.runs.registry import state_folder
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.worker.answering import begin_anew
from tui_trainer.worker.questions import MODULE as WORKER

if TYPE_CHECKING:
    import torch

NAME: Final = "unsloth"
PROVIDER: Final = "model.provider"
INSTALL: Final = f"`tui-trainer install {NAME}`"
IN_THE_MODEL: Final = "unsloth kernels"
NOT_IN_THE_MODEL: Final = "unsloth kernels missing"
PLATFORM: Final = "Linux"
"""WSL is one too. Source: Unsloth's documentation, "Requirements": an NVIDIA card with compute capability 7.0."""
FAMILIES: Final = frozenset({"llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3"})
_MADE_FILE: Final = "made.json"


def is_asked(config: Config) -> bool:
    return config.model.provider == NAME


def environment_folder() -> Path:
    return state_folder() / "environments" / NAME


def environment_python(folder: Path) -> Path:
    return folder / "bin" / "python"


def requirements() -> list[str]:
    """What its environment holds: Unsloth, and what this program needs without its extras."""
    own = metadata.requires("tui-trainer") or []
    return [NAME, *(one for one in own if "extra ==" not in one)]


def mark_made(folder: Path, version: str) -> None:
    """From now on the environment counts."""
    made = {"version": version, "requirements": requirements()}
    (folder / _MADE_FILE).write_text(json.dumps(made, indent=1), encoding="utf-8")


def version_here() -> str:
    """Of the Unsloth that is installed for this version of the program; empty where none is."""
    folder = environment_folder()
    with suppress(OSError, ValueError, LookupError, TypeError):
        made = json.loads((folder / _MADE_FILE).read_bytes())
        if made["requirements"] == requirements() and environment_python(folder).exists():
            return str(made["version"])
    return ""


def environment_problems(config: Config) -> list[Problem]:
    """That it has no environment here, or one of another version of this program."""
    if not is_asked(config) or version_here():
        return []
    message = f"{NAME}, which has its own environment, is not installed for this version of the program"
    return [Problem(message=message, key=PROVIDER, where=str(environment_folder()), hint=f"install it with {INSTALL}")]


def python_of(config: Config) -> str:
    """The Python that a run of these settings trains with."""
    return str(environment_python(environment_folder())) if is_asked(config) else sys.executable


def module_words(config: Config, module: str) -> list[str]:
    """What follows `-m` to run a module of this package there: Unsloth is imported before anything of it."""
    return [__name__, module] if is_asked(config) else [module]


def python_variables(config: Config) -> dict[str, str]:
    """Environment variables with which that Python finds this package, and nothing else of this environment.

    Raises FolderError where the state folder cannot be written.
    """
    if not is_asked(config):
        return {}
    package = Path(tui_trainer.__file__).resolve().parent
    # A folder for each place of the package: two versions of the program may run at the same time.
    place = environment_folder().parent / f"package-{hashlib.sha256(str(package).encode()).hexdigest()[:12]}"
    try:
        place.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            (place / package.name).symlink_to(package, target_is_directory=True)
    except OSError as error:
        raise FolderError(f"{place} cannot be written: {system_reason(error)}") from None
    return {"PYTHONPATH": str(place)}


def change_over(config: Config) -> None:
    """In a worker: begin it anew in the Python that these settings train with, with the same question. Returns where
    this is that Python already."""
    if is_asked(config) and NAME not in sys.modules:
        begin_anew([python_of(config), "-P", "-m", *module_words(config, WORKER)], python_variables(config))


def load_model(folder: Path, config: Config, dtype: torch.dtype, device: torch.device) -> Any:
    """A language model with its own weights, as Unsloth loads it. Raises ConfigError."""
    from transformers import AutoConfig
    from unsloth import FastLanguageModel

    model, tuning = config.model, config.tuning
    try:
        shape = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=model.trust_remote_code)
        loaded, _ = FastLanguageModel.from_pretrained(
            model_name=str(folder),
            # It cuts what is longer, without a word.
            max_seq_length=getattr(shape.get_text_config(), "max_position_embeddings", None) or config.data.max_length,
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
    except Exception as error:  # whatever its parts raise
        sentence = one_line(str(error), 240) or type(error).__name__
        raise bad_model(
            f"{NAME} cannot load the model: {sentence}", f"set {PROVIDER} = transformers", str(folder)
        ) from None
    keep_soft_cap(loaded)
    settle_padding(loaded, CAUSAL, None)
    return loaded


def adapt(model: Any, config: Config) -> Any:
    """The model with LoRA adapters, as Unsloth makes them: with its own backward pass where it has one."""
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


def own_modules(model: Any) -> tuple[int, int]:
    """How many modules of a model have a forward pass of Unsloth's, and how many modules there are.

    It puts functions of its own in the place of a class's `forward`, or of a single module's; those that it writes anew
    and compiles lie in modules named `unsloth_compiled_...`. Source: `pre_patch` and `patch_peft_model` in
    unsloth/models/llama.py, and unsloth_zoo/compiler.py.
    """
    modules = list(model.modules())
    return sum(_is_own(module.forward) for module in modules), len(modules)


def _is_own(forward: Any) -> bool:
    function = unwrap(getattr(forward, "__func__", forward))
    return str(getattr(function, "__module__", "")).partition(".")[0].startswith(NAME)


def _checkpointing(config: Config) -> str | bool:
    """Its own keeps the layers' inputs on the host."""
    return NAME if config.training.gradient_checkpointing else False


def _main() -> None:
    """`python -m tui_trainer.models.unsloth MODULE ARGUMENTS`: that module, where Unsloth was imported before."""
    # It greets on standard output, which is for answers.
    with redirect_stdout(sys.stderr):
        import_module(NAME)
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
