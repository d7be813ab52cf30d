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


@program
def categorical_dqn_with_noisy_layers(torch: Any) -> list[float]:
    nn, F, atoms = torch.nn, torch.nn.functional, 5

    class Noisy(torch.nn.Module):
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            self.mean = nn.Parameter(torch.empty(outputs, inputs))
            self.spread = nn.Parameter(torch.full((outputs, inputs), 0.5 / inputs**0.5))
            self.register_buffer("noise", torch.empty(outputs, inputs))
            rows, columns = (
                x.sign().mul_(x.abs().sqrt_())
                for x in (torch.linspace(-2, 1, outputs), torch.linspace(-1, 2, inputs))
            )
            self.noise.copy_(rows.outer(columns))

        def forward(self, x: Any) -> Any:
            weight = self.mean + self.spread * self.noise if self.training else self.mean
            return F.linear(x, weight)

    class Dueling(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Linear(4, 8)
            self.value, self.advantage = Noisy(8, atoms), Noisy(8, 3 * atoms)
            self.register_buffer("support", torch.linspace(-1, 1, atoms))

        def distribution(self, x: Any) -> Any:
            h = F.relu(self.features(x))
            value = self.value(h).view(-1, 1, atoms)
            advantage = self.advantage(h).view(-1, 3, atoms)
            return F.softmax(value + advantage - advantage.mean(1, keepdim=True), -1)

        def forward(self, x: Any) -> Any:
            return (self.distribution(x) * self.support).sum(2)

    model = Dueling()
    seed_params(torch, model)
    target = copy.deepcopy(model).eval()
    state, after, reward = data(torch, 6, 4), data(torch, 6, 4, seed=2), data(torch, 6, seed=3)
    action, ends = torch.arange(6) % 3, torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0, 0.0])
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1.5e-4), []
    for _ in range(3):
        with torch.no_grad():
            best = model(after).argmax(1)
            future = target.distribution(after)[range(6), best]
            place = reward[:, None] + (1 - ends[:, None]) * 0.9 * model.support
            place = (place.clamp(-1, 1) + 1) / 0.5
            low, high = place.floor().long(), place.ceil().long()
            low[(high > 0) * (low == high)] -= 1
            high[(low < atoms - 1) * (low == high)] += 1
            offset = (torch.arange(6) * atoms).unsqueeze(1).expand(6, atoms)
            wanted = torch.zeros(future.size())
            for index, share in ((low, high.float() - place), (high, place - low.float())):
                wanted.view(-1).index_add_(0, (index + offset).view(-1), (future * share).view(-1))
        log = torch.log(model.distribution(state)[range(6), action])
        loss = -(wanted * log).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.1)
        losses.append(loss.item())
    return losses
