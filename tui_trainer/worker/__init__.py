"""Questions that another process answers: `python -m tui_trainer.worker QUESTION`, in JSON lines.

Plans and screens load no torch, a measurement loads nothing else, and an end for want of memory ends the worker alone.
`asking.py` is the program's side, `answering.py` the worker's, `questions.py` the table of what can be asked. Other
processes that this program waits for or talks to are a `Child` (`child.py`) as well; the editor, Slurm's commands and
the query of the terminal are not.
"""
