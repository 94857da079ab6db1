import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.distributions import AffineTransform, Independent, Normal, TanhTransform, TransformedDistribution

from slm_lab.agent.algorithm.squash import TanhNormal, TanhPoint, check_bounded_box

TWO_SIDES = spaces.Box(-2, 2, (1,), np.float32)
UNEVEN = spaces.Box(np.array([[-1, 0, -2]], np.float32), np.array([[3, 1, 2]], np.float32))


def reference(space, out):
    low, high = (torch.from_numpy(bound.flatten()).double() for bound in (space.low, space.high))
    size = len(low)
    squash = [TanhTransform(), AffineTransform((low + high) / 2, (high - low) / 2)]
    normal = Normal(out[:, :size], out[:, size:].exp())
    return Independent(TransformedDistribution(normal, squash), 1)


def outputs(space, rows=50):
    return 0.5 * torch.randn(rows, 2 * space.low.size, generator=torch.Generator().manual_seed(0), dtype=torch.double)


@pytest.mark.parametrize("space", [TWO_SIDES, UNEVEN])
def test_log_probs_are_those_of_the_transformed_distribution(space):
    squashed, out = TanhNormal(space), outputs(space)
    noise = 0.5 * torch.randn(50, space.low.size, generator=torch.Generator().manual_seed(1), dtype=torch.double)
    action, log_prob = squashed.draw(out, noise)
    expected = reference(space, out).log_prob(action)
    torch.testing.assert_close(log_prob, expected)
    shaped = action.reshape(-1, *space.shape)
    torch.testing.assert_close(squashed.log_prob(out, shaped), expected)


@pytest.mark.parametrize("space", [TWO_SIDES, UNEVEN])
def test_gradients_of_a_draw_are_those_of_the_transformed_distribution(space):
    grads = []
    noise = 0.5 * torch.randn(50, space.low.size, generator=torch.Generator().manual_seed(1), dtype=torch.double)
    for draw in (lambda out: TanhNormal(space).draw(out, noise), lambda out: reference_draw(space, out, noise)):
        out = outputs(space).requires_grad_()
        action, log_prob = draw(out)
        (action.square().sum() + log_prob.sum()).backward()
        grads.append(out.grad)
    torch.testing.assert_close(grads[0], grads[1])


def reference_draw(space, out, noise):
    size = noise.shape[-1]
    low, high = (torch.from_numpy(bound.flatten()).double() for bound in (space.low, space.high))
    action = (low + high) / 2 + (high - low) / 2 * torch.tanh(out[:, :size] + out[:, size:].exp() * noise)
    return action, reference(space, out).log_prob(action)


def test_probabilities_over_the_range_sum_to_one():
    squashed = TanhNormal(TWO_SIDES)
    action = torch.linspace(-2, 2, 100_001)[1:-1, None]
    out = torch.tensor([[0.4, -0.5]]).expand(len(action), 2)
    assert squashed.log_prob(out, action).exp().mean().item() * 4 == pytest.approx(1, abs=1e-3)


def test_far_out_everything_is_finite_and_at_the_bounds():
    squashed = TanhNormal(TWO_SIDES)
    out = torch.tensor([[50.0, -30.0], [-50.0, 30.0]], requires_grad=True)
    action, log_prob = squashed.draw(out, torch.tensor([[1.0], [-1.0]]))
    (action.sum() + log_prob.sum()).backward()
    assert action.flatten().tolist() == [2, -2]
    assert log_prob.isfinite().all()
    assert out.grad.isfinite().all()
    assert squashed.log_prob(out, action).isfinite().all()


def test_drawing_for_the_env_and_for_a_loss_is_the_same():
    squashed, out = TanhNormal(UNEVEN), outputs(UNEVEN).float()
    noise = np.random.default_rng(3).standard_normal((50, 3), dtype=np.float32)
    drawn = squashed.sample(out.numpy(), np.random.default_rng(3))
    assert drawn.shape == (50, 1, 3)
    np.testing.assert_allclose(drawn.reshape(50, 3), squashed.draw(out, torch.from_numpy(noise))[0], atol=1e-5)
    zero = torch.zeros(50, 3)
    np.testing.assert_allclose(squashed.mode(out.numpy()).reshape(50, 3), squashed.draw(out, zero)[0], atol=1e-5)


def test_actions_are_scaled_to_the_bounds():
    point = TanhPoint(UNEVEN)
    assert point.mode(np.zeros((1, 3), np.float32)).tolist() == [[[1, 0.5, 0]]]
    assert point.mode(np.full((1, 3), 99, np.float32)).tolist() == [[[3, 1, 2]]]
    torch.testing.assert_close(point.action(torch.full((1, 3), -99.0)), torch.tensor([[-1.0, 0, -2]]))


def test_noise_is_in_units_of_half_the_range_and_stays_within_the_bounds():
    point = TanhPoint(TWO_SIDES)
    drawn = point.sample(np.zeros((10_000, 1), np.float32), np.random.default_rng(0), 0.1)
    assert drawn.std() == pytest.approx(0.2, rel=0.03)
    assert np.abs(point.sample(np.zeros((100, 1), np.float32), np.random.default_rng(0), 9.0)).max() == 2
    assert point.action(torch.zeros(1, 1), torch.tensor([[0.25]])).item() == 0.5
    assert point.action(torch.zeros(1, 1), torch.tensor([[7.0]])).item() == 2


@pytest.mark.parametrize(
    ("space", "problem"),
    [
        (spaces.Discrete(2), "X needs Box actions; the env's are Discrete"),
        (spaces.Box(0, 3, (1,), np.int64), "X draws real numbers; the env's Box actions are int64"),
        (spaces.Box(0, np.inf, (1,)), "X needs actions with bounds; some of the env's Box actions have none"),
    ],
)
def test_spaces_that_cannot_be_squashed_into_are_told(space, problem):
    assert [mistake.problem for mistake in check_bounded_box("X", space)] == [problem]
    assert check_bounded_box("X", TWO_SIDES) == []
