"""The run itself. torch lives here."""
