"""One story per task on the command line: data, plan, preview, training, evaluation, predictions, export.

The tests look only at printed output and at files.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tests.tiny_models import save_tiny_model
from tui_trainer.cli import main

ANIMALS = ("sheep", "hen", "cow", "horse")
ROWS, STEPS = 60, 30
TINY = {
    "model.scratch.hidden_size": 16, "model.scratch.num_hidden_layers": 1, "model.scratch.num_attention_heads": 2,
    "model.scratch.vocab_size": 300, "data.max_length": 48, "data.eval_fraction": 0.25,
    "training.effective_batch_size": 8, "training.learning_rate": 0.02, "training.max_steps": STEPS,
    "evaluation.eval_steps": 10, "checkpoint.save_steps": 10, "logging.sample_steps": STEPS,
}  # fmt: skip
SCRATCH = ("--set", "model.init=scratch")
SKIP = ("--set", "data.on_bad_rows=skip", "--set", "evaluation.max_eval_rows=0")


def sentence(n: int) -> str:
    return f"The {ANIMALS[n % 4]} {'runs ' * (n % 5)}home {n}"


def jsonl(path: str, rows: list[Any]) -> Path:
    Path(path).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return Path(path)


def rows_of(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


class Terminal:
    """A terminal in which commands are typed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def run(self, *words: object, code: int = 0) -> tuple[str, str]:
        """Run a command, check its exit code, and return its output and its errors."""
        self._capsys.readouterr()
        ended = main([str(word) for word in words])
        shown = self._capsys.readouterr()
        assert ended == code, shown.out + shown.err
        assert "Traceback" not in shown.out + shown.err
        return shown.out, shown.err

    def refuses(self, words: tuple[object, ...], sentence: str) -> None:
        """Check that training refuses bad rows in one line that names the row and the way out."""
        _, errors = self.run("--no-ui", *words, code=2)
        # Slow preparations are announced before.
        (message,) = [line for line in errors.splitlines() if "still reading" not in line]
        assert sentence in message and "data.on_bad_rows=skip" in message, message
        assert not list(Path("runs").glob("*"))

    def trains(self, name: str, words: tuple[object, ...], row: str, score: str = "") -> None:
        """Plan, preview, train and evaluate. `row` must be in the preview, `score` in the evaluations."""
        pairs = TINY | {"output.name": name}
        words = (*(word for pair in pairs.items() for word in ("--set", "=".join(map(str, pair)))), *words)
        plan = json.loads(self.run("plan", *words, "--json")[0])
        assert plan["total_steps"]["value"] == STEPS and plan["memory_bytes"]["value"] > 0
        assert row in " ".join(self.run("preview", *words, "-n", "8")[0].split())
        assert not list(Path("runs").glob("*")), "nothing is written before the training"

        shown, _ = self.run("--no-ui", *words)
        assert shown.startswith(f"run {name} in {Path('runs', name).absolute()}\n")
        held_out = re.findall(r"step (\d+): held-out loss ([\d.]+)([^\n]*)", shown)
        losses = [float(loss) for loss in re.findall(r"recent training loss ([\d.]+)", shown)]
        assert [step for step, *_ in held_out] == ["10", "20", "30"] and len(losses) == 3, shown
        assert losses[-1] < losses[0] and float(held_out[-1][1]) < float(held_out[0][1]), shown
        assert f"finished after {STEPS} steps" in shown and str(Path("runs", name, "model").absolute()) in shown
        assert not score or all(re.search(rf"(?i)\b{score} [01]\.\d+", words) for *_, words in held_out), held_out

        run = Path("runs", name)
        assert {"config.toml", "plan.json", "journal.jsonl", "model", "checkpoints"} <= {x.name for x in run.iterdir()}
        assert {"step-20", "step-30"} <= {x.name for x in (run / "checkpoints").iterdir()}
        [weights] = (run / "model").glob("*.safetensors")
        assert weights.stat().st_size > 0 and (run / "model" / "README.md").is_file()
        assert re.search(rf"(?m)^{name} +finished +30/30 ", self.run("runs")[0])

        [model] = json.loads(self.run("evaluate", name, "--against", "none", "--json")[0])["models"]
        assert model["loss"] == pytest.approx(float(held_out[-1][1]), abs=2e-3)
        assert not score or 0 <= model["scores"][score] <= 1

    def predicts(self, name: str, rows: list[dict[str, Any]], *more: str) -> list[dict[str, Any]]:
        """Predict the rows, check that they come back unchanged, and return the predictions."""
        asked = jsonl("asked.jsonl", rows)
        shown, _ = self.run("predict", name, "--data", asked, "--out", "out.jsonl", *more)
        assert shown.startswith(f"out.jsonl: {len(rows)} rows, ")
        found = rows_of("out.jsonl")
        assert [{key: row[key] for key in asked} for row, asked in zip(found, rows, strict=True)] == rows
        return [row["prediction"] for row in found]


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(capsys)


def test_causal_lm_story(terminal):
    """LoRA on a model in a folder, merged at the end."""
    save_tiny_model(Path("llama"), "llama")
    data = jsonl("texts.jsonl", [*({"text": sentence(n)} for n in range(ROWS)), {"text": 7}])
    words = ("--task", "causal_lm", "--model", "./llama", "--data", data, "--set", "tuning.method=lora")
    terminal.refuses(words, "texts.jsonl, line 61: the column 'text' is a number")
    terminal.trains("story", (*words, *SKIP), "1 bad")

    found = json.loads(terminal.run("evaluate", "story", "--json")[0])
    assert found["reference"]["name"] == "base" and found["models"][0]["loss"] < found["reference"]["loss"]
    text, errors = terminal.run("generate", "story", "The cow", "--max-new-tokens", "8", "--temperature", "0")
    assert text.startswith("The cow") and len(text) > len("The cow\n") and "an adapter on" in errors
    asked = [{"id": n, "text": "The hen"} for n in range(3)]
    assert all(one["text"] for one in terminal.predicts("story", asked, "--max-new-tokens", "5"))
    shown, _ = terminal.run("export", "story", "--to", "merged")
    merged = Path("runs/story/export/merged")
    assert str(merged.absolute()) in shown and (merged / "model.safetensors").is_file()
    assert json.loads((merged / "certificate.json").read_text())["is_good"]


def test_char_lm_story(terminal):
    """From scratch on a text file."""
    Path("book.txt").write_text("".join(f"{sentence(n)}.\n" for n in range(200)))
    terminal.trains("story", ("--task", "char_lm", *SCRATCH, "--data", "book.txt"), "The sheep")
    assert "trigram baseline" in Path("runs/story/model/README.md").read_text()
    one, two = (
        terminal.run("generate", "story", "The ", "--max-new-tokens", "9", "--seed", seed)[0] for seed in ("1", "1")
    )
    assert one == two and one.startswith("The ")
    [found] = terminal.predicts("story", [{"text": "The co"}], "--max-new-tokens", "3")
    assert 0 < len(found["text"]) <= 3
    _, errors = terminal.run("export", "story", "--to", "merged", code=2)
    assert "trained all weights" in errors


def test_chat_story(terminal):
    """From scratch with a chat template."""
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"Who is {n}?"},
                {"role": "assistant", "content": ANIMALS[n % 4]},
            ]
        }
        for n in range(ROWS)
    ]
    bad = {"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": None}]}
    words = ("--task", "chat", *SCRATCH, "--data", jsonl("talks.jsonl", [*rows, bad]))
    terminal.refuses(words, "talks.jsonl, line 61: ")
    terminal.trains("story", (*words, *SKIP), "1 bad")
    text, _ = terminal.run("generate", "story", "Who is 7?", "--temperature", "0", "--max-new-tokens", "12")
    assert text.strip() and "<|im_" not in text
    asked = [{"id": n, "messages": [{"role": "user", "content": f"Who is {n}?"}]} for n in range(3)]
    assert all(one["text"] for one in terminal.predicts("story", asked, "--max-new-tokens", "8"))


def test_preference_story(terminal):
    """LoRA on a model in a folder, which is its own reference."""
    save_tiny_model(Path("llama"), "llama")
    rows = [
        {
            "prompt": f"Who is {n}?",
            "chosen": f"the {ANIMALS[n % 4]}",
            "rejected": f"no {ANIMALS[(n + 1) % 4]}" + "!" * (n % 3),
        }
        for n in range(ROWS)
    ]
    data = jsonl("pairs.jsonl", [*rows, {"prompt": "Who?", "chosen": "me", "rejected": "me"}])
    words = ("--model", "./llama", "--data", data, "--set", "tuning.method=lora", "--set", "task.chat_template=chatml")
    terminal.refuses(words, "pairs.jsonl, line 61: both answers are the same")
    terminal.trains("story", (*words, *SKIP), "1 bad", "accuracy")
    assert json.loads(Path("runs/story/plan.json").read_text())["config"]["task"]["type"] == "preference"
    found = json.loads(terminal.run("evaluate", "story", "--json")[0])
    assert found["reference"]["loss"] == pytest.approx(math.log(2), abs=1e-4)
    assert found["reference"]["scores"]["accuracy"] == 0.5 < found["models"][0]["scores"]["accuracy"]
    text, _ = terminal.run("generate", "story", "Who is 7?", "--temperature", "0", "--max-new-tokens", "12")
    assert "<|im_" not in text
    asked = ("generate", "story", "Who is 7?", "--against", "base", "--max-new-tokens", "12")
    assert terminal.run(*asked)[0].splitlines()[1].split() == ["base", "tuned"]
    answers = json.loads(terminal.run(*asked, "--json")[0])["answers"]
    assert answers["tuned"] == text.strip() != answers["base"]
    shown, _ = terminal.run("export", "story", "--to", "merged")
    assert json.loads(Path("runs/story/export/merged/certificate.json").read_text())["is_good"], shown


def test_reward_story(terminal):
    """LoRA on a model in a folder. Its scores are those of plain transformers after the merge."""
    save_tiny_model(Path("llama"), "llama")
    rows = [
        {
            "prompt": f"Who is {n}?",
            "chosen": f"the {ANIMALS[n % 4]}",
            "rejected": f"no {ANIMALS[(n + 1) % 4]}" + "!" * (n % 3),
            "margin": n % 3 / 4,
        }
        for n in range(ROWS)
    ]
    swapped = rows[3] | {"chosen": rows[3]["rejected"], "rejected": rows[3]["chosen"]}
    data = jsonl("pairs.jsonl", [*rows, swapped])
    words = ("--task", "reward", "--model", "./llama", "--data", data, "--set", "tuning.method=lora")
    words = (*words, "--set", "task.chat_template=chatml", "--set", "data.max_length=96")
    terminal.refuses(words, "pairs.jsonl, line 61: the row prefers the answer that pairs.jsonl, line 4 rejects")
    terminal.trains("story", (*words, *SKIP), "label: rejected", "accuracy")
    card = Path("runs/story/model/README.md").read_text()
    assert "pipeline_tag: text-classification" in card and "reward chosen" in card

    for command in (("generate", "story", "Who is 7?"), ("chat", "story")):
        _, errors = terminal.run(*command, code=2)
        assert "`tui-trainer predict story --data FILE --out FILE` scores rows with a prompt and an answer" in errors
    asked = [{"id": n, "prompt": rows[n]["prompt"], "response": rows[n][side]} for n in range(3) for side in SIDES]
    scores = [found["score"] for found in terminal.predicts("story", asked)]
    assert all(better > worse for better, worse in zip(scores[::2], scores[1::2], strict=True))
    _, errors = terminal.run("predict", "story", "--data", data, "--out", "no.jsonl", code=2)
    assert "the rows are preferences with a better and a worse answer; use one row for each answer" in errors
    [found] = json.loads(terminal.run("evaluate", "story", "--data", jsonl("fair.jsonl", rows), "--json")[0])["models"]
    assert found["scores"]["accuracy"] > 0.9 and found["scores"]["reward_margin"] > 0

    shown, _ = terminal.run("export", "story", "--to", "merged")
    merged = Path("runs/story/export/merged")
    assert json.loads((merged / "certificate.json").read_text())["is_good"], shown
    assert scores_of_transformers(merged, asked) == pytest.approx(scores, abs=1e-4)


SIDES = ("chosen", "rejected")


def scores_of_transformers(folder: Path, rows: list[dict[str, Any]]) -> list[float]:
    """Return the scores of a reward model as its users compute them, one answer at a time."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    assert model.config.num_labels == 1
    scores = []
    for row in rows:
        texts = ("user", row["prompt"]), ("assistant", row["response"])
        conversation = [{"role": role, "content": text} for role, text in texts]
        inputs = tokenizer.apply_chat_template(conversation, return_dict=True, return_tensors="pt")
        scores.append(model(**inputs).logits.item())
    return scores


def pairs_of_verbs(*ends: str) -> list[dict[str, str]]:
    """Write a model, pairs and both answers of each pair, and return the pairs. The question decides which verb is
    better. `ends` are those of the two answers, and are swapped in half of the pairs."""
    save_tiny_model(Path("llama"), "llama")
    pairs = []
    for n in range(240):
        verbs_and_ends = zip(("walks", "jumps"), ends[::-1] if n // 4 % 2 else ends, strict=True)
        answers = [f"{ANIMALS[n % 4]} {n} {verb} {end}" for verb, end in verbs_and_ends]
        chosen, rejected = answers if n % 4 < 2 else answers[::-1]
        pairs.append({"prompt": f"What does {ANIMALS[n % 4]} {n} do?", "chosen": chosen, "rejected": rejected})
    jsonl("pairs.jsonl", pairs)
    jsonl("answers.jsonl", [{"prompt": row["prompt"], "completion": row[side]} for row in pairs for side in SIDES])
    return pairs


def train_on_answers(terminal: Terminal, name: str, model: str, *settings: str) -> float:
    """Train, and return the accuracy of always preferring the longer answer; 0 if the rows are no pairs."""
    common = (
        f"output.name={name}", "task.chat_template=chatml", "data.eval_fraction=0.25", "logging.sample_steps=0",
        "evaluation.generate_rows=0", "evaluation.max_eval_rows=0",
    )  # fmt: skip
    terminal.run(
        "--no-ui", "--model", model, *(word for setting in (*common, *settings) for word in ("--set", setting))
    )
    events = rows_of(f"runs/{name}/journal.jsonl")
    scores = [event["scores"] for event in events if event["event"] == "BaselinesMeasured"]
    return scores[0].get("accuracy of the longer answer", 0.0) if scores else 0.0


@pytest.mark.full
def test_a_reward_model_learns_what_length_does_not_tell_and_other_programs_compute_its_scores(terminal, subtests):
    """Half of the chosen answers are the longer ones."""
    pairs = pairs_of_verbs("now", "today")
    chat = ("data.path=answers.jsonl", "training.learning_rate=0.01", "training.max_steps=150", "tuning.method=full")
    train_on_answers(terminal, "sft", "./llama", *chat)
    scored = ("task.type=reward", "data.path=pairs.jsonl", "training.learning_rate=0.002", "training.max_steps=240")
    for method in ("full", "lora"):
        with subtests.test(method):
            longer = train_on_answers(terminal, method, "sft", *scored, f"tuning.method={method}")
            [found] = json.loads(terminal.run("evaluate", method, "--against", "none", "--json")[0])["models"]
            assert 0.3 < longer < 0.7 and found["scores"]["accuracy"] >= longer + 0.1
            asked = [{"prompt": row["prompt"], "response": row[side]} for row in pairs[:8] for side in SIDES]
            scores = [prediction["score"] for prediction in terminal.predicts(method, asked, "--overwrite")]
            folder = Path("runs", method, "model")
            if method == "lora":
                terminal.run("export", method, "--to", "merged")
                folder = Path("runs", method, "export", "merged")
            assert scores_of_transformers(folder, asked) == pytest.approx(scores, abs=1e-4)


@pytest.mark.full
def test_preferences_are_learned_from_a_supervised_run(terminal, subtests):
    """A model that writes both answers equally often learns which of them is the better one. Both are equally long."""
    pairs_of_verbs("now", "now")
    for method in ("full", "lora"):
        with subtests.test(method):
            way = (f"tuning.method={method}", "training.learning_rate=0.01")
            sft, cpo, dpo = (f"{name}-{method}" for name in ("sft", "cpo", "dpo"))
            train_on_answers(terminal, sft, "./llama", *way, "data.path=answers.jsonl", "training.max_steps=150")
            preferred = ("data.path=pairs.jsonl", *way)
            # CPO has no reference: its accuracy is that of log-probabilities.
            train_on_answers(terminal, cpo, sft, *preferred, "task.loss_type=cpo", "training.max_steps=1")
            longer = train_on_answers(terminal, dpo, sft, *preferred, "training.max_steps=60")
            steps = [event for event in rows_of(f"runs/{dpo}/journal.jsonl") if event["event"] == "StepDone"]
            assert steps[0]["loss_sum"] / steps[0]["tokens"] == pytest.approx(math.log(2), abs=1e-6)
            supervised, found = (json.loads(terminal.run("evaluate", name, "--json")[0]) for name in (cpo, dpo))
            accuracy = found["models"][0]["scores"]["accuracy"]
            assert accuracy >= supervised["reference"]["scores"]["accuracy"] + 0.1
            assert longer == 0.5 and accuracy >= longer + 0.1


def test_kto_story(terminal):
    """LoRA on a model in a folder, from answers of which each is marked alone."""
    save_tiny_model(Path("llama"), "llama")
    rows = [
        {
            "prompt": f"Who is {n}?",
            "completion": f"no {ANIMALS[n % 3]}" + "!" * (n % 3) if n % 2 else f"the {ANIMALS[n % 4]}",
            "label": n % 2 == 0,
        }
        for n in range(ROWS)
    ]
    data = jsonl("marked.jsonl", [*rows, rows[0] | {"label": False}])
    words = ("--model", "./llama", "--data", data, "--set", "tuning.method=lora", "--set", "task.chat_template=chatml")
    terminal.refuses(words, "marked.jsonl, line 61: the answer is undesirable, but desirable in marked.jsonl, line 1")
    terminal.trains("story", (*words, *SKIP), "1 bad", "accuracy")
    assert json.loads(Path("runs/story/plan.json").read_text())["config"]["task"]["type"] == "kto"
    found = json.loads(terminal.run("evaluate", "story", "--json")[0])
    assert found["reference"]["loss"] == pytest.approx(0.5, abs=1e-4)
    assert found["reference"]["scores"]["accuracy"] == 0.5 < found["models"][0]["scores"]["accuracy"]
    text, _ = terminal.run("generate", "story", "Who is 7?", "--temperature", "0", "--max-new-tokens", "12")
    assert "<|im_" not in text
    shown, _ = terminal.run("export", "story", "--to", "merged")
    assert json.loads(Path("runs/story/export/merged/certificate.json").read_text())["is_good"], shown


def test_seq2seq_story(terminal):
    """All weights of a model in a folder, scored on the texts it writes."""
    save_tiny_model(Path("t5"), "t5")
    rows = [{"input": sentence(n), "output": f"the {ANIMALS[n % 4]}"} for n in range(ROWS)]
    data = jsonl("pairs.jsonl", [*rows, {"input": "a", "output": None}])
    words = ("--task", "seq2seq", "--model", "./t5", "--data", data, "--set", "tuning.method=full")
    terminal.refuses(words, "pairs.jsonl, line 61: the column 'output' is null")
    few = ("--set", "evaluation.generate_rows=4")
    terminal.trains("story", (*words, *SKIP, *few), "1 bad", "rougeL")
    asked = [{"id": n, "input": sentence(n)} for n in range(3)]
    assert all("text" in one for one in terminal.predicts("story", asked))
    assert terminal.run("generate", "story", sentence(3), "--temperature", "0")[0].strip()


def test_sequence_classification_story(terminal):
    """From scratch on a CSV table."""
    lines = ["text,label", *(f"{sentence(n)},{ANIMALS[n % 4]}" for n in range(ROWS)), "nobody,"]
    Path("kinds.csv").write_text("\n".join(lines) + "\n")
    words = ("--task", "sequence_classification", *SCRATCH, "--data", "kinds.csv")
    terminal.refuses(words, "kinds.csv, line 62: the label is missing")
    terminal.trains("story", (*words, *SKIP), "1 bad", "accuracy")
    assert "pipeline_tag: text-classification" in Path("runs/story/model/README.md").read_text()
    text, _ = terminal.run("generate", "story", sentence(3))
    assert re.match(r"(sheep|hen|cow|horse) [01]\.\d\d\n", text)
    for found in terminal.predicts("story", [{"id": n, "text": sentence(n)} for n in range(3)]):
        assert found["label"] == max(found["probabilities"], key=found["probabilities"].get)
        assert found["probabilities"].keys() == set(ANIMALS)
        assert sum(found["probabilities"].values()) == pytest.approx(1, abs=1e-3)


@pytest.mark.full
def test_question_answering_story(terminal):
    """An encoder in a folder and JSON of SQuAD, from which the task follows."""
    save_tiny_model(Path("bert"), "bert")

    def asked(n: int) -> dict[str, Any]:
        text = f"{'So ' * (n % 30)}it is a {ANIMALS[n % 4]} that runs home {n}"
        return {"question": f"Who runs {n}?", "context": text}

    def paragraph(n: int, start: int | None = None) -> dict[str, Any]:
        text, answer = asked(n)["context"], ANIMALS[n % 4]
        found = [{"text": answer, "answer_start": text.index(answer) if start is None else start}]
        asks = {"id": str(n), "question": asked(n)["question"], "answers": [] if n % 5 == 4 else found}
        return {"context": text, "qas": [asks]}

    paragraphs = [*map(paragraph, range(ROWS)), paragraph(ROWS, 0)]
    content = {"version": "v2.0", "data": [{"title": "Animals", "paragraphs": paragraphs}]}
    Path("squad.json").write_text(json.dumps(content))
    words = ("--profile", "finetune", "--model", "./bert", "--data", "squad.json", "--set", "tuning.method=full")
    named = ("--task", "question_answering", *words)
    terminal.run("plan", *named, *SKIP, "--json")  # counts the model, so that the refusal comes at once
    terminal.refuses(named, "paragraph 61, question 1: the answer 'sheep' is not at character 0 of the context")
    windows = ("--set", "task.doc_stride=8", "--set", "data.max_length=32")
    terminal.trains("story", (*words, *SKIP, *windows), "1 bad", "f1")
    assert json.loads(Path("runs/story/plan.json").read_text())["config"]["task"]["type"] == "question_answering"
    rows = [asked(n) for n in range(30)]
    for row, found in zip(rows, terminal.predicts("story", rows), strict=True):
        assert found["answer"] == row["context"][found["start"] or 0 : found["end"] or 0]
        assert 0 < found["probability"] <= 1
    text, _ = terminal.run("generate", "story", "Who runs 3? It is a hen that runs home 3")
    assert re.fullmatch(r".+ [01]\.\d\d\n", text)
    terminal.run("export", "story", "--to", "onnx")
    assert json.loads(Path("runs/story/export/onnx/certificate.json").read_text())["is_good"]
    card = Path("runs/story/model/README.md").read_text()
    assert "pipeline_tag: question-answering" in card and "nats/position" in card


def test_token_classification_story(terminal):
    """From scratch on a CoNLL file."""
    tagged = [[(word, "B-ANIMAL" if word in ANIMALS else "O") for word in sentence(n).split()] for n in range(ROWS)]
    Path("names.conll").write_text("\n".join("".join(f"{word} {tag}\n" for word, tag in row) for row in tagged))
    terminal.trains("story", ("--task", "token_classification", *SCRATCH, "--data", "names.conll"), "0 bad", "f1")
    assert terminal.run("generate", "story", "The sheep runs home 4")[0] == "The [sheep ANIMAL] runs home 4\n"
    [found] = terminal.predicts("story", [{"text": "The sheep runs home 4"}])
    assert found["words"] == "The sheep runs home 4".split() and found["tags"] == ["O", "B-ANIMAL", "O", "O", "O"]
    assert found["spans"] == [{"start": 4, "end": 9, "text": "sheep", "label": "ANIMAL"}]
