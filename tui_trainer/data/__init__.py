"""What a run learns from: sources of text, their split, their tokens, and the rows that a batch is made of.

    ResolvedData  ->  Source  ->  prepare, with a Reader and a Cut  ->  PreparedData  ->  Rows
    Rows  ->  collate | pack_batch, collate_packed  ->  Batch

Everything here is numpy, Arrow and files. The room knows neither torch nor Config: functions take plain arguments.
"""
