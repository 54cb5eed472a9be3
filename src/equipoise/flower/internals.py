"""What is used of Flower beyond its public interface, in one module: a new version of Flower may change any of it."""

import warnings
from pathlib import Path

from flwr.app import Message
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, encrypt
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

__all__ = ["NODES", "Run", "combine_shares", "create_shares", "decrypt", "encrypt"]
NODES = """
import sys
from flwr.cli.utils import cli_output_control_client, flwr_cli_exc_handler, print_json_to_stdout
from flwr.proto.control_pb2 import ListNodesRequest
from google.protobuf.json_format import MessageToDict
with cli_output_control_client(sys.argv[3], "json") as (client, _), flwr_cli_exc_handler():
    print_json_to_stdout(MessageToDict(client.ListNodes(ListNodesRequest()), preserving_proto_field_name=True))
"""  # flwr supernode list, with the names of the sites, which it leaves out


def begin_task() -> None:
    """Let messages be made in this process, which Flower allows in a task only."""
    for name in ("run_id", "node_id", "task_id"):
        if getattr(TaskIdentity, f"_{name}") is None:
            setattr(TaskIdentity, name, 1)


def number(message: Message, number: str) -> None:
    """Number a message, as a SuperLink does."""
    message.metadata.__dict__.update(_message_id=number, _run_id=1, _src_node_id=0)


def bundle_size(app: Path) -> int:
    """Bytes of what Flower would send of an app's folder. It raises whatever Flower does where it would not take the app."""
    from flwr.cli.build import build_fab_from_disk
    from flwr.cli.config_utils import load_and_validate

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Flower, about what Flower uses
        load_and_validate(app / "pyproject.toml")
        return len(build_fab_from_disk(app))
