"""A campaign follows from its seed and has every harm; a harm that ends the run comes last."""

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


def test_every_lead_meets_every_proctrack_in_three_strata():
    met = {
        (draw.site, blow.harm, draw.proctrack)
        for draw in campaign(3 * len(LEADS))
        for blow in draw.blows
    }
    assert met >= {(site, harm, proctrack) for harm, site in LEADS for proctrack in PROCTRACKS}


def test_every_lead_meets_every_strategy_in_three_strata_and_on_each_proctrack_in_six():
    for strata, places in ((3, {""}), (6, set(PROCTRACKS))):
        met = {
            (draw.site, blow.harm, draw.strategy, draw.proctrack if len(places) > 1 else "")
            for draw in campaign(strata * len(LEADS))
            for blow in draw.blows
        }
        assert met >= {
            (site, harm, strategy, place)
            for harm, site in LEADS
            for strategy in STRATEGIES
            for place in places
        }


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
