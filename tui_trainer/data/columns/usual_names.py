"""Column names that are recognized automatically. The name decides how a column is read; earlier names win."""

from dataclasses import dataclass

# Single texts.
USUAL_NAMES = ("text", "content", "document", "body", "sentence", "passage", "article", "paragraph", "story", "review")
# Pairs of texts for a classifier. Sources: GLUE, SNLI, XNLI, PAWS, Quora, SICK, BoolQ, FEVER, MS MARCO and WikiQA.
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
SPAN_COLUMNS = ("entities", "spans", "ents", "labels", "label", "annotations")

# Columns that distinguish conversations, questions, summaries and tagged words from plain texts.
# Sources: the columns of ShareGPT, OpenAI, LLaMA-Factory, TRL, Alpaca and of well-known data sets on the hub.
CONVERSATIONS = ("messages", "conversations", "turns")
"""Names that always mean conversations. The other names below may also mean plain texts or texts to summarize."""
CONVERSATION_NAMES = (*CONVERSATIONS, "conversation", "dialogue", "dialog", "dialogs", "chat", "chats")
WORD_COLUMNS = ("tokens", "words", "token", "word", "tokenized_text")
SENTENCES = ("text", "sentence")
TAG_COLUMNS = ("ner_tags", "tags", "labels", "ner", "tag", "pos_tags", "upos", "xpos", "pos", "chunk_tags", "label")

# Conversations.
SYSTEM_NAMES = ("system", "system_prompt", "system_message", "systemprompt", "system_instruction", "systeminstruction")
TOOLS_NAMES = ("tools", "functions")


# Inputs with answers.
@dataclass(frozen=True, slots=True)
class InputAndAnswer:
    """Names of input columns, and of the columns of their answers. The columns `before` and `after` also belong to the
    input. `stands_alone`: the name means an input even without an answer column."""

    inputs: tuple[str, ...]
    targets: tuple[str, ...]
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    stands_alone: bool = True

    @property
    def is_question(self) -> bool:
        """Whether the inputs are questions. A question without its answer is no text to learn from."""
        return "answer" in self.targets and self.stands_alone


ANSWER_NAMES = ("output", "completion", "response", "answer", "answers", "assistant", "solution")
# The better and the worse answer. Sources: the columns of TRL, LLaMA-Factory and OpenAI, and of data sets on the hub.
PREFERENCES = (
    ("chosen", "rejected"), ("chosen_response", "rejected_response"), ("response_chosen", "response_rejected"),
    ("chosen_answer", "rejected_answer"), ("answer_chosen", "answer_rejected"),
    ("preferred_output", "non_preferred_output"), ("preferred", "rejected"), ("better", "worse"),
)  # fmt: skip
# Marks of good and bad answers. Sources: the columns of LLaMA-Factory and of TRL.
MARK_NAMES = ("kto_tag", "label")
_SPEAKERS = ("assistant", "bot", "gpt", "ai")
_SUMMARIES = ("summary", "highlights", "abstract")
# The first complete pair counts. Sources: the columns of Alpaca, Dolly, TRL, SQuAD, HumanEval, MBPP, NuminaMath,
# OpenHermes, FLAN, P3, Super-NaturalInstructions, Aya, Spider, synthetic_text_to_sql, xsum, cnn_dailymail, samsum,
# arxiv_summarization, ELI5 and wmt on the hub; ms-swift and MetaMathQA (query).
INPUTS_AND_ANSWERS = (
    InputAndAnswer(("instruction",), ANSWER_NAMES, after=("input", "context")),
    InputAndAnswer(("prompt",), (*ANSWER_NAMES, "canonical_solution", "code"), ("context",), ("input",)),
    InputAndAnswer(("question",), (*ANSWER_NAMES, "answers_spans", "sql", "query"), ("context", "passage"), ("input",)),
    InputAndAnswer(("query", "problem"), ANSWER_NAMES, ("context",), ("input",)),
    InputAndAnswer(("human", "user"), _SPEAKERS, ("context",), ("input",), stands_alone=False),
    InputAndAnswer(("sql_prompt",), ("sql",), ("sql_context",)),
    InputAndAnswer(("inputs_pretokenized",), ("targets_pretokenized",)),
    InputAndAnswer(
        ("input", "inputs"), ("output", "outputs", "response", "completion", "target", "targets"),
        ("definition", "context"),
    ),
    InputAndAnswer(("document", "article", "dialogue", "dialog"), _SUMMARIES),
    InputAndAnswer(("text",), (*_SUMMARIES, "code")),
    InputAndAnswer(("source", "src"), ("target", "tgt")),
    InputAndAnswer(("frage", "pregunta", "pergunta", "domanda"), ("antwort", "respuesta", "resposta", "risposta")),
    InputAndAnswer(("title",), ("answers", "answer"), after=("selftext", "body"), stands_alone=False),
)  # fmt: skip

# Columns that describe a text or its origin, and are neither inputs nor answers.
ABOUT_A_TEXT = frozenset(
    "title author authors name url link date timestamp source language lang license path file filename category topic "
    "subject genre domain dataset split subset subreddit location publisher model tags keywords type task level "
    "meta metadata comments submitter doi journal".split()
)

# A first line with one of these is a header.
HEADER_NAMES = {
    *USUAL_NAMES, *USUAL_LABELS, *WORD_COLUMNS, *TEXT_COLUMNS, *SPAN_COLUMNS, "id", "title", "prompt",
    "completion", "question", "answer", "instruction", "input", "output", "context", "summary", "source", "response",
}  # fmt: skip
