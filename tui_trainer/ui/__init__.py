"""The screens, the only package that uses Textual. Pure functions over plain data compute the lines that it shows."""
