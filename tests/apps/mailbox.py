"""A user's Flower app that pushes and pulls its messages itself, against Flower's public API alone."""

import time

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

replies = []
polls = []
server_app = ServerApp()
client_app = ClientApp()


def request(node: int) -> Message:
    """Work for a node."""
    content = RecordDict(
        {"arrays": ArrayRecord([np.zeros(3, dtype=np.float32)]), "config": ConfigRecord({"number": 1})}
    )
    return Message(content, dst_node_id=node, message_type="train")


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Wait for nodes, give each its messages, and poll until every one of them is answered."""
    while len(nodes := list(grid.get_node_ids())) < context.run_config["nodes"]:
        time.sleep(7)
    each = context.run_config.get("each", 1)
    pending = set(grid.push_messages([request(node) for node in nodes for _ in range(each)]))
    while pending:
        for reply in grid.pull_messages(pending):
            replies.append((reply.metadata.src_node_id, reply.has_error()))
            pending.remove(reply.metadata.reply_to_message_id)
        polls.append(len(pending))
        time.sleep(context.run_config.get("pause", 3))


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """As many examples as the partition's number says: 100, 200, ..."""
    arrays = [array + 1 for array in message.content["arrays"].to_numpy_ndarrays()]
    metrics = MetricRecord({"num-examples": 100 * (1 + int(context.node_config["partition-id"]))})
    return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)
