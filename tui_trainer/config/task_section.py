"""[task]: what is learnt, and from which part of each row."""

from typing import Literal

from tui_trainer.config.fields import PositiveInt, Section, option


class TaskSection(Section):
    type: str = option(
        "causal_lm",
        "What is learnt: causal_lm, char_lm, chat, seq2seq, sequence_classification or token_classification.",
    )
    loss_on: Literal["assistant", "completion", "all"] = option(
        "assistant",
        "Chat: which tokens are learnt: every answer, only the last answer, or the whole conversation.",
    )
    chat_template: str = option(
        "",
        "Chat: the template of a conversation: chatml, llama3, mistral, gemma, phi3, zephyr, alpaca, vicuna, a file; "
        "empty: the tokenizer's own.",
        completes="file",
    )
    problem_type: Literal["auto", "single_label_classification", "multi_label_classification", "regression"] = option(
        "auto",
        "Classification of texts: one label each, any number of labels, or a number; auto: as the data shows.",
    )
    class_weights: Literal["none", "balanced"] = option(
        "none", "Classification: balanced counts rare classes as much as frequent ones."
    )
    source_prefix: str = option(
        "", 'Sequence to sequence: text put before every input, with its space: T5 was trained with "summarize: ".'
    )
    max_target_length: PositiveInt = option(
        128,
        "Sequence to sequence: tokens of the answer.",
        unit="tokens",
        memory="logits grow with it",
        step="x2",
    )
    source_language: str = option(
        "",
        "The language of the texts, where the tokenizer marks it (NLLB, M2M100, mBART), by its name there: eng_Latn, "
        "en, en_XX.",
        advanced=True,
    )
    target_language: str = option(
        "",
        "Sequence to sequence: the language of the answers, where the tokenizer marks it: fra_Latn, fr, fr_XX.",
        advanced=True,
    )
