"""Curves in a terminal: reduced, rasterised and framed by pure functions. numpy is loaded by the first chart drawn."""
