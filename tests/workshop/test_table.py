from __future__ import annotations

from hifigemm.workshop.table import percent, print_table


def test_columns_are_aligned_and_groups_have_a_line_between_them(capsys):
    rows = [[["a", "bb", "1"]], [["aaa", "b", "10"]]]
    print_table("title", ("x", "y", "n"), rows)
    assert capsys.readouterr().out.splitlines() == [
        "title",
        "",
        "x    y    n",
        "---  --  --",
        "a    bb   1",
        "---  --  --",
        "aaa  b   10",
    ]


def test_shares_are_never_rounded_up_to_all():
    assert percent(1.0) == "100 %"
    assert percent(1.0 - 2.0**-53) == "99.99 %"
    assert percent(0.0) == "0.00 %"
