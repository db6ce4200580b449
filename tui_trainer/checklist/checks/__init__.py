"""One file is one check: the function `look` under `@check`. Its first line is why it is looked at."""
