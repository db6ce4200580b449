"""`python -m tui_trainer`."""

import sys

from tui_trainer.cli import main

sys.exit(main())
