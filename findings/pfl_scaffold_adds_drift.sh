#!/usr/bin/env bash
# pfl 0.6.0 (pfl-research), PyTorch. SCAFFOLD (Karimireddy et al. 2020, Algorithm 1) lets a client step by g - c_i + c,
# where its control variate c_i becomes its gradient (option I) or (x - y) / (K eta), which is the same for one step
# (option II), and c is their mean. pfl steps by g - c_i + c as well, but stores minus the gradient in c_i by either
# option, because it takes the trained model less the received one: drift is added instead of taken away. By option I
# with states in memory all clients also have one c_i, that of the client that trained last: the model's own buffer is
# stored, and not a copy of it.
# Seen: after one round of one step, c_i / gradient is -1.0 by option II for both clients; by option I both clients have
# minus the gradient of the second.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install --quiet --disable-pip-version-check pfl==0.6.0 torch==2.13.0 numpy==2.4.6
cd "$home"
PFL_PYTORCH_DEVICE=cpu "$home/venv/bin/python" -W ignore - <<'PY'
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from torch import nn

RATE = 0.1
torch.manual_seed(0)
samples = [(torch.randn(8, 3), torch.randn(8, 1) + shift) for shift in (-2.0, 2.0)]


def loss(net, x, y):
    return ((net(x) - y) ** 2).mean()


def after_a_round(first_option):
    """Each client's control variate, and its gradient."""
    torch.manual_seed(1)
    net = nn.Linear(3, 1, bias=False)
    gradients = [torch.autograd.grad(loss(net, *pair), net.weight)[0] for pair in samples]
    net.loss = lambda x, y, eval=False: loss(net, x, y)
    net.metrics = lambda x, y, eval=False: {}
    users = [PyTorchTensorDataset(pair, user_id=str(k), train_kwargs={"eval": False}) for k, pair in enumerate(samples)]
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", [0, 1]))
    states, algorithm = InMemoryUserStateStorage(), SCAFFOLD()
    parameters = SCAFFOLDParams(
        central_num_iterations=1, evaluation_frequency=10, train_cohort_size=2, val_cohort_size=0,
        population=2, use_gradient_as_control_variate=first_option, user_state_storage=states,
    )
    model = PyTorchModel(net, torch.optim.SGD, central_optimizer=torch.optim.SGD(net.parameters(), 1.0))
    local = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=RATE, local_batch_size=8)
    algorithm.run(parameters, SimulatedBackend(data, data), model, local, send_metrics_to_platform=False)
    variates = [x for k in range(2) for _, x in states.load_state(str(k), "local_c").items()]
    return variates, gradients


variates, gradients = after_a_round(first_option=False)
ratios = [float((c / g).mean()) for c, g in zip(variates, gradients)]
print(f"option II: control variates over gradients {[round(r, 3) for r in ratios]}")
assert all(torch.allclose(c, -g, atol=1e-5) for c, g in zip(variates, gradients)), (variates, gradients)
variates, gradients = after_a_round(first_option=True)
print(f"option I: control variates {[c.flatten().tolist() for c in variates]}, gradients {[g.flatten().tolist() for g in gradients]}")
assert torch.equal(*variates), variates
assert torch.allclose(variates[0], -gradients[1], atol=1e-5), (variates, gradients)
assert not torch.allclose(gradients[0], gradients[1], atol=0.1), gradients
PY
echo "As found: pfl stores minus the gradient as control variate; by option I all clients share one."
