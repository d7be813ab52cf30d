"""Agents that learn from recorded steps."""

import copy
from typing import Any

from tests.programs.common import data, program, seed_params, train


@program
def dqn(torch: Any) -> list[float]:
    nn, F = torch.nn, torch.nn.functional

    class QNetwork(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer1 = nn.Linear(4, 16)
            self.layer2 = nn.Linear(16, 2)

        def forward(self, x: Any) -> Any:
            return self.layer2(F.relu(self.layer1(x)))

    policy = QNetwork()
    seed_params(torch, policy)
    target = copy.deepcopy(policy)
    target.load_state_dict(policy.state_dict())
    target.eval()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2, amsgrad=True)
    states, next_states = data(torch, 8, 4), data(torch, 6, 4, seed=2)
    actions, rewards = torch.tensor([[0], [1]] * 4), torch.ones(8)
    non_final = torch.tensor([True] * 6 + [False] * 2, dtype=torch.bool)
    out = []
    for _ in range(3):
        values = policy(states).gather(1, actions)
        next_values = torch.zeros(8)
        with torch.no_grad():
            next_values[non_final] = target(next_states).max(1).values
        expected = (next_values * 0.99) + rewards
        loss = nn.SmoothL1Loss()(values, expected.unsqueeze(1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(policy.parameters(), 100)
        optimizer.step()
        out.append(loss.item())
        target_state, policy_state = target.state_dict(), policy.state_dict()
        for key in policy_state:
            target_state[key] = policy_state[key] * 0.1 + target_state[key] * 0.9
        target.load_state_dict(target_state)
    return out


@program
def ppo(torch: Any) -> list[float]:
    nn = torch.nn

    class ActorCritic(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.actor = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
            self.critic = nn.Linear(3, 1)
            self.log_std = nn.Parameter(torch.zeros(2))

        def forward(self, x: Any) -> Any:
            std = self.log_std.exp().expand(len(x), 2)
            policy = torch.distributions.Normal(self.actor(x), std)
            return policy, self.critic(x).squeeze(-1)

    model = ActorCritic()
    seed_params(torch, model)
    states, actions = data(torch, 10, 3), data(torch, 10, 2, seed=2)
    advantages, returns = data(torch, 10, seed=3), data(torch, 10, seed=4)
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    with torch.no_grad():
        old = model(states)[0].log_prob(actions).sum(-1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, eps=1e-5)
    out = []
    for _ in range(3):
        policy, values = model(states)
        ratio = (policy.log_prob(actions).sum(-1) - old).exp()
        clipped = torch.clamp(ratio, 0.8, 1.2)
        loss = -torch.min(ratio * advantages, clipped * advantages).mean()
        loss += 0.5 * (returns - values).pow(2).mean() - 0.01 * policy.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        out.append(loss.item())
    return out


@program
def actor_critic(torch: Any) -> list[float]:
    nn, F = torch.nn, torch.nn.functional

    class Policy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.affine1 = nn.Linear(4, 8)
            self.action_head = nn.Linear(8, 2)
            self.value_head = nn.Linear(8, 1)

        def forward(self, x: Any) -> Any:
            x = F.relu(self.affine1(x))
            return F.softmax(self.action_head(x), dim=-1), self.value_head(x)

    model = Policy()
    seed_params(torch, model)
    states = data(torch, 6, 4)
    rewards = [1.0, 1.0, 0.0, 1.0, 1.0, 2.0]

    def loss_of() -> Any:
        returns: list[float] = []
        saved, total = [], 0.0
        for state, action in zip(states, torch.tensor([0, 1, 1, 0, 0, 1]), strict=True):
            probabilities, value = model(state)
            policy = torch.distributions.Categorical(probabilities)
            saved.append((policy.log_prob(action), value))
        for reward in rewards[::-1]:
            total = reward + 0.99 * total
            returns.insert(0, total)
        goals = torch.tensor(returns)
        goals = (goals - goals.mean()) / (goals.std() + 1e-8)
        policy_losses, value_losses = [], []
        for (log_prob, value), goal in zip(saved, goals, strict=True):
            policy_losses.append(-log_prob * (goal - value.item()))
            value_losses.append(F.smooth_l1_loss(value, torch.tensor([goal])))
        return torch.stack(policy_losses).sum() + torch.stack(value_losses).sum()

    return train(torch.optim.Adam(model.parameters(), lr=3e-2), loss_of)
