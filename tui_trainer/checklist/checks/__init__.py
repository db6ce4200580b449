"""One file is one check: the function `look` under `@check`."""
