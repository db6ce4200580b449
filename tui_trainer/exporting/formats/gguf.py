"""GGUF for llama.cpp and programs built on it, in the precision of the stored weights, by llama.cpp's own converter.

The comparison reads the weights and the tokenizer back from the file with the package `gguf`."""

import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tui_trainer.data.progress import Progress
from tui_trainer.errors import RunError
from tui_trainer.exporting.contract import Format
from tui_trainer.exporting.formats import merged
from tui_trainer.exporting.trained_model import TrainedModel, load_tokenizer, tokenizer_in
from tui_trainer.models.files.weights import read_headers
from tui_trainer.models.heads import CLASSIFYING_HEADS, auto_class
from tui_trainer.worker.child import Child

FILE = "model.gguf"
_SCRIPT = "convert_hf_to_gguf.py"
_GET = "`git clone --depth 1 https://github.com/ggml-org/llama.cpp ~/llama.cpp`"


class Gguf(Format):
    name = "gguf"
    title = "GGUF for llama.cpp"
    libraries: tuple[str, ...] = ("gguf", "sentencepiece")
    tower_refusal = (
        "llama.cpp keeps vision towers in a second file (mmproj), which is neither written nor measured here; "
        "to export the language model alone, train with model.text_only = true"
    )

    def refusal(self, trained: TrainedModel) -> str:
        if trained.head in CLASSIFYING_HEADS:
            return "llama.cpp does not support classifiers"
        if _converter() is None:
            return f"llama.cpp's converter was not found: run {_GET}, or set LLAMA_CPP_DIR to its folder"
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
            progress("converting", 0, None, "")
            command = [sys.executable, str(_converter()), str(model_folder), "--outfile", str(folder / FILE)]
            # The export has the precision of most tensors, under llama.cpp's name.
            [(dtype, _)] = Counter(facts.dtype for facts in read_headers(model_folder).values()).most_common(1)
            out_type = {"F32": "f32", "BF16": "bf16", "F16": "f16"}.get(dtype, "auto")
            # The converter is in this process group, so that cancelling the export also ends the converter.
            with Child([*command, "--outtype", out_type], group="ours") as converter:
                list(converter.all_lines())
                if converter.process.wait() or not (folder / FILE).is_file():
                    raise RunError(f"llama.cpp's converter failed: {converter.failure}")

    def load(self, trained: TrainedModel, folder: Path) -> Any:
        return auto_class(trained.head).from_pretrained(folder, gguf_file=FILE, dtype=trained.compared_dtype).eval()

    def tokenizer(self, trained: TrainedModel, folder: Path) -> Any:
        """Return a tokenizer that splits texts like the trained one, but uses the token ids of the file.

        The merge order is not compared: for SentencePiece models the file has scores instead, from which transformers
        derives another order than llama.cpp does."""
        from gguf import GGUFReader

        fields = GGUFReader(folder / FILE).fields
        settings = {name.removeprefix("tokenizer.ggml."): field.contents() for name, field in fields.items()}
        ids = {token: index for index, token in enumerate(settings["tokens"])}
        own_tokenizer = load_tokenizer(trained)
        bos_ids = [settings["bos_token_id"]] if settings.get("add_bos_token") else []
        eos_ids = [settings["eos_token_id"]] if settings.get("add_eos_token") else []

        def encode(text: str, **_: bool) -> dict[str, list[int]]:
            return {"input_ids": [*bos_ids, *(ids.get(token, -1) for token in own_tokenizer.tokenize(text)), *eos_ids]}

        return encode


def _write_added_tokens(trained: TrainedModel, folder: Path) -> None:
    """Write into tokenizer_config.json whether begin and end tokens are added, which the converter would guess."""
    tokenizer = tokenizer_in(trained, folder)
    ids = tokenizer("a")["input_ids"]
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_bytes())
    settings["add_bos_token"] = ids[0] == tokenizer.bos_token_id
    settings["add_eos_token"] = ids[-1] == tokenizer.eos_token_id
    path.unlink()  # may be a link to the run's own file
    path.write_text(json.dumps(settings, indent=1))


def _converter() -> Path | None:
    """Return the path of llama.cpp's converter, or None if it is not installed."""
    folder = Path(os.environ.get("LLAMA_CPP_DIR") or "~/llama.cpp").expanduser()
    candidates = [folder / _SCRIPT, Path(shutil.which(_SCRIPT) or folder / _SCRIPT)]
    return next((path for path in candidates if path.is_file()), None)


FORMAT = Gguf()
