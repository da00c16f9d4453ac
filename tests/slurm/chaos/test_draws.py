"""A campaign has every harm."""

from .draws import PROCTRACKS, draws
from .harms import HARMS
from .sites import SITES


def test_fifty_draws_have_every_row_that_can_be_drawn():
    made = draws(50, 1)
    rows = {row for draw in made for row in SITES[draw.site].rows}
    rows |= {row for draw in made for blow in draw.blows for row in HARMS[blow.harm].rows}
    assert rows == {*range(1, 6), 7, *range(9, 21), 22, 25, 30, 33, 34, 35, 41, 45, 46, 48}
    assert {draw.proctrack for draw in made} == set(PROCTRACKS)
