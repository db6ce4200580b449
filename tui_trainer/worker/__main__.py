"""`python -m tui_trainer.worker QUESTION...` answers questions with these names, one per line of standard input."""

import sys

from tui_trainer.worker.answering import answer_questions

if __name__ == "__main__":
    answer_questions(sys.argv[1:])
