"""A user's Flower app, written for `flwr run` and against Flower's public API alone: linear regression in PyTorch.

`run_config` picks the strategy, and how the second partition misbehaves.
"""

import time

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg

results = []
unwound = []
server_app = ServerApp()
client_app = ClientApp()
no_app = "not an app"
old_app = ServerApp(server_fn=lambda context: None)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Some rounds of the chosen strategy."""
    config = context.run_config
    options = {"min_train_nodes": config["nodes"], "min_available_nodes": config["nodes"], "min_evaluate_nodes": 1}
    options["fraction_train"] = config.get("fraction", 1.0)
    strategy = FedAdam(eta=0.5, **options) if config["strategy"] == "fedadam" else FedAvg(**options)
    try:
        results.append(
            strategy.start(
                grid=grid,
                initial_arrays=ArrayRecord(torch.nn.Linear(4, 1, bias=False).state_dict()),
                train_config=ConfigRecord({"lr": 0.1}),
                num_rounds=config["rounds"],
            )
        )
    except Exception as error:  # an app may catch whatever it likes
        results.append(error)
    finally:
        unwound.append(True)


def examples(context: Context) -> tuple[torch.Tensor, torch.Tensor]:
    """The partition's own data."""
    generator = torch.Generator().manual_seed(int(context.node_config["partition-id"]))
    inputs = torch.randn(64, 4, generator=generator)
    return inputs, inputs @ torch.tensor([[1.0], [-2.0], [3.0], [0.5]])


def loss_of(model: torch.nn.Module, context: Context) -> torch.Tensor:
    """Mean squared error."""
    inputs, targets = examples(context)
    return torch.nn.functional.mse_loss(model(inputs), targets)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Thirty steps of gradient descent, which count as 120 examples."""
    model = torch.nn.Linear(4, 1, bias=False)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=message.content["config"]["lr"])
    for _ in range(30):
        optimizer.zero_grad()
        loss = loss_of(model, context)
        loss.backward()
        optimizer.step()
    count = context.state.config_records.setdefault("mine", ConfigRecord({"calls": 0}))
    count["calls"] += 1
    metrics = MetricRecord({"num-examples": 120, "train_loss": loss.item(), "calls": count["calls"]})
    if context.run_config.get("sleeps"):
        time.sleep(3600)
    if context.node_config["partition-id"] == 1:
        misbehave(context.run_config.get("second", ""), model, metrics)
    arrays = ArrayRecord(model.state_dict())
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def misbehave(how: str, model: torch.nn.Module, metrics: MetricRecord) -> None:
    """What can go wrong at a client."""
    if how == "raises":
        raise RuntimeError("out of memory")
    if how == "nan":
        model.weight.data.fill_(float("nan"))
    if how == "zero":
        metrics["num-examples"] = 0
    if how == "missing":
        del metrics["num-examples"]


@client_app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """The loss on the partition's data, which counts as 60 examples."""
    model = torch.nn.Linear(4, 1, bias=False)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    metrics = MetricRecord({"num-examples": 60, "eval_loss": loss_of(model, context).item()})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
