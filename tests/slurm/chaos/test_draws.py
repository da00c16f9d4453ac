"""The campaign's draws: one seed gives one campaign, every harm comes, an end only at the end."""

from .draws import MAX_MORE_HARMS, PROCTRACKS, draws

HARMS = ("a", "b", "c", "d", "end")


def campaign(number: int, seed: int = 1):
    return draws(number, seed, HARMS, ("end",), 48)


def test_a_seed_gives_one_campaign():
    assert campaign(20) == campaign(20)
    assert campaign(20) != campaign(20, seed=2)


def test_every_harm_comes_before_any_leads_a_draw_twice():
    for number in (5, 10, 50):
        led = [blow.harm for draw in campaign(number) for blow in draw.blows]
        assert all(led.count(harm) >= number // len(HARMS) for harm in HARMS)
    assert {draw.proctrack for draw in campaign(3)} == set(PROCTRACKS)


def test_nothing_comes_after_the_end_of_a_run_and_steps_go_up():
    for draw in campaign(200):
        names, steps = [b.harm for b in draw.blows], [b.step for b in draw.blows]
        assert "end" not in names[:-1]
        assert steps == sorted(steps) and steps[-1] < 48
        assert 1 <= len(names) <= 1 + MAX_MORE_HARMS
