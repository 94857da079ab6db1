"""What is compiled is each learner's own."""

from __future__ import annotations

import torch

from slm_lab.agent.compiled import buffer_places, with_own_code


class Scaled:
    def __init__(self, factor: int):
        self.factor = factor

    def times(self, values: torch.Tensor) -> torch.Tensor:
        return values * self.factor


def test_a_process_can_compile_for_any_number_of_agents():
    limit = torch._dynamo.config.recompile_limit
    for factor in range(2 * limit):
        times = torch.compile(with_own_code(Scaled(factor).times), backend="eager", fullgraph=True, dynamic=False)
        assert times(torch.ones(2)).tolist() == [factor, factor]


def test_buffers_are_found_where_they_are_even_after_an_exchange():
    net = torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.BatchNorm1d(2))
    places = list(buffer_places(net))
    net[1].running_mean = torch.tensor([3.0, 4.0])
    assert [name for name, _, _ in places] == ["1.running_mean", "1.running_var", "1.num_batches_tracked"]
    assert places[0][1][places[0][2]].tolist() == [3, 4]
