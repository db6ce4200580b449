"""GGUF for llama.cpp and programs built on it, in the precision of the stored weights, by llama.cpp's own converter.

The comparison reads the weights and the tokenizer back from the file with the package `gguf`. The converter comes from
the source package of llama-cpp-python, which `tui-trainer install gguf` unpacks."""

import json
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

from tui_trainer.data.progress import Progress
from tui_trainer.errors import RunError
from tui_trainer.exporting import run_converter
from tui_trainer.exporting.contract import Format
from tui_trainer.exporting.formats import merged
from tui_trainer.exporting.gguf_tokens import FileTokenizer
from tui_trainer.exporting.serving import MODELFILE, chat_prompts, context_length, modelfile
from tui_trainer.exporting.trained_model import TrainedModel, config_in, load_tokenizer, tokenizer_in
from tui_trainer.models.config_json import read_json
from tui_trainer.models.files.weights import read_headers
from tui_trainer.models.heads import CLASSIFYING_HEADS, auto_class
from tui_trainer.runs.registry import state_folder
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.worker.child import Child

FILE = "model.gguf"
SCRIPT: Final = "convert_hf_to_gguf.py"
VERSION: Final = "0.3.36"
"""Version of llama-cpp-python with whose converter exports were tested."""


class Gguf(Format):
    name = "gguf"
    title = "GGUF for llama.cpp"
    libraries: tuple[str, ...] = ("gguf", "sentencepiece")
    tower_refusal = (
        "llama.cpp needs the vision towers in a second file (mmproj), which tui-trainer cannot write; "
        "to export only the language model, train with model.text_only = true"
    )

    def refusal(self, trained: TrainedModel) -> str:
        if trained.head in CLASSIFYING_HEADS:
            return "llama.cpp does not support classifiers"
        if _converter() is None:
            advice = "unset LLAMA_CPP_DIR, whose folder lacks it, and run" if os.environ.get("LLAMA_CPP_DIR") else "run"
            return f"llama.cpp's converter was not found: {advice} `tui-trainer install {Gguf.name}`"
        return ""

    def needed_bytes(self, trained: TrainedModel) -> int:
        return (2 if trained.base else 1) * trained.weight_bytes

    def write(self, trained: TrainedModel, folder: Path, progress: Progress) -> None:
        with tempfile.TemporaryDirectory(dir=folder) as temporary_path:
            model_folder = Path(temporary_path)
            if trained.base:
                merged.FORMAT.write(trained, model_folder, progress)
            else:
                for path in trained.folder.iterdir():
                    (model_folder / path.name).symlink_to(path)
            _write_added_tokens(trained, model_folder)
            if trained.task.holds_conversations:
                _write_readme(trained, model_folder, folder)
            progress("converting", 0, None, "")
            command = [sys.executable, run_converter.__file__, str(_converter()), str(model_folder)]
            options = ["--outfile", str(folder / FILE), "--outtype", self._out_type(model_folder)]
            options += ["--model-name", trained.run.name]
            # The converter is in this process group, so that cancelling the export also ends the converter.
            with Child([*command, *options], group="ours") as converter:
                list(converter.all_lines())
                if converter.process.wait() or not (folder / FILE).is_file():
                    raise RunError(f"llama.cpp's converter failed: {converter.failure}")
        if trained.task.holds_conversations:
            tokenizer = load_tokenizer(trained)
            file_tokenizer = FileTokenizer(_settings(folder), tokenizer)
            for row in chat_prompts(trained, tokenizer)[0]:
                if file_tokenizer.prompt_ids(row["text"]) != row["ids"]:
                    message = f"llama.cpp would read other tokens than training in the conversation `{row['name']}`"
                    raise RunError(f"{message}: use the format merged, or another chat template")

    def _out_type(self, folder: Path) -> str:
        """Return llama.cpp's name of the precision of most tensors."""
        [(dtype, _)] = Counter(facts.dtype for facts in read_headers(folder).values()).most_common(1)
        return {"F32": "f32", "BF16": "bf16", "F16": "f16"}.get(dtype, "auto")

    def load(self, trained: TrainedModel, folder: Path) -> Any:
        return auto_class(trained.head).from_pretrained(folder, gguf_file=FILE, dtype=trained.compared_dtype).eval()

    def tokenizer(self, trained: TrainedModel, folder: Path) -> Any:
        """Return a callable with the token ids that llama.cpp computes with the file."""
        tokenizer, settings = load_tokenizer(trained), _settings(folder)
        if trained.task.holds_conversations:
            # `write` compares the begin of conversations, where no tokenizer adds what a chat template writes.
            settings["add_bos_token"] = tokenizer("a")["input_ids"][0] == settings.get("bos_token_id")
        return FileTokenizer(settings, tokenizer)


def _settings(folder: Path) -> dict[str, Any]:
    """Return the fields of the tokenizer in an export, without their prefix."""
    from gguf import GGUFReader

    fields, prefix = GGUFReader(folder / FILE).fields, "tokenizer.ggml."
    return {name.removeprefix(prefix): field.contents() for name, field in fields.items() if name.startswith(prefix)}


def _write_added_tokens(trained: TrainedModel, folder: Path) -> None:
    """Write into tokenizer_config.json whether begin and end tokens are added, which the converter would guess. Also
    write the stop token as the eos token, because llama.cpp stops there, and at few others by name."""
    tokenizer = tokenizer_in(trained, folder)
    ids = tokenizer("a")["input_ids"]
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_bytes())
    if trained.task.holds_conversations:
        # A chat template writes the BOS itself, and llama.cpp removes that one if it adds one.
        ids = [*chat_prompts(trained, tokenizer)[0][0]["ids"], ids[-1]]
    settings["add_bos_token"] = ids[0] == tokenizer.bos_token_id
    settings["add_eos_token"] = ids[-1] == tokenizer.eos_token_id
    stops = (read_json(folder / "generation_config.json") or {}).get("eos_token_id")
    if isinstance(stops, list) and stops and not settings["add_eos_token"]:
        settings["eos_token"] = tokenizer.convert_ids_to_tokens(stops[0])
    path.unlink()  # may be a link to the run's own file
    path.write_text(json.dumps(settings, indent=1))


def _write_readme(trained: TrainedModel, model_folder: Path, folder: Path) -> None:
    """Write Ollama's Modelfile, and a README.md with the commands of servers."""
    tokenizer = tokenizer_in(trained, model_folder)
    settings = read_json(model_folder / "generation_config.json") or {}
    stop_ids = settings.get("eos_token_id") or []
    stops = tokenizer.convert_ids_to_tokens(stop_ids if isinstance(stop_ids, list) else [stop_ids])
    length = context_length(trained, tokenizer, config_in(trained, model_folder))
    (folder / MODELFILE).write_text(modelfile(trained, tokenizer, FILE, stops, length, settings), encoding="utf-8")
    name = re.sub(r"[^a-z0-9_.-]+", "-", trained.run.name.lower()).strip("-.") or "model"
    text = f"""# {one_line(trained.run.name)}

A chat model that ends its answers with {" or ".join(f"`{stop}`" for stop in stops)}. Start one of these servers in this
folder, then compare its tokens with those of training. vLLM reads the export `merged` in FOLDER, because a GGUF file
needs its plugin:

```
llama-server -m {FILE} --jinja --ctx-size {length} --port 8080
tui-trainer check-serving http://127.0.0.1:8080 .

ollama create {name} -f {MODELFILE}   # while `ollama serve` runs
tui-trainer check-serving http://127.0.0.1:11434 . --model {name}

vllm serve FOLDER --max-model-len {length}
tui-trainer check-serving http://127.0.0.1:8000 .
```
"""
    (folder / "README.md").write_text(text, encoding="utf-8")


def converter_folder() -> Path:
    """Return the folder into which `tui-trainer install gguf` unpacks the converter of this version."""
    return state_folder() / "llama.cpp" / VERSION


def _converter() -> Path | None:
    """Return the path of llama.cpp's converter, or None if it is not installed. A folder that the user names comes
    first, then the tested version, then a clone."""
    named_folder = os.environ.get("LLAMA_CPP_DIR")
    folders = [Path(named_folder)] if named_folder else [converter_folder(), Path("~/llama.cpp")]
    candidates = [folder.expanduser() / SCRIPT for folder in folders]
    if on_path := shutil.which(SCRIPT):
        candidates.append(Path(on_path))
    return next((path for path in candidates if path.is_file()), None)


FORMAT = Gguf()
