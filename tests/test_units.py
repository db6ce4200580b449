"""Numbers at the edges of their units."""

from tui_trainer.units import format_bytes, format_count, format_number, format_seconds


def test_number_is_never_rounded_up_to_a_whole_larger_unit(subtests):
    for shown, text in (
        (format_count(999), "999"),
        (format_count(999.7), "1 k"),
        (format_count(999_499), "999 k"),
        (format_count(999_999), "1 M"),
        (format_count(999_700_000), "1 G"),
        (format_bytes(1023), "1023 B"),
        (format_bytes(1024**2 - 1), "1.0 MiB"),
        (format_bytes(1023 * 1024), "1023.0 KiB"),
        (format_number(0.03124), "0.0312"),
        (format_number(999.4), "999"),
        (format_number(2310.4), "2,310"),
        (format_number(230.0, 2), "230"),
        (format_number(2.34, 2), "2.3"),
        (format_number(99.7, 2), "100"),
        (format_seconds(0.9994), "999 ms"),
        (format_seconds(0.9996), "1.0 s"),
        (format_seconds(59.94), "59.9 s"),
        (format_seconds(59.97), "1 min 00 s"),
        (format_seconds(3599.7), "1 h 00 min"),
        (format_seconds(86_399), "1 d 0 h"),
        (format_seconds(None), "--"),
    ):
        with subtests.test(text):
            assert shown == text
