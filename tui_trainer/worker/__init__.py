"""Work in a separate process, asked for as questions in JSON lines: `python -m tui_trainer.worker QUESTION`.

Plans and screens therefore load no torch, measurements get a fresh process, and running out of memory ends only the
worker. `asking.py` is the program's side, `answering.py` the worker's; `questions.py` lists the questions. `child.py`
starts and ends every process except the editor, Slurm's commands and the terminal query.
"""
