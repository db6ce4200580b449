"""`python -m tui_trainer.models.answering`: the process behind `AnsweringChild`. A question is a line of standard input
that names a module and what its function `answer` is given; the answer is a line of standard output. It ends with its
input, and when no question has come for `_PATIENCE_SECONDS`: torch and transformers hold some hundred megabytes."""

import json
import logging
import os
import select
import sys
import warnings
from importlib import import_module

from tui_trainer.models.child import failure_words

_PATIENCE_SECONDS = 30.0


def _answer(line: str) -> dict[str, object]:
    """Why there is no answer, in one line: whatever torch, a model or its config raise."""
    try:
        asked = json.loads(line)
        return {"answer": import_module(asked["module"]).answer(asked["question"])}
    except Exception as error:
        return {"failed": failure_words(error).removeprefix("ValueError: ")}


def main() -> None:
    """Answer until nobody asks."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    # What libraries print is no answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    while select.select([sys.stdin], [], [], _PATIENCE_SECONDS)[0] and (line := sys.stdin.readline()):
        print(json.dumps(_answer(line)), file=answers, flush=True)


if __name__ == "__main__":
    main()
