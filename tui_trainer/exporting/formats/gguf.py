"""GGUF, for llama.cpp and what is built on it, by llama.cpp's own converter, in the precision of the stored weights.

The certificate reads the file back with the package `gguf`: its tensors and its tokenizer.
"""

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
from tui_trainer.models.heads import CLASSIFYING, auto_class
from tui_trainer.worker.child import Child

FILE = "model.gguf"
_SCRIPT = "convert_hf_to_gguf.py"
_GET = "`git clone --depth 1 https://github.com/ggml-org/llama.cpp ~/llama.cpp`"


class Gguf(Format):
    name = "gguf"
    title = "GGUF for llama.cpp"
    libraries: tuple[str, ...] = ("gguf", "sentencepiece")
    against_towers = (
        "llama.cpp keeps vision towers in a second file (mmproj), which is neither written nor measured here: "
        "to export the language model alone, train with model.text_only = true"
    )

    def refusal(self, trained: TrainedModel) -> str:
        if trained.head in CLASSIFYING:
            return "llama.cpp does not support classifiers"
        if _converter() is None:
            return f"llama.cpp's converter was not found: run {_GET}, or set LLAMA_CPP_DIR to its folder"
        return ""

    def needed_bytes(self, trained: TrainedModel) -> int:
        return (2 if trained.base else 1) * trained.weight_bytes

    def write(self, trained: TrainedModel, folder: Path, tell: Progress) -> None:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            whole = Path(place)
            if trained.base:
                merged.FORMAT.write(trained, whole, tell)
            else:
                for path in trained.folder.iterdir():
                    (whole / path.name).symlink_to(path)
            _say_begin_and_end(trained, whole)
            tell("converting", 0, None, "")
            command = [sys.executable, str(_converter()), str(whole), "--outfile", str(folder / FILE)]
            # That of most tensors, in llama.cpp's words.
            [(most, _)] = Counter(facts.dtype for facts in read_headers(whole).values()).most_common(1)
            kind = {"F32": "f32", "BF16": "bf16", "F16": "f16"}.get(most, "auto")
            # In the group of this process: a cancel of the export ends it as well.
            with Child([*command, "--outtype", kind], group="ours") as converter:
                list(converter.all_lines())
                if converter.process.wait() or not (folder / FILE).is_file():
                    raise RunError(f"llama.cpp's converter failed: {converter.failure}")

    def load(self, trained: TrainedModel, folder: Path) -> Any:
        return auto_class(trained.head).from_pretrained(folder, gguf_file=FILE, dtype=trained.compared_dtype).eval()

    def tokenizer(self, trained: TrainedModel, folder: Path) -> Any:
        """Cuts as the trained one does, with the numbers of the file. The order of merges is not read back: of
        SentencePiece's kind the file has scores, from which transformers makes another order than llama.cpp has."""
        from gguf import GGUFReader

        fields = GGUFReader(folder / FILE).fields
        told = {name.removeprefix("tokenizer.ggml."): field.contents() for name, field in fields.items()}
        numbers = {token: number for number, token in enumerate(told["tokens"])}
        own = load_tokenizer(trained)
        before = [told["bos_token_id"]] if told.get("add_bos_token") else []
        behind = [told["eos_token_id"]] if told.get("add_eos_token") else []

        def read(text: str, **_: bool) -> dict[str, list[int]]:
            return {"input_ids": [*before, *(numbers.get(token, -1) for token in own.tokenize(text)), *behind]}

        return read


def _say_begin_and_end(trained: TrainedModel, folder: Path) -> None:
    """Whether the tokenizer puts a token before and behind a text: the converter takes a usual answer where its
    settings do not say."""
    tokenizer = tokenizer_in(trained, folder)
    ids = tokenizer("a")["input_ids"]
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_bytes())
    settings["add_bos_token"] = ids[0] == tokenizer.bos_token_id
    settings["add_eos_token"] = ids[-1] == tokenizer.eos_token_id
    path.unlink()  # it may be a link
    path.write_text(json.dumps(settings, indent=1))


def _converter() -> Path | None:
    folder = Path(os.environ.get("LLAMA_CPP_DIR") or "~/llama.cpp").expanduser()
    places = [folder / _SCRIPT, Path(shutil.which(_SCRIPT) or folder / _SCRIPT)]
    return next((place for place in places if place.is_file()), None)


FORMAT = Gguf()
