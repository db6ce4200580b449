"""Work for a separate process, asked as questions in JSON lines: `python -m tui_trainer.worker QUESTION`.

So plans and screens load no torch, measurements run in a fresh process, and memory that runs out ends only the worker.
`asking.py` is the program's side, `answering.py` the worker's, `questions.py` lists the questions. `child.py` starts
and ends any process, except the editor, Slurm's commands and the terminal query.
"""
