"""A campaign follows from its seed and has every harm; a harm that ends the run comes last."""

from .draws import MAX_MORE_HARMS, PROCTRACKS, draws
from .harms import FINAL, HARMS, LAST_STEP, LEADS
from .sites import SITES


def test_a_seed_gives_one_campaign():
    assert draws(20, 1) == draws(20, 1)
    assert draws(20, 1) != draws(20, 2)


def test_nothing_comes_after_the_end_of_a_run_and_steps_go_up():
    for draw in draws(200, 1):
        names, steps = [b.harm for b in draw.blows], [b.step for b in draw.blows]
        assert not {*FINAL} & {*names[:-1]}
        assert steps == sorted(steps) and steps[-1] < LAST_STEP
        assert 1 <= len(names) <= 1 + MAX_MORE_HARMS
        added = {(name, draw.site) for name in names} - {*LEADS}
        assert all(HARMS[name].stays or not SITES[site].is_narrow for name, site in added)


def test_fifty_draws_have_every_row_that_can_be_drawn():
    made = draws(50, 1)
    rows = {row for draw in made for row in SITES[draw.site].rows}
    rows |= {row for draw in made for blow in draw.blows for row in HARMS[blow.harm].rows}
    assert rows == {*range(1, 6), 7, *range(9, 21), 22, 25, 30, 33, 34, 35, 41, 45, 46, 48}
    assert {draw.proctrack for draw in made} == set(PROCTRACKS)
