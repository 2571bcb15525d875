"""The plain loop: exact mode leaves running statistics and dropout as one evaluation would."""

import torch

RECIPE = "plain_loop"


def test_tracked_statistics_advance_once_a_step(recipe):
    model, losses = recipe.train(5, exact=True)
    counted = [b for name, b in model.named_buffers() if name.endswith("num_batches_tracked")]
    assert [int(count) for count in counted] == [5]
    assert len(losses) == 5


def test_both_modes_take_the_same_first_step(recipe):
    approx, exact = (recipe.train(1, exact=exact)[0].state_dict() for exact in (False, True))
    for name, value in approx.items():
        assert torch.equal(value, exact[name]), name


def test_dropout_draws_as_often_in_exact_mode_as_in_approx_mode(recipe):
    states = []
    for exact in (False, True):
        recipe.train(5, exact=exact)  # seeds before it starts
        states.append(torch.get_rng_state())
    assert torch.equal(*states)
