"""Widgets of the pages and dialogs."""
