"""The names of columns that are recognised without being told, in one place: what a column is called decides what it is
read as. Each list goes by order: the first name that is there counts."""

from dataclasses import dataclass

# Texts, and two texts that a classifier reads together.
USUAL_NAMES = ("text", "content", "document", "body", "sentence", "passage", "article", "paragraph", "story", "review")
# Two texts of a classifier. Sources: GLUE, SNLI, XNLI, PAWS, Quora, SICK, BoolQ, FEVER, MS MARCO and WikiQA.
TEXT_PAIRS = (
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("sentence_a", "sentence_b"),
    ("sentence_1", "sentence_2"), ("text", "text_pair"), ("text1", "text2"), ("text_a", "text_b"),
    ("text_1", "text_2"), ("s1", "s2"), ("question", "sentence"), ("question", "passage"), ("query", "passage"),
    ("query", "document"), ("claim", "evidence"), ("question", "answer"),
)  # fmt: skip

# Labels.
SURE_LABELS = ("label", "labels", "gold_label", "cats", "is_duplicate")
MAYBE_LABELS = (
    "category", "categories", "class", "sentiment", "target", "score", "stars", "rating", "topic", "intent", "emotion",
    "y", "label_text", "label_name",
)  # fmt: skip
USUAL_LABELS = SURE_LABELS + MAYBE_LABELS

# Words with tags, and texts with spans.
TEXT_COLUMNS = ("text", "sentence", "content", "sentences")
SPAN_COLUMNS = ("entities", "spans", "labels", "label", "annotations")

# What tells conversations, questions, summaries and tagged words from plain texts.
# Sources: the columns of ShareGPT, OpenAI, LLaMA-Factory, TRL, Alpaca and of well-known data sets on the hub.
CONVERSATIONS = ("messages", "conversations", "turns")
"""Conversations whatever their values are; the others are names that a text or a summary's source has as well."""
CONVERSATION_NAMES = (*CONVERSATIONS, "conversation", "dialogue", "dialog", "dialogs", "chat", "chats")
ANSWERS = ("output", "response", "completion", "answer", "answers", "solution")
ASKED = {"instruction": ANSWERS, "prompt": ANSWERS, "question": ANSWERS}
SUMMARIES = ("summary", "highlights")
SUMMARISED = dict.fromkeys(("document", "article", "dialogue", "dialog"), SUMMARIES)
WORD_COLUMNS = ("tokens", "words", "token", "word")
SENTENCES = ("text", "sentence")
TAG_COLUMNS = ("ner_tags", "tags", "labels", "ner", "tag", "pos_tags", "upos", "xpos", "pos", "chunk_tags", "label")

# Conversations.
ANSWER_NAMES = ("output", "completion", "response", "answer", "answers", "assistant", "solution")
SYSTEM_NAMES = ("system", "system_prompt", "system_message", "systemprompt", "system_instruction", "systeminstruction")
TOOLS_NAMES = ("tools", "functions")
SPEAKERS = ("assistant", "bot", "gpt", "ai")


@dataclass(frozen=True, slots=True)
class Question:
    """How an answer is called, and what may stand before and after the question in the same turn."""

    answers: tuple[str, ...] = ANSWER_NAMES
    beside: tuple[tuple[str, ...], tuple[str, ...]] = (("context",), ("input",))


# Sources: Alpaca, Dolly, TRL, SQuAD; ms-swift and MetaMathQA (query), NuminaMath (problem), OpenHermes (input).
QUESTIONS = {
    "instruction": Question(beside=((), ("input", "context"))),
    "prompt": Question(),
    "question": Question(),
    "query": Question(),
    "problem": Question(),
    "human": Question(answers=SPEAKERS),
    "user": Question(answers=SPEAKERS),
    "input": Question(answers=("output", "response", "completion"), beside=(("context",), ())),
}


# Inputs with answers.
@dataclass(frozen=True, slots=True)
class InputAndAnswer:
    """Names of inputs and of the answers to them. A row may have more to read in the columns `beside`."""

    inputs: tuple[str, ...]
    targets: tuple[str, ...]
    beside: tuple[str, ...] = ()


# Sources: the columns of xsum, cnn_dailymail, samsum, squad, alpaca, dolly and wmt on the hub.
INPUTS_AND_ANSWERS = (
    InputAndAnswer(("document", "article", "dialogue", "dialog", "text"), ("summary", "highlights")),
    InputAndAnswer(("question", "problem"), ("answer", "answers", "solution"), ("context",)),
    InputAndAnswer(("instruction",), ("output", "response"), ("input", "context")),
    InputAndAnswer(("source",), ("target",)),
    InputAndAnswer(("input", "inputs"), ("output", "target", "targets"), ("context",)),
    InputAndAnswer(("prompt",), ("completion", "response"), ("input", "context")),
)


# A first line with one of these is a header.
HEADER_NAMES = {
    *USUAL_NAMES, *USUAL_LABELS, *WORD_COLUMNS, *TEXT_COLUMNS, *SPAN_COLUMNS, "id", "title", "prompt",
    "completion", "question", "answer", "instruction", "input", "output", "context", "summary", "source", "response",
}  # fmt: skip
