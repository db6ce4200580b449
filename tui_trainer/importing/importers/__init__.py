"""Importers, one per tool and file."""
