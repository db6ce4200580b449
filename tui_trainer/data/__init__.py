"""Training data: sources of text, their split into training and evaluation, their tokens, and the rows of a batch.

    ResolvedData  ->  Source  ->  prepare, with a Reader and RowSettings  ->  PreparedData  ->  Rows
    Rows  ->  collate | pack_batch, collate_packed  ->  Batch

Everything here uses numpy, Arrow and files. The room imports neither torch nor Config: functions take plain arguments.
"""
