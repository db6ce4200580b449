"""The screens. Textual lives here and nowhere else; what a view shows is computed by pure functions over plain data."""
