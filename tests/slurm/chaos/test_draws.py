"""A campaign follows from its seed and has every harm; a harm that ends the run comes last."""

import pytest

from .draws import MAX_MORE_HARMS, PROCTRACKS, STRATEGIES, Table, draws
from .harms import HARMS, TABLE
from .sites import SITES

LEADS = (("a", "plain"), ("b", "plain"), ("c", "plain"), ("end", "plain"), ("a", "odd"))
OTHERS = {"plain": ("a", "b", "c"), "odd": ("b",)}


def campaign(number, seed=1):
    return draws(number, seed, Table(LEADS, OTHERS, ("end",), 48))


def test_a_seed_gives_one_campaign():
    assert campaign(20) == campaign(20)
    assert campaign(20) != campaign(20, seed=2)


def test_every_lead_comes_before_any_comes_twice():
    for number in (5, 10, 50):
        made = [(blow.harm, draw.site) for draw in campaign(number) for blow in draw.blows]
        assert all(made.count(lead) >= number // len(LEADS) for lead in LEADS)


@pytest.mark.parametrize("strata", [3, 6])
def test_every_lead_meets_every_proctrack_and_strategy_in_three_strata_and_each_pair_in_six(strata):
    made = campaign(strata * len(LEADS))
    met = {(draw.site, b.harm, draw.proctrack, draw.strategy) for draw in made for b in draw.blows}
    for harm, site in LEADS:
        pairs = {(p, s) for at, name, p, s in met if (at, name) == (site, harm)}
        assert {p for p, _ in pairs} == {*PROCTRACKS} and {s for _, s in pairs} == {*STRATEGIES}
        assert strata == 3 or len(pairs) == len(PROCTRACKS) * len(STRATEGIES)


def test_a_short_campaign_has_each_strategy_on_several_proctracks():
    made = draws(len(TABLE.leads), 1, TABLE)
    for strategy in STRATEGIES:
        own = [draw for draw in made if draw.strategy == strategy]
        assert len(own) >= len(made) // len(STRATEGIES) - 1
        assert {draw.proctrack for draw in own} == set(PROCTRACKS)


def test_nothing_comes_after_the_end_of_a_run_and_steps_go_up():
    for draw in campaign(200):
        names, steps = [b.harm for b in draw.blows], [b.step for b in draw.blows]
        assert "end" not in names[:-1]
        assert steps == sorted(steps) and steps[-1] < 48
        assert 1 <= len(names) <= 1 + MAX_MORE_HARMS
        assert draw.site == "plain" or set(names) <= {"a", "b"}


def test_fifty_draws_have_every_row_that_can_be_drawn():
    made = draws(50, 1, TABLE)
    rows = {row for draw in made for row in SITES[draw.site].rows}
    rows |= {row for draw in made for blow in draw.blows for row in HARMS[blow.harm].rows}
    assert rows == {*range(1, 6), 7, *range(9, 21), 22, 25, 30, 33, 34, 35, 41, 45, 46, 48}
    assert {draw.proctrack for draw in made} == set(PROCTRACKS)
