"""Questions that another process answers: `python -m tui_trainer.worker QUESTION`, in JSON lines.

Plans and screens load no torch, a measurement loads nothing else, and an end for want of memory ends the worker alone.
`asking.py` is the program's side, `answering.py` the worker's, `questions.py` the table of what can be asked. All other
processes that this program starts are a `Child` as well.
"""
