"""Standard input, output and error, and making text from outside the program safe to show."""
