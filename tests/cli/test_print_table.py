"""Tables on a narrow terminal: no digit is cut."""

from __future__ import annotations

import pytest

from stoker.cli.terminal import make_console, make_table, print_table


@pytest.mark.parametrize("width", [30, 40, 200])
def test_a_table_that_is_too_wide_is_turned_and_keeps_all_it_says(
    width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"name{number}" for number in range(8)]
    table = make_table(names, left=("name0",))
    for row in range(5):
        table.add_row(*(f"{row}.{column}0000 ms" for column in range(8)))
    console = make_console()
    console.width = width
    print_table(console, table)
    out = capsys.readouterr().out
    assert "…" not in out
    lines = out.splitlines()
    assert max(map(len, lines)) <= width
    for row in range(5):
        for column in range(8):
            assert out.count(f"{row}.{column}0000 ms") == 1
    if width < 200:
        assert [line.split()[0] for line in lines[:8]] == names
    else:
        assert lines[0].split() == names
